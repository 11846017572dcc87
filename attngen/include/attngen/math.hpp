// The language's built-in functions, one overload set for scalars and vectors, good to 4 ulp.
//
// On a CPU every function is one branch-free template over the number type, so that a scalar and a lane give the same
// bits; under nvcc they are CUDA's.  ATTNGEN_FAST_MATH=1 allows hardware approximations where a target has them.
#pragma once

#include "attngen/math/number.hpp"
#if defined(__CUDACC__)
#include "attngen/math/cuda.hpp"
#else
#include "attngen/math/exponential.hpp"
#include "attngen/math/trigonometric.hpp"
#endif
#include "attngen/math/normal.hpp"

namespace attngen::math {

template <class F>
ATTNGEN_FN F silu(F x) {
  const F magnitude = select(abs(x) > 120.0f, 120.0f, abs(x));
  const F left = detail::rounded<F>(detail::times_exp<F>(magnitude, -magnitude) / (1.0f + exp(-magnitude)));
  return select(x < 0.0f, (x - x) - left, x / (1.0f + exp(-magnitude)));  // -inf · 0 is NaN
}

template <class F>
ATTNGEN_FN F relu(F x) {
  return max(x, 0.0f);  // so NaN gives 0
}

// floor(x / y), and 0 where y is 0.
template <class A, class B>
ATTNGEN_FN auto floor_quotient(A a, B b) {
  using F = simd::Widest<A, B>;
  const F x = simd::broadcast<F>(a), y = simd::broadcast<F>(b);
  return select(y == 0.0f, F{}, floor(x / y));
}

// x - y · floor(x / y), each step rounded, and 0 where y is 0.
template <class A, class B>
ATTNGEN_FN auto floor_remainder(A a, B b) {
  using F = simd::Widest<A, B>;
  const F x = simd::broadcast<F>(a), y = simd::broadcast<F>(b);
  const F product = detail::rounded(y * floor_quotient(x, y));
  return select(y == 0.0f, F{}, x - product);
}

template <class F>
ATTNGEN_FN F softplus(F x) {
  return select(x < 0.0f, F{}, x) + log1p(exp(-abs(x)));
}

}  // namespace attngen::math
