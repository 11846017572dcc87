// Sine and cosine of floats on a CPU, reduced exactly enough for any finite argument.
#pragma once

#include "attngen/math/exponential.hpp"

namespace attngen::math {

namespace detail {

// x = n · π/2 + r with |r| <= π/4, n modulo 4.
template <class F>
struct Quadrant {
  simd::Int<F> n;
  F r;
};

inline constexpr float kQuadrantLimit = 1e5f;

// Payne and Hanek: only the bits of 2/π that reach the quadrant and below are multiplied.
inline Quadrant<float> reduce_large(float x) {
  __extension__ using Wide = unsigned __int128;
  __extension__ using SignedWide = __int128;
  // 64 zeros, then 256 bits of 2/π.
  constexpr std::uint64_t kTwoOverPi[] = {0, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
                                          0xfe5163abdebbc561};
  if (!(abs(x) < __builtin_inff())) return {0, __builtin_nanf("")};
  const auto bits = simd::bit_cast<std::uint32_t>(x);
  const std::uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int exponent = static_cast<int>((bits >> 23) & 0xffu) - 150;
  // The 128 bits of 2/π from weight 2^(1 - exponent) on; those above give multiples of 2π.
  const int first = 64 + exponent - 2;
  const int word = first / 64, shift = first % 64;
  Wide window = static_cast<Wide>(kTwoOverPi[word]) << 64 | kTwoOverPi[word + 1];
  if (shift != 0) window = window << shift | kTwoOverPi[word + 2] >> (64 - shift);
  const Wide turns = window * mantissa;  // a fraction of 2^128
  const auto n = static_cast<std::int32_t>((turns + (Wide{1} << 125)) >> 126);
  const auto rest = static_cast<SignedWide>(turns - (static_cast<Wide>(static_cast<std::uint32_t>(n)) << 126));
  const auto r = static_cast<float>(static_cast<double>(rest) * (0x1p-126 * 1.5707963267948966));
  return x < 0.0f ? Quadrant<float>{-n, -r} : Quadrant<float>{n, r};
}

template <class F>
ATTNGEN_FN Quadrant<F> reduce_by_half_pi(F x) {
  // The first part has 20 bits, so that n times it and the difference are exact.
  const F n = round(x * 0.636619772f);
  F r = fma(n, simd::broadcast<F>(-1.57079506f), x);
  r = fma(n, simd::broadcast<F>(-1.26759085e-6f), r);
  r = fma(n, simd::broadcast<F>(5.14531146e-14f), r);
  const auto large = !(abs(x) < kQuadrantLimit);
  Quadrant<F> reduced{simd::convert<std::int32_t>(select(large, F{}, n)), r};
  if (__builtin_expect(simd::any(large), 0)) {
    if constexpr (simd::Vector<F>) {
      for (int lane = 0; lane < simd::kLanes<F>; ++lane) {
        if (!large[lane]) continue;
        const Quadrant<float> one = reduce_large(x[lane]);
        reduced.n[lane] = one.n;
        reduced.r[lane] = one.r;
      }
    } else {
      reduced = reduce_large(x);
    }
  }
  return reduced;
}

template <class F>
ATTNGEN_FN F sine_in_quadrant(simd::Int<F> n, F r) {
  const F square = r * r;
  const F sine = fma(r * square, polynomial(square, -0.166666552f, 0.00833219104f, -0.000195186003f), r);
  const F fourth = polynomial(square, 0.0416666456f, -0.00138873013f, 2.44306611e-5f);
  const F cosine = fma(square * square, fourth, fma(square, simd::broadcast<F>(-0.5f), simd::broadcast<F>(1.0f)));
  const F value = select((n & 1) != 0, cosine, sine);
  return simd::bit_cast<F>(simd::bit_cast<simd::Int<F>>(value) ^ ((n & 2) << 30));
}

}  // namespace detail

template <class F>
ATTNGEN_FN F sin(F x) {
  const auto [n, r] = detail::reduce_by_half_pi(x);
  return detail::sine_in_quadrant<F>(n, r);
}

template <class F>
ATTNGEN_FN F cos(F x) {
  const auto [n, r] = detail::reduce_by_half_pi(x);
  return detail::sine_in_quadrant<F>(n + 1, r);
}

}  // namespace attngen::math
