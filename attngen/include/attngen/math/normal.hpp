// The error function and the normal distribution's.
#pragma once

#include <attngen/math/number.hpp>
#if defined(__CUDACC__)
#include <attngen/math/cuda.hpp>
#else
#include <attngen/math/exponential.hpp>
#endif

namespace attngen::math {

#if !defined(__CUDACC__)

template <class F>
ATTNGEN_FN F erf(F x) {
  const F magnitude = detail::bound(abs(x), 0.0f, 4.0f);
  const F small = magnitude * polynomial(magnitude * magnitude, 1.12837923f, -0.376131237f, 0.112903468f,
                                         -0.027190268f, 0.00594557822f, -0.0015868129f, 0.00038437784f);
  const F log = polynomial(magnitude, 0.000170552026f, -1.12949514f, -0.633386731f, -0.10823644f, 0.0250913072f,
                           -0.00416042143f, 0.000432273286f, -2.09062164e-5f);
  return copysign<F>(select(magnitude < 0.92f, small, 1.0f - exp(log)), x);
}

#endif

// x Φ(x), to its own accuracy in the left tail, where 1 + erf would cancel.
template <class F>
ATTNGEN_FN F gelu(F x) {
  const F magnitude = select(abs(x) > 20.0f, 20.0f, abs(x));
  const F square = magnitude * magnitude;
  const F lost = fma(magnitude, magnitude, -square);
  const F density = exp(-0.5f * square) * (1.0f - 0.5f * lost);
  const F t = (magnitude - 3.0f) / (magnitude + 3.0f);
  const F ratio = polynomial(t, 0.121513948f, -0.206402615f, 0.123225011f, -0.0462133363f, 0.0061322418f,
                             0.00290474156f, -0.00098423881f, -0.000339886668f, 0.000115984505f, 5.40407418e-5f);
  const F tail = density * ratio;  // Φ(-|x|)
  return x * select(x < 0.0f, tail, 1.0f - tail);
}

}  // namespace attngen::math
