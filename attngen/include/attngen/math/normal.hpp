// The error function and the normal distribution's.
#pragma once

#include "attngen/math/number.hpp"
#if defined(__CUDACC__)
#include "attngen/math/cuda.hpp"
#else
#include "attngen/math/exponential.hpp"
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

// x Φ(x), accurate in the left tail too, where 1 + erf would cancel.
template <class F>
ATTNGEN_FN F gelu(F x) {
  const F magnitude = select(abs(x) > 15.0f, 15.0f, abs(x));
  const F square = magnitude * magnitude;
  const F lost = fma(magnitude, magnitude, -square);
  const F sum = magnitude + 3.0f;
  const F t = (magnitude - 3.0f) / sum;
  const F ratio = polynomial(t, 0.729083717f, -0.509332061f, 0.230016738f, -0.0472590439f, -0.010453078f,
                             0.00694182701f, 0.000985786086f, -0.000964330335f, -0.000169892213f, 7.69363178e-5f);
  const F product = fma(0.5f * ratio, t, 0.5f * ratio);  // ratio · |x| / (|x| + 3)
  const F factor = fma(product, -0.5f * lost, product);
  const F far = detail::times_exp<F>(factor, -0.5f * square);
  const F slope = polynomial(square, 0.398942262f, -0.0664894879f, 0.00996660721f, -0.00116823136f, 9.35882854e-5f);
  const F near = magnitude * fma(-magnitude, slope, simd::broadcast<F>(0.5f));
  const F tail = detail::rounded<F>(select(magnitude < 1.0f, near, far));  // |x| Φ(-|x|)
  return select(x < 0.0f, (x - x) - tail, x - tail);  // -inf · 0 is NaN
}

}  // namespace attngen::math
