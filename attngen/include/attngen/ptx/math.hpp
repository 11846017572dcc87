// Matrix products and conversions of 16-bit operands: one instruction a function (sm_80 and later).
#pragma once

#include "attngen/ptx/memory.hpp"
#include "attngen/storage.hpp"

namespace attngen::ptx {

// c += a · b for m16n8k16.  Lane l holds of c: rows l/4 and l/4 + 8, columns 2 (l % 4) and the next.
template <class T>
ATTNGEN_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats rounded to T, the first in the low half.
template <class T>
ATTNGEN_DEVICE std::uint32_t pack(float low, float high) {
  std::uint32_t both;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

// sum + 0 · x of two values each: NaN from the first infinity or NaN on.
template <class T>
ATTNGEN_DEVICE std::uint32_t add_zero_times(std::uint32_t x, std::uint32_t sum) {
  std::uint32_t result;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(0), "r"(sum));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(0), "r"(sum));
  }
  return result;
}

// 2^x to 2 ulp; subnormal results become 0.
ATTNGEN_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attngen::ptx
