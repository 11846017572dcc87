// Keys and values in shared memory before they are multiplied: looked over for infinities, widened, transformed.
#pragma once

#include "attngen/fa2/shape.hpp"

namespace attngen::fa2 {

// Whether one row of values holds any infinity or NaN; all lanes of a warp.
template <class S>
ATTNGEN_DEVICE bool holds_infinite(const char* row) {
  std::uint32_t sum = 0;
  for (int pair = ptx::lane(); pair < S::kDimV / 2; pair += 32)
    sum = ptx::add_zero_times<typename S::Operand>(reinterpret_cast<const std::uint32_t*>(row)[pair], sum);
  return __any_sync(0xffffffffu, (sum & 0x7fff7fffu) != 0);
}

// The warp's slice of a stage from pool elements to operands: widened, transformed by the variant, rounded.  Every lane
// of the warp must have waited for its copies.
template <class S, class Fn>
class Converter {
 public:
  ATTNGEN_DEVICE Converter(const Fn& fn, char* shared, Books<S, Fn>& books, float* room)
      : fn_(fn), shared_(shared), books_(books), room_(room) {}

  // Whether the slice's values hold any infinity or NaN, which a weight of 0 would not silence.  Not for pools of 8-bit
  // elements before they are converted.
  ATTNGEN_DEVICE bool any_infinite(const char* values) const {
    using Operand = typename S::Operand;
    constexpr int kPieces = S::kDimV / 8;
    uint4 sums = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int first = 0; first < S::kSlice * kPieces; first += 32) {
      const int piece = first + ptx::lane();
      if (S::kSlice * kPieces % 32 != 0 && piece >= S::kSlice * kPieces) continue;
      const int row = ptx::warp() * S::kSlice + piece / kPieces;
      const uint4 x = *reinterpret_cast<const uint4*>(values + row * S::kPitchV + piece % kPieces * 16);
      sums.x = ptx::add_zero_times<Operand>(x.x, sums.x);
      sums.y = ptx::add_zero_times<Operand>(x.y, sums.y);
      sums.z = ptx::add_zero_times<Operand>(x.z, sums.z);
      sums.w = ptx::add_zero_times<Operand>(x.w, sums.w);
    }
    return __any_sync(0xffffffffu, ((sums.x | sums.y | sums.z | sums.w) & 0x7fff7fffu) != 0);
  }

  // Rows of the slice with any infinity or NaN become zeros.
  ATTNGEN_DEVICE void silence(char* values) const {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < S::kSlice; ++i) {
      char* row = values + (ptx::warp() * S::kSlice + i) * S::kPitchV;
      if (!holds_infinite<S>(row)) continue;
      for (int piece = ptx::lane(); piece < S::kDimV / 8; piece += 32)
        reinterpret_cast<uint4*>(row)[piece] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }

  ATTNGEN_DEVICE void convert(int stage, std::int32_t kv_head) const {
    char* raw = shared_ + S::kKeysRing + stage * S::kStageBytes;
    char* operands = S::kNarrow ? shared_ + S::kOperands : raw;
    if constexpr (S::kNarrow || S::kKeyHook)
      rows<S::kHeadDim, S::kDim, S::kRawPitch, S::kPitch, S::kKeyHook>(
          raw, operands, stage, kv_head, [](const auto& fn, auto& lanes, const auto& column) { fn.key(lanes, column); });
    raw += S::kKeys * S::kRawPitch;
    operands += S::kKeys * S::kPitch;
    if constexpr (S::kNarrow || Fn::kHasValue)
      rows<S::kHeadDimV, S::kDimV, S::kRawPitchV, S::kPitchV, Fn::kHasValue>(
          raw, operands, stage, kv_head, [](const auto& fn, auto& lanes, const auto& column) { fn.value(lanes, column); });
    __syncwarp();
  }

 private:
  template <int N, int kPadded, int kFrom, int kTo, bool kHook, class Hook>
  ATTNGEN_DEVICE void rows(const char* from, char* to, int stage, std::int32_t kv_head, const Hook& hook) const {
    using L = VectorLayout<N>;
    const int first = ptx::warp() * S::kSlice;
#pragma unroll 1
    for (int i = L::row(); i < round_up(S::kSlice, L::kRows); i += L::kRows) {
      const int row = first + (i < S::kSlice ? i : 0);
      const std::int32_t kv = books_.kv[stage][row];
      Chunks<N> x;
      const int turn = Operands<kPadded>::turn(row);
      read_vector<N>(reinterpret_cast<const typename S::Pool*>(from + row * kFrom), x, S::kNarrow ? 0 : turn);
      if constexpr (kHook) {
        WarpLanes<N, Fn::kUsesLaneAt> lanes(x, room_ + L::row() * L::kRoom);
        std::int32_t slot = 0;
        if constexpr (Fn::kReadsSlot) slot = books_.slot[stage][row];
        hook(fn_, lanes, fn_.template column<float, std::int32_t>({kv == kNoKey ? 0 : kv, slot, kv_head}));
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
        write_vector<N>(out, x, turn);
        if constexpr (S::kNarrow && N != kPadded) {
          if (L::lane() == 0) *reinterpret_cast<uint4*>(out + (N / 8 ^ turn) * 8) = make_uint4(0, 0, 0, 0);
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
