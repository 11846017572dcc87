// Many query rows: bound by matrix products.  Warps share the tile's keys and split its rows; one barrier a tile of keys
// frees the stage before, into which the next tile is copied while this one is computed.
#pragma once

#include "attngen/fa2/worker.hpp"

namespace attngen::fa2 {

template <class Traits, class Fn>
struct PrefillShape : Shape<Traits, Fn> {
  using Base = Shape<Traits, Fn>;
  static constexpr int kStaged = Traits::kWarps * 8 * Base::kOutPitch;  // over everything
  static constexpr int kTiles = kStaged > Base::kTilesEnd ? kStaged : Base::kTilesEnd;
  static_assert(Base::kM * Traits::kWarps * 16 == Traits::kRows);
};

template <class Traits, class Fn, int kWords>
ATTNGEN_DEVICE void prefill(const Launch<kWords>& launch) {
  using S = PrefillShape<Traits, Fn>;
  using Memory = SharedMemory<S, Fn, S::kTiles>;
  const Params& params = launch.params;
  char* shared = dynamic_shared;
  Books<S, Fn>& books = Memory::books();
  const Fn fn = make_functor<S, Fn>(launch, books);
  constexpr int kOwn = S::kWarpRows;
  const int warp = ptx::warp(), first = warp * kOwn;
  KeyLoader<S, Fn> loader(params, shared, books);
  const Converter<S, Fn> converter(fn, shared, books, Memory::room());
  const RowLoader<S, Fn> rows(params, fn, shared, books, Memory::room());
  const Finish<S, Fn> finish(params, fn, books, Memory::room());
  Warp<S, Fn, S::kM, S::kKeys> self(fn, shared, books, first);

  const auto attend = [&](const Item& item, const Level& level, const auto& prefetch) {
    rows.template copy<kOwn>(first, rows.template describe<kOwn>(item, level, first));
    prefetch();
    ptx::commit_copies();
    std::int32_t next = loader.begin();
    ptx::wait_copies<S::kAhead>();
    rows.template transform<kOwn>(first);
    __syncwarp();
    self.start(item.kv_head);
#pragma unroll 1
    for (;; next += S::kKeys) {
      const KeySource from = loader.source();
      const std::int32_t key = next - S::kAhead * S::kKeys;
      if (key >= from.end) break;
      const int stage = loader.stage_of(from, key);
      ptx::wait_copies<S::kAhead - 1>();
      __syncwarp();
      if constexpr (S::kNarrow) __syncthreads();  // the operands of the tile before have been read
      if constexpr (S::kConvert) converter.convert(stage, item.kv_head);
      const bool full = from.is_full(key, S::kKeys);
      char* keys = shared + (S::kNarrow ? S::kOperands : S::kKeysRing + stage * S::kStageBytes);
      char* values = keys + S::kKeys * S::kPitch;
      bool infinite = false;
      if (full) {
        __syncthreads();
      } else {
        infinite = __syncthreads_or(converter.any_infinite(values));
      }
      if constexpr (S::kStages > 1) loader.prepare(next);
      if (infinite) {
        self.visit_infinite(keys, values, stage, 0);
        __syncthreads();
        converter.silence(values);
        __syncthreads();
      }
      self.visit(keys, values, stage, 0, full, [&] {
        if constexpr (S::kStages > 1) loader.issue_even(next);
      });
      if constexpr (S::kStages == 1) {
        __syncthreads();
        loader.issue(next);
      }
    }
    ptx::wait_copies<0>();
  };
  const auto leave = [&](const Item& item) {
    self.publish();
    if (finish.is_plain(item)) {  // over the warp's own queries
      char* staged = shared + S::kQueries + first * S::kPitch;
      __syncwarp();
      if (ptx::lane() < kOwn) finish.complete(first + ptx::lane(), warp, ptx::lane());
      __syncwarp();
      self.stage_complete(staged);
      __syncwarp();
      finish.template store_rows<kOwn>(staged, first);
      __syncwarp();  // the next item's queries go there
      return;
    }
    char* staged = shared + warp * 8 * S::kOutPitch;
#pragma unroll 1
    for (int part = 0; part < kOwn / 8; ++part) {
      self.stage_out(part, staged);
      __syncwarp();
      finish.template store<1, 8>(staged, warp, 8 * part, first + 8 * part, 8);
      __syncwarp();
    }
    finish.arrive(item);
    __syncthreads();  // rows were staged where the next item's tiles go
  };
  each_item<S, Fn>(params, books, loader, attend, leave);
}

}  // namespace attngen::fa2
