// What a CPU kernel's traits imply: types, padded sizes, and which matrix engine runs it.
//
// Traits come from the generated file:
//   kHeadDim, kHeadDimV, kWidth (SIMD lanes), kTileRows (most packed rows of an item), kTileKeys,
//   kAmx, kKeysTransformed, Query (type of q and out), Pool (type of K and V)
#pragma once

#include <type_traits>

#include "attngen/storage.hpp"

namespace attngen::cpu {

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

template <class Traits>
struct Shape : Traits {
  using Pool = typename Traits::Pool;
  // q', k', v' and P are rounded once to this: the pool's own type, fp16 for an fp8 pool.
  using Operand = std::conditional_t<sizeof(Pool) == 1, f16, Pool>;
  static constexpr bool kTiles = Traits::kAmx && std::is_same_v<Operand, bf16>;
  // How the matrix engine stores an operand.
  using Element = std::conditional_t<kTiles, bf16, float>;
  static constexpr int kStep = kTiles ? 32 : Traits::kWidth;  // granularity of key ranges and of padding
  static constexpr int kDim = round_up(Traits::kHeadDim, kStep);
  static constexpr int kDimV = round_up(Traits::kHeadDimV, kStep);
  static constexpr int kKeys = Traits::kTileKeys;
  static constexpr int kVectors = kKeys / Traits::kWidth;
  static constexpr int kBlockRows = kTiles ? 32 : 24;  // rows that share one pass over a tile's keys
  static constexpr int kRows = round_up(Traits::kTileRows, kBlockRows);
  static constexpr int kScoresRow = kKeys + 16;  // off the powers of two, which would share cache sets
  static_assert(kKeys % 64 == 0);
};

}  // namespace attngen::cpu
