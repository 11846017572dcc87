// Transposes W × W blocks of 32-bit words, so that rows gathered from a pool become columns.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace attngen::cpu {

// to[j · to_row + i] = from[i][j] for i, j < W; `to` is aligned to W words.
template <int W>
inline void transpose(const std::uint32_t* const* from, std::uint32_t* to, std::int64_t to_row) {
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < W; ++j) to[j * to_row + i] = from[i][j];
}

#if defined(__AVX512F__)
template <>
inline void transpose<16>(const std::uint32_t* const* from, std::uint32_t* to, std::int64_t to_row) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from[i]);
  for (int i = 0; i < 16; i += 2) {  // pairs of rows, word by word
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // groups of four rows; a[i + k] holds column 4 · lane + k
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (int k = 0; k < 4; ++k) {  // 128-bit lanes across the four groups
    const __m512i even_low = _mm512_shuffle_i32x4(a[k], a[4 + k], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(a[k], a[4 + k], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0xdd);
    _mm512_store_si512(to + k * to_row, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_store_si512(to + (4 + k) * to_row, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_store_si512(to + (8 + k) * to_row, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    _mm512_store_si512(to + (12 + k) * to_row, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}
#endif

#if defined(__AVX2__)
template <>
inline void transpose<8>(const std::uint32_t* const* from, std::uint32_t* to, std::int64_t to_row) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[i]));
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (int k = 0; k < 4; ++k) {
    auto* low = reinterpret_cast<__m256i*>(to + k * to_row);
    auto* high = reinterpret_cast<__m256i*>(to + (4 + k) * to_row);
    _mm256_store_si256(low, _mm256_permute2x128_si256(a[k], a[4 + k], 0x20));
    _mm256_store_si256(high, _mm256_permute2x128_si256(a[k], a[4 + k], 0x31));
  }
}
#endif

}  // namespace attngen::cpu
