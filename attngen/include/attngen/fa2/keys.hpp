// Brings the keys and values of an item into shared memory, each warp its own slice of every tile, stage by stage.
#pragma once

#include "attngen/fa2/shape.hpp"

namespace attngen::fa2 {

// Loads ahead what the next call needs: block numbers come one tile before the rows that they name.
template <class S, class Fn>
class KeyLoader {
  using Pool = typename S::Pool;
  static constexpr int kSlice = S::kSlice;

 public:
  ATTNGEN_DEVICE KeyLoader(const Params& params, char* shared, Books<S, Fn>& books)
      : params_(params), shared_(shared), books_(books) {}

  // All threads; those of other warps may still be behind the item before.
  ATTNGEN_DEVICE void start(const Item& item, const Level& level) {
    const char* arena = reinterpret_cast<const char*>(params_.plan);
    const auto list = [&](std::int64_t at) {
      return at ? reinterpret_cast<const std::int32_t*>(arena + at) + item.list : nullptr;
    };
    if (threadIdx.x == 0)
      source() = {list(level.indices),
                  list(level.positions),
                  static_cast<const char*>(params_.k) + item.kv_head * params_.k_strides.head * sizeof(Pool),
                  static_cast<const char*>(params_.v) + item.kv_head * params_.v_strides.head * sizeof(Pool),
                  static_cast<std::int32_t>(item.list),
                  level.block_size,
                  item.kv_end};
    __syncthreads();
    key_ = item.kv_begin + warp() * kSlice + threadIdx.x % 32;
    locate();
  }

  // Copies the next tile into a stage and commits one group, also behind the last tile.
  ATTNGEN_DEVICE void issue(int stage) {
    const int lane = threadIdx.x % 32;
    const bool exists = key_ < source().end && lane < kSlice;
    const std::int64_t k = std::int64_t{block_} * params_.k_strides.block + std::int64_t{offset_} * params_.k_strides.token;
    const std::int64_t v = std::int64_t{block_} * params_.v_strides.block + std::int64_t{offset_} * params_.v_strides.token;
    if (lane < kSlice) {
      books_.kv[stage][warp() * kSlice + lane] = exists ? position_ : kNoKey;
      if constexpr (Fn::kReadsSlot)
        books_.slot[stage][warp() * kSlice + lane] = block_ * source().block_size + offset_;
    }
    const unsigned present = __ballot_sync(0xffffffffu, exists);
    if (present != 0) {
      char* keys = shared_ + S::kKeysRing + stage * S::kStageBytes;
      copy_rows<S::kHeadDim, S::kRawPitch>(source().k, k, present, keys);
      copy_rows<S::kHeadDimV, S::kRawPitchV>(source().v, v, present, keys + S::kKeys * S::kRawPitch);
    }
    ptx::commit_copies();
    key_ += S::kKeys;
    locate();
  }

 private:
  ATTNGEN_DEVICE KeySource& source() const { return books_.source; }
  ATTNGEN_DEVICE static int warp() { return threadIdx.x / 32; }

  // Where this lane's key lies; block and position arrive while the tile before it is awaited.
  ATTNGEN_DEVICE void locate() {
    const KeySource& from = source();
    block_ = 0, offset_ = 0, position_ = 0;
    if (key_ >= from.end || static_cast<int>(threadIdx.x % 32) >= kSlice) return;
    const std::int32_t entry = key_ / from.block_size;
    offset_ = key_ - entry * from.block_size;
    block_ = from.indices ? from.indices[entry] : from.list + entry;
    position_ = from.positions ? from.positions[entry] + offset_ : key_;
  }

  // Rows of the slice, the head dimension padded with zeros; rows that don't exist are zeros all through.
  template <int kCount, int kPitch>
  ATTNGEN_DEVICE void copy_rows(const char* pool, std::int64_t offset, unsigned present, char* to) const {
    constexpr int kBytes = kCount * sizeof(Pool), kPiece = kBytes % 16 == 0 ? 16 : 8;
    constexpr int kPieces = round_up(kCount, 16) * sizeof(Pool) / kPiece;
    constexpr int kSteps = (kSlice * kPieces + 31) / 32;
    const std::uint32_t base = ptx::shared_address(to) + warp() * kSlice * kPitch;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int piece = step * 32 + threadIdx.x % 32;
      const int row = piece / kPieces, at = piece % kPieces * kPiece;
      const std::int64_t from = __shfl_sync(0xffffffffu, offset, row & 31);
      const bool real = (present >> (row & 31) & 1) && at < kBytes;
      if (kSlice * kPieces % 32 == 0 || row < kSlice)
        ptx::copy_async<kPiece>(base + row * kPitch + at, real ? pool + from * sizeof(Pool) + at : pool,
                                real ? kPiece : 0);
    }
  }

  const Params& params_;
  char* shared_;
  Books<S, Fn>& books_;
  std::int32_t key_, block_, offset_, position_;  // of the lane's key of the next tile
};

// The warp's slice of a stage from pool elements to operands: widened, transformed by the variant, rounded.  Every lane
// of the warp must have waited for its copies.
template <class S, class Fn>
class Converter {
 public:
  ATTNGEN_DEVICE Converter(const Fn& fn, char* shared, Books<S, Fn>& books, float* room)
      : fn_(fn), shared_(shared), books_(books), room_(room) {}

  ATTNGEN_DEVICE void convert(int stage, std::int32_t kv_head) const {
    char* raw = shared_ + S::kKeysRing + stage * S::kStageBytes;
    char* operands = S::kNarrow ? shared_ + S::kOperands : raw;
    if constexpr (S::kNarrow || S::kKeyHook)
      rows<S::kHeadDim, S::kDim, S::kRawPitch, S::kPitch, S::kKeyHook>(
          raw, operands, stage, kv_head, [&](auto& lanes, const auto& column) { fn_.key(lanes, column); });
    raw += S::kKeys * S::kRawPitch;
    operands += S::kKeys * S::kPitch;
    if constexpr (S::kNarrow || Fn::kHasValue)
      rows<S::kHeadDimV, S::kDimV, S::kRawPitchV, S::kPitchV, Fn::kHasValue>(
          raw, operands, stage, kv_head, [&](auto& lanes, const auto& column) { fn_.value(lanes, column); });
    __syncwarp();
  }

 private:
  template <int N, int kPadded, int kFrom, int kTo, bool kHook, class Hook>
  ATTNGEN_DEVICE void rows(const char* from, char* to, int stage, std::int32_t kv_head, const Hook& hook) const {
    using L = VectorLayout<N>;
    const int first = threadIdx.x / 32 * S::kSlice;
#pragma unroll 1
    for (int i = L::row(); i < round_up(S::kSlice, L::kRows); i += L::kRows) {
      const int row = first + (i < S::kSlice ? i : 0);
      const std::int32_t kv = books_.kv[stage][row];
      Chunks<N> x;
      read_vector<N>(reinterpret_cast<const typename S::Pool*>(from + row * kFrom), x);
      if constexpr (kHook) {
        WarpLanes<N, Fn::kUsesLaneAt> lanes(x, room_ + L::row() * L::kRoom);
        std::int32_t slot = 0;
        if constexpr (Fn::kReadsSlot) slot = books_.slot[stage][row];
        hook(lanes, fn_.template column<float, std::int32_t>({kv == kNoKey ? 0 : kv, slot, kv_head}));
      }
      if (i < S::kSlice) {
        auto* out = reinterpret_cast<typename S::Operand*>(to + row * kTo);
        if (kHook && kv == kNoKey) {  // a stage may turn zeros into anything
#pragma unroll
          for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
              for (int e = 0; e < 8; ++e) x[own][half][e] = 0.0f;
        }
        write_vector<N>(out, x);
        if constexpr (S::kNarrow && N != kPadded) {
          if (L::lane() == 0) *reinterpret_cast<uint4*>(out + N) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }

  const Fn& fn_;
  char* shared_;
  Books<S, Fn>& books_;
  float* room_;
};

}  // namespace attngen::fa2
