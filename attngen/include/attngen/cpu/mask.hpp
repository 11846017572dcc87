// Which keys of a tile each row may see, as one bit a key, decided before any product is computed: a tile or a block of
// rows that sees nothing is skipped, one that sees everything needs no masking.
#pragma once

#include <cstdint>

#include "attngen/cpu/keys.hpp"
#include "attngen/cpu/shape.hpp"
#include "attngen/simd.hpp"

namespace attngen::cpu {

using Bits = std::uint32_t;  // of one vector of keys, the first key lowest

template <class M>
ATTNGEN_FN Bits to_bits(M mask) {
#if defined(__AVX512DQ__)
  if constexpr (sizeof(M) == 64) return _mm512_movepi32_mask(simd::bit_cast<__m512i>(mask));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(M) == 32) return _mm256_movemask_ps(simd::bit_cast<__m256>(mask));
#endif
  Bits bits = 0;
  for (int i = 0; i < simd::kLanes<M>; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
}

template <class M>
ATTNGEN_FN M from_bits(Bits bits) {
  const M lane = simd::broadcast<M>(1) << simd::iota<M>();
  return (simd::broadcast<M>(static_cast<std::int32_t>(bits)) & lane) != 0;
}

// The vectors [begin, end) of a tile that any row of a block sees, widened to the engine's steps; `whole` where every row
// sees all of them.
struct Block {
  int begin, end;
  bool whole;
};

template <class S>
struct TileMask {
  static constexpr int W = S::kWidth;
  static constexpr Bits kAll = W == 32 ? ~0u : (1u << W) - 1;

  Bits present[S::kVectors];            // keys that exist
  Bits allowed[S::kRows][S::kVectors];  // only where `by_row`
  Block blocks[S::kRows / S::kBlockRows];
  bool by_row;

  const Bits* row(int i) const { return by_row ? allowed[i] : present; }

  // Every row sees every key that exists.
  void open(int rows, int count) {
    set_present(count);
    by_row = false;
    const Block block = {0, round_up(count, S::kStep) / W, count % S::kStep == 0};
    std::fill(blocks, blocks + round_up(rows, S::kBlockRows) / S::kBlockRows, block);
  }

  // Row i sees what `test(i, vector)` says.  False where no row sees anything.
  template <class Test>
  bool restrict(int rows, int count, const Test& test) {
    set_present(count);
    by_row = true;
    const int vectors = round_up(count, S::kStep) / W;
    bool any = false;
    for (int first = 0; first < rows; first += S::kBlockRows) {
      const int last = std::min(rows, first + S::kBlockRows);
      Bits some[S::kVectors] = {}, every[S::kVectors];
      std::fill(every, every + vectors, kAll);
      for (int i = first; i < last; ++i) {
        for (int v = 0; v < vectors; ++v) {
          const Bits bits = present[v] & to_bits(test(i, v));
          allowed[i][v] = bits;
          some[v] |= bits;
          every[v] &= bits;
        }
      }
      blocks[first / S::kBlockRows] = range(some, every, vectors);
      any = any || blocks[first / S::kBlockRows].begin < blocks[first / S::kBlockRows].end;
    }
    return any;
  }

 private:
  void set_present(int count) {
    for (int v = 0; v < S::kVectors; ++v) {
      const int keys = count - v * W;
      present[v] = keys >= W ? kAll : keys > 0 ? (1u << keys) - 1 : 0;
    }
  }

  static Block range(const Bits* some, const Bits* every, int vectors) {
    int begin = 0, end = vectors;
    while (begin < end && !some[begin]) ++begin;
    while (begin < end && !some[end - 1]) --end;
    constexpr int kStep = S::kStep / W;
    begin = begin / kStep * kStep;
    end = round_up(end, kStep);
    bool whole = true;
    for (int v = begin; v < end; ++v) whole = whole && every[v] == kAll;
    return {begin, end, whole};
  }
};

}  // namespace attngen::cpu
