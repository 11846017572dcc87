// Matrix products on AMX tiles: bf16 operands, fp32 sums.  Only compiled for targets that have it.
//
// A is row-major bf16.  B comes as tiles of 16 columns × 32 depth in 1 KB: row r holds depths 2r and 2r + 1 of every
// column, side by side.  C is row-major fp32.
#pragma once

#if defined(__AMX_BF16__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "attngen/storage.hpp"

namespace attngen::cpu::amx {

inline constexpr int kRows = 16;     // rows of a tile of A and C
inline constexpr int kColumns = 16;  // columns of a tile of B and C
inline constexpr int kDepth = 32;    // bf16 elements along the sum
inline constexpr int kTile = kColumns * kDepth;

// Asks the kernel, once a process, for the tile registers; 18 is the number of the tile data's state component.
inline bool permitted() {
  static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
  return granted;
}

// Tile registers hold 16 rows of 64 bytes for as long as this lives.
class Session {
 public:
  Session() {
    permitted();
    alignas(64) std::uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;
      config[48 + tile] = kRows;
    }
    // NOTE: the intrinsic tells GCC of 8 bytes only, and the stores to the others would be dropped as dead.
    asm volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
  }
  ~Session() { _tile_release(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

// 32 × 32 of C (+)= A · B.  Tiles of B for one column block follow each other along the depth; `b_block` is the
// distance in elements from one column block to the next.  Registers: 0–3 C, 4–5 A, 6–7 B.
template <bool kTwoRows, bool kAccumulate>
inline void multiply_block(const bf16* a, std::int64_t a_row, const bf16* b, std::int64_t b_block, int depth_tiles,
                           float* c, std::int64_t c_row) {
  const std::int64_t a_bytes = a_row * 2, c_bytes = c_row * 4;
  float* lower = c + kRows * c_row;
  if constexpr (kAccumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kColumns, c_bytes);
    if constexpr (kTwoRows) {
      _tile_loadd(2, lower, c_bytes);
      _tile_loadd(3, lower + kColumns, c_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < depth_tiles; ++k) {
    _tile_loadd(6, b + k * kTile, 64);
    _tile_loadd(7, b + b_block + k * kTile, 64);
    _tile_loadd(4, a + k * kDepth, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoRows) {
      _tile_loadd(5, a + kRows * a_row + k * kDepth, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kColumns, c_bytes);
  if constexpr (kTwoRows) {
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + kColumns, c_bytes);
  }
}

// C[rows, begin..end) (+)= A · B, rows padded to a multiple of 16 and columns in multiples of 32.  The tiles of B stay in
// L1 while all rows pass over them.
template <bool kAccumulate>
inline void multiply(int rows, int begin, int end, const bf16* a, std::int64_t a_row, const bf16* b,
                     std::int64_t b_block, int depth_tiles, float* c, std::int64_t c_row) {
  for (int column = begin; column < end; column += 2 * kColumns) {
    const bf16* tiles = b + column / kColumns * b_block;
    for (int i = 0; i < rows; i += 2 * kRows) {
      if (rows - i > kRows)
        multiply_block<true, kAccumulate>(a + i * a_row, a_row, tiles, b_block, depth_tiles, c + i * c_row + column, c_row);
      else
        multiply_block<false, kAccumulate>(a + i * a_row, a_row, tiles, b_block, depth_tiles, c + i * c_row + column, c_row);
    }
  }
}

// Two rows of 16 bf16 to one tile row: a0 b0 a1 b1 …
inline void interleave(const bf16* first, const bf16* second, bf16* to) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8,  24, 9,  25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

}  // namespace attngen::cpu::amx

#endif
