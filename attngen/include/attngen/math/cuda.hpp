// Float functions of CUDA threads.  CUDA's own are within 4 ulp; kFastMath allows the special function unit's.
#pragma once

#include "attngen/math/number.hpp"

namespace attngen::math {

ATTNGEN_FN float floor(float x) { return ::floorf(x); }
ATTNGEN_FN float ceil(float x) { return ::ceilf(x); }
ATTNGEN_FN float round(float x) { return ::rintf(x); }
ATTNGEN_FN float sqrt(float x) { return ::sqrtf(x); }
ATTNGEN_FN float log1p(float x) { return ::log1pf(x); }
ATTNGEN_FN float erf(float x) { return ::erff(x); }
ATTNGEN_FN float sin(float x) { return ::sinf(x); }
ATTNGEN_FN float cos(float x) { return ::cosf(x); }
ATTNGEN_FN float pow(float x, float y) { return ::powf(x, y); }

ATTNGEN_FN float exp2(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (kFastMath) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
#endif
  return ::exp2f(x);
}

ATTNGEN_FN float exp(float x) {
  if constexpr (kFastMath) return exp2(x * 1.44269504f);
  return ::expf(x);
}

ATTNGEN_FN float log2(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (kFastMath) return ::__log2f(x);
#endif
  return ::log2f(x);
}

ATTNGEN_FN float log(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (kFastMath) return ::__logf(x);
#endif
  return ::logf(x);
}

ATTNGEN_FN float rsqrt(float x) {
#if defined(__CUDA_ARCH__)
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}

ATTNGEN_FN float tanh(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (kFastMath) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
#endif
  return ::tanhf(x);
}

ATTNGEN_FN float sigmoid(float x) {
  if constexpr (kFastMath) return 0.5f + 0.5f * tanh(0.5f * x);
  const float decay = exp(-abs(x));
  return (x < 0.0f ? decay : 1.0f) / (1.0f + decay);
}

namespace detail {

// factor · exp(x) for -120 <= x <= 0, by halves: exp(x) may be subnormal where the product isn't.
template <class F>
ATTNGEN_FN F times_exp(F factor, F x) {
  const F half = exp(0.5f * x);
  return factor * half * half;
}

}  // namespace detail

}  // namespace attngen::math
