// Few query rows against many keys: bound by memory.  Every warp walks its own slice of each tile of keys through its own
// ring of asynchronous copies and keeps its own running softmax, so that no warp waits for another until the item ends;
// then the warps' rows are joined through shared memory.
#pragma once

#include "attngen/fa2/worker.hpp"

namespace attngen::fa2 {

template <class Traits, class Fn>
struct DecodeShape : Shape<Traits, Fn> {
  using Base = Shape<Traits, Fn>;
  static constexpr int kStaged = Base::kKeysRing + Traits::kWarps * Traits::kRows * Base::kOutPitch;  // over the ring
  static constexpr int kTiles = kStaged > Base::kTilesEnd ? kStaged : Base::kTilesEnd;
  static constexpr bool kLate = Traits::kStages > 2;  // copies are asked for once the scores are made
  static constexpr int kOwn = Traits::kWarps < 4 ? Traits::kRows / Traits::kWarps : Traits::kRows / 4;  // rows of a warp
  static_assert(Traits::kRows <= 32 && Base::kSlice % 16 == 0);
};

template <class Traits, class Fn, int kWords>
ATTNGEN_DEVICE void decode(const Launch<kWords>& launch) {
  using S = DecodeShape<Traits, Fn>;
  using Memory = SharedMemory<S, Fn, S::kTiles>;
  const Params& params = launch.params;
  char* shared = dynamic_shared;
  Books<S, Fn>& books = Memory::books();
  const Fn fn = make_functor<S, Fn>(launch, books);
  const auto slice = [] { return ptx::warp() * S::kSlice; };
  const auto own = [] { return ptx::warp() * S::kOwn; };
  KeyLoader<S, Fn> loader(params, shared, books);
  const Converter<S, Fn> converter(fn, shared, books, Memory::room());
  const RowLoader<S, Fn> rows(params, fn, shared, books, Memory::room());
  const Finish<S, Fn> finish(params, fn, books, Memory::room());
  Warp<S, Fn, S::kM, S::kSlice> self(fn, shared, books, 0);

  const auto attend = [&](const Item& item, const Level& level, const auto& prefetch) {
    if (own() < S::kRows) rows.template copy<S::kOwn>(own(), rows.template describe<S::kOwn>(item, level, own()));
    prefetch();
    ptx::commit_copies();
    std::int32_t next = loader.begin();
    ptx::wait_copies<S::kAhead>();
    if (own() < S::kRows) rows.template transform<S::kOwn>(own());
    __syncthreads();
    self.start(item.kv_head);
    if constexpr (S::kQueriesPass) __syncthreads();
#pragma unroll 1
    for (;; next += S::kKeys) {
      const KeySource from = loader.source();
      const std::int32_t key = next - S::kAhead * S::kKeys + slice();
      if (key >= from.end) break;
      const int stage = loader.stage_of(from, key);
      ptx::wait_copies<S::kAhead - 1>();
      __syncwarp();
      const bool full = from.is_full(key, S::kSlice);
      const auto issue = [&] { loader.issue(next); };
      if constexpr (!S::kLate) issue();
      if constexpr (S::kConvert) converter.convert(stage, item.kv_head);
      char* keys = shared + (S::kNarrow ? S::kOperands : S::kKeysRing + stage * S::kStageBytes);
      char* values = keys + S::kKeys * S::kPitch;
      if (!full && converter.any_infinite(values)) {
        self.visit_infinite(keys + slice() * S::kPitch, values + slice() * S::kPitchV, stage, slice());
        converter.silence(values);
      }
      self.visit(keys + slice() * S::kPitch, values + slice() * S::kPitchV, stage, slice(), full, [&] {
        if constexpr (S::kLate) issue();
      });
      __syncwarp();
    }
    ptx::wait_copies<0>();
  };
  const auto leave = [&](const Item& item) {
    char* staged = shared + S::kKeysRing;
    self.publish();
#pragma unroll
    for (int part = 0; part < S::kRows / 8; ++part)
      self.stage_out(part, staged + (ptx::warp() * S::kRows + 8 * part) * S::kOutPitch);
    __syncthreads();
    if (own() < S::kRows)
      finish.template store<S::kWarps, S::kRows>(staged + own() * S::kOutPitch, 0, own(), own(), S::kOwn);
    finish.arrive(item);
    __syncthreads();  // rows were staged where the next item's tiles go
  };
  each_item<S, Fn>(params, books, loader, attend, leave);
}

}  // namespace attngen::fa2
