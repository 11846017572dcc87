// Rounding, roots, exponentials and logarithms of floats on a CPU.
#pragma once

#include "attngen/math/number.hpp"

namespace attngen::math {

// Rounding to whole numbers and roots --------------------------------------------------------------

namespace detail {

enum class Rounding { kNearest = 0, kDown = 1, kUp = 2 };  // as the instructions encode it

template <Rounding kMode, class F>
ATTNGEN_FN F round_to(F x) {
  if constexpr (!simd::Vector<F>) {
    if constexpr (kMode == Rounding::kDown) return __builtin_floorf(x);
    if constexpr (kMode == Rounding::kUp) return __builtin_ceilf(x);
    return __builtin_rintf(x);
  } else {
    constexpr int kImmediate [[maybe_unused]] = static_cast<int>(kMode) | 8;  // 8: raise nothing
#if defined(__AVX512F__)
    if constexpr (simd::kLanes<F> == 16) {
      // The masked form, because GCC 12 warns about the plain one's undefined pass-through operand.
      return _mm512_maskz_roundscale_ps(0xffff, x, kImmediate);
    }
#endif
#if defined(__AVX__)
    if constexpr (simd::kLanes<F> == 8) return _mm256_round_ps(x, kImmediate);
#endif
    for (int lane = 0; lane < simd::kLanes<F>; ++lane) x[lane] = round_to<kMode>(static_cast<float>(x[lane]));
    return x;
  }
}

}  // namespace detail

template <class F>
ATTNGEN_FN F floor(F x) {
  return detail::round_to<detail::Rounding::kDown>(x);
}
template <class F>
ATTNGEN_FN F ceil(F x) {
  return detail::round_to<detail::Rounding::kUp>(x);
}
template <class F>
ATTNGEN_FN F round(F x) {
  return detail::round_to<detail::Rounding::kNearest>(x);
}

template <class F>
ATTNGEN_FN F sqrt(F x) {
  if constexpr (!simd::Vector<F>) {
    return __builtin_sqrtf(x);
  } else {
#if defined(__AVX512F__)
    if constexpr (simd::kLanes<F> == 16) return _mm512_maskz_sqrt_ps(0xffff, x);
#endif
#if defined(__AVX__)
    if constexpr (simd::kLanes<F> == 8) return _mm256_sqrt_ps(x);
#endif
    for (int lane = 0; lane < simd::kLanes<F>; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
  }
}

template <class F>
ATTNGEN_FN F rsqrt(F x) {
  return 1.0f / sqrt(x);
}

// Exponentials -------------------------------------------------------------------------------------

namespace detail {

// Below `low` it is low, above `high` it is high; NaN stays.
template <class F>
ATTNGEN_FN F bound(F x, float low, float high) {
  const F raised = select(x < low, low, x);
  return select(raised > high, high, raised);
}

// 2ⁿ for whole n in [-126, 127].
template <class F>
ATTNGEN_FN F power_of_two(simd::Int<F> n) {
  return simd::bit_cast<F>((n + 127) << 23);
}

// x · 2ⁿ for whole n of at most 250 in magnitude, rounded once.
template <class F>
ATTNGEN_FN F scale(F x, F n) {
#if defined(__AVX512F__)
  if constexpr (simd::kLanes<F> == 16) return _mm512_maskz_scalef_ps(0xffff, x, n);
#endif
  const auto whole = simd::convert<std::int32_t>(n);
  const auto half = whole >> 1;
  return x * power_of_two<F>(half) * power_of_two<F>(whole - half);
}

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693145752f;  // 15 bits: its product with an exponent is exact
inline constexpr float kLn2Low = 1.42860677e-6f;

// x = n · ln 2 + r with |r| <= ln 2 / 2.
template <class F>
struct LogReduced {
  F n, r;
};

template <class F>
ATTNGEN_FN LogReduced<F> reduce_by_ln2(F x) {
  const F n = round(x * kLog2E);
  const F r = fma(n, simd::broadcast<F>(-kLn2High), x);
  return {n, fma(n, simd::broadcast<F>(-kLn2Low), r)};
}

// eʳ - 1 for |r| <= ln 2 / 2.
template <class F>
ATTNGEN_FN F expm1_reduced(F r) {
  const F tail = polynomial(r, 0.5f, 0.166665435f, 0.041666422f, 0.00836655591f, 0.00139389455f);
  return fma(r * r, tail, r);
}

}  // namespace detail

template <class F>
ATTNGEN_FN F exp2(F x) {
  const F bounded = detail::bound(x, -160.0f, 160.0f);
  const F n = round(bounded);
  const F r = bounded - n;
  const F power = polynomial(r, 1.0f, 0.693147004f, 0.240222469f, 0.0555071123f, 0.00967129413f, 0.0013269406f);
  return detail::scale(power, n);
}

template <class F>
ATTNGEN_FN F exp(F x) {
  const auto [n, r] = detail::reduce_by_ln2(detail::bound(x, -110.0f, 110.0f));
  return detail::scale<F>(1.0f + detail::expm1_reduced(r), n);
}

template <class F>
ATTNGEN_FN F tanh(F x) {
  // tanh |x| = e / (e + 2) with e = exp(2 |x|) - 1, which is accurate near 0 too.
  const F magnitude = abs(x);
  const auto [n, r] = detail::reduce_by_ln2<F>(select(magnitude > 10.0f, 20.0f, 2.0f * magnitude));
  const F power = detail::power_of_two<F>(simd::convert<std::int32_t>(select(x != x, F{}, n)));
  const F e = fma(power, detail::expm1_reduced(r), power - 1.0f);
  return copysign(e / (e + 2.0f), x);
}

template <class F>
ATTNGEN_FN F sigmoid(F x) {
  const F decay = exp(-abs(x));  // never overflows, and keeps the tail's relative accuracy
  return select(x < 0.0f, decay, 1.0f) / (1.0f + decay);
}

namespace detail {

// factor · exp(x) for -120 <= x <= 0.  The power of two comes last: exp(x) may be subnormal where the product isn't.
template <class F>
ATTNGEN_FN F times_exp(F factor, F x) {
  const auto [n, r] = reduce_by_ln2(x);
  return scale<F>(fma(factor, expm1_reduced(r), factor), n);
}

}  // namespace detail

// Logarithms ---------------------------------------------------------------------------------------

namespace detail {

// x = 2ᵉ · (1 + f) with 1 + f in [√½, √2), for positive finite x.
template <class F>
struct Decomposed {
  F e, f;
};

template <class F>
ATTNGEN_FN Decomposed<F> decompose(F x) {
  const auto subnormal = x < 0x1p-126f;
  const auto bits = simd::bit_cast<simd::Int<F>>(select(subnormal, x * 0x1p23f, x));
  const simd::Int<F> exponent = (bits - 0x3f3504f3) >> 23;
  const F e = simd::convert<float>(exponent) - select(subnormal, F{} + 23.0f, F{});
  return {e, simd::bit_cast<F>(bits - (exponent << 23)) - 1.0f};
}

// log(1 + f) - f for 1 + f in [√½, √2).
template <class F>
ATTNGEN_FN F log1p_rest(F f) {
  const F square = f * f;
  const F tail = polynomial(f, 0.333333164f, -0.250008106f, 0.20002301f, -0.16624552f, 0.141809389f, -0.131285906f,
                            0.12883085f, -0.0786156729f);
  return fma(square * f, tail, -0.5f * square);
}

// What a logarithm is where its argument isn't positive and finite.
template <class F>
ATTNGEN_FN F log_or_special(F x, F log) {
  const F special = select(x == 0.0f, -__builtin_inff(), select(x > 0.0f, x, __builtin_nanf("")));
  return select((x > 0.0f) & (x < __builtin_inff()), log, special);
}

}  // namespace detail

template <class F>
ATTNGEN_FN F log(F x) {
  const auto [e, f] = detail::decompose(x);
  const F small = fma(e, simd::broadcast<F>(detail::kLn2Low), detail::log1p_rest(f));
  return detail::log_or_special<F>(x, fma(e, simd::broadcast<F>(detail::kLn2High), f + small));
}

template <class F>
ATTNGEN_FN F log2(F x) {
  constexpr float kLog2EMinus1 = 0.442695041f;
  const auto [e, f] = detail::decompose(x);
  const F rest = detail::log1p_rest(f);
  const F small = fma(rest, simd::broadcast<F>(kLog2EMinus1), f * kLog2EMinus1) + rest;
  return detail::log_or_special<F>(x, e + (f + small));
}

template <class F>
ATTNGEN_FN F log1p(F x) {
  const F sum = 1.0f + x;
  const F lost = select(x < 1.0f, x - (sum - 1.0f), 1.0f - (sum - x));  // what rounding took from the sum
  const F corrected = log(sum) + lost / sum;
  return select((x > -1.0f) & (x < __builtin_inff()) & (x != 0.0f), corrected, select(x == 0.0f, x, log(sum)));
}

// Powers -------------------------------------------------------------------------------------------

namespace detail {

// y · log2(x) for positive x in double precision, bounded.
template <class F>
ATTNGEN_FN auto log2_of_power(F x, F y) {
  const auto [e, f] = decompose(x);
  const auto fraction = simd::convert<double>(f);
  const auto s = fraction / (2.0 + fraction);  // log(1 + f) = 2 atanh s
  const auto z = s * s;
  auto sum = z * (1.0 / 15.0) + 1.0 / 13.0;
  for (const double odd : {11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) sum = sum * z + 1.0 / odd;
  const auto log = simd::convert<double>(e) + s * sum * 2.8853900817779268;  // 2 / ln 2
  const auto infinite = (x == 0.0f) | (x == __builtin_inff());
  const F special = select(x == 0.0f, -__builtin_inff(), x);
  return simd::convert<double>(y) * select(infinite, simd::convert<double>(special), log);
}

}  // namespace detail

// As in C: pow(x, 0) and pow(1, y) are 1 whatever the other is.
template <class A, class B>
ATTNGEN_FN auto pow(A base, B exponent) {
  using F = simd::Widest<A, B>;
  const F x = simd::broadcast<F>(base), y = simd::broadcast<F>(exponent), magnitude = abs(x);
  const auto log = detail::log2_of_power(magnitude, y);
  const F rough = simd::convert<float>(log);
  const F n = round(detail::bound(rough, -160.0f, 160.0f));
  const F near = simd::convert<float>(log - simd::convert<double>(n));
  const F fraction = select(abs(rough) < 160.0f, near, F{});
  const F power = polynomial(fraction, 1.0f, 0.693147182f, 0.240226477f, 0.0555035956f, 0.00961849932f, 0.00133909704f,
                             0.000153293106f);
  const F positive = select(magnitude == 1.0f, simd::broadcast<F>(1.0f), detail::scale(power, n));
  const auto whole = round(y) == y;
  const auto odd = whole & (round(0.5f * y) != 0.5f * y);
  const F signed_power = select(odd, copysign(positive, x), positive);
  const auto undefined = (x < 0.0f) & (magnitude < __builtin_inff()) & !whole;
  const F defined = select(undefined | (x != x) | (y != y), simd::broadcast<F>(__builtin_nanf("")), signed_power);
  return select((y == 0.0f) | (x == 1.0f), simd::broadcast<F>(1.0f), defined);
}

}  // namespace attngen::math
