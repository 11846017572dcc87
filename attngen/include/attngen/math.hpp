// The language's built-in functions, one overload set for scalars and vectors, good to 4 ulp.
//
// On a CPU every function is one branch-free template over the number type, so that a scalar and a lane give the same
// bits; under nvcc they are CUDA's.  ATTNGEN_FAST_MATH=1 allows hardware approximations where a target has them.
#pragma once

#include <attngen/math/number.hpp>
#if defined(__CUDACC__)
#include <attngen/math/cuda.hpp>
#else
#include <attngen/math/exponential.hpp>
#include <attngen/math/trigonometric.hpp>
#endif
#include <attngen/math/normal.hpp>

namespace attngen::math {

template <class F>
ATTNGEN_FN F silu(F x) {
  return x * sigmoid(x);
}

template <class F>
ATTNGEN_FN F relu(F x) {
  return select(x < 0.0f, F{}, x);  // keeps NaN
}

template <class F>
ATTNGEN_FN F softplus(F x) {
  return select(x < 0.0f, F{}, x) + log1p(exp(-abs(x)));
}

}  // namespace attngen::math
