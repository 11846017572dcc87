// Matrix products on SIMD fused multiply-adds, in fp32: C = diag(alpha) · C + A · B with A read element by element
// (broadcast) and B in panels of kVectors vectors, so that a panel of B stays in L1 while rows of A pass over it.
#pragma once

#include <cstdint>

#include "attngen/simd.hpp"

namespace attngen::cpu {

// How many rows and vectors fill the register file without spilling: accumulators + one panel row + one broadcast.
template <int W>
struct Registers {
  static constexpr int kRows = 6;
  static constexpr int kVectors = W == 16 ? 4 : 2;
  static constexpr int kPanel = kVectors * W;
};

// One register block.  `alpha` scales the old C row by row; nullptr starts from zero.
template <int kRows, int kVectors, int W>
ATTNGEN_FN void multiply_block(const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, int depth,
                               float* c, std::int64_t c_row, const float* alpha) {
  using F = simd::f32<W>;
  F sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      sum[i][j] = alpha ? simd::load<F>(c + i * c_row + j * W) * alpha[i] : F{};
  for (int k = 0; k < depth; ++k) {
    F row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = simd::load<F>(b + k * b_row + j * W);
    for (int i = 0; i < kRows; ++i) {
      const F factor = simd::broadcast<F>(a[i * a_row + k]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) simd::store(c + i * c_row + j * W, sum[i][j]);
}

// Any number of rows up to kRows, each count its own unrolled block.
template <int kRows, int kVectors, int W>
inline void multiply_rows(int rows, const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, int depth,
                          float* c, std::int64_t c_row, const float* alpha) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<kRows - 1, kVectors, W>(rows, a, a_row, b, b_row, depth, c, c_row, alpha);
  }
  multiply_block<kRows, kVectors, W>(a, a_row, b, b_row, depth, c, c_row, alpha);
}

// Any number of vectors up to kVectors.
template <int kVectors, int W>
inline void multiply_panel(int vectors, int rows, const float* a, std::int64_t a_row, const float* b,
                           std::int64_t b_row, int depth, float* c, std::int64_t c_row, const float* alpha) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors)
      return multiply_panel<kVectors - 1, W>(vectors, rows, a, a_row, b, b_row, depth, c, c_row, alpha);
  }
  constexpr int kRows = Registers<W>::kRows;
  for (int i = 0; i < rows; i += kRows)
    multiply_rows<kRows, kVectors, W>(rows - i < kRows ? rows - i : kRows, a + i * a_row, a_row, b, b_row, depth,
                                      c + i * c_row, c_row, alpha ? alpha + i : nullptr);
}

// C[rows, begin..end) from panels of B, each [depth][kPanel] and `panel_stride` floats from the next; begin and end are
// multiples of W.
template <int W>
inline void multiply(int rows, int begin, int end, const float* a, std::int64_t a_row, const float* panels,
                     std::int64_t panel_stride, int depth, float* c, std::int64_t c_row, const float* alpha) {
  constexpr int kPanel = Registers<W>::kPanel;
  for (int column = begin; column < end;) {
    const int panel = column / kPanel, inside = column % kPanel;
    const int stop = (panel + 1) * kPanel < end ? (panel + 1) * kPanel : end;
    multiply_panel<Registers<W>::kVectors, W>((stop - column) / W, rows, a, a_row,
                                              panels + panel * panel_stride + inside, kPanel, depth, c + column, c_row,
                                              alpha);
    column = stop;
  }
}

}  // namespace attngen::cpu
