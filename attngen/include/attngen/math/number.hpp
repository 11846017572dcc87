// Arithmetic that C++ operators don't give: wrapping, flooring, saturating, and the choice of NaN in min and max.
#pragma once

#include "attngen/simd.hpp"

#ifndef ATTNGEN_FAST_MATH
#define ATTNGEN_FAST_MATH 0
#endif

namespace attngen::math {

inline constexpr bool kFastMath = ATTNGEN_FAST_MATH;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNaN = __builtin_nanf("");

// a · b + c with one rounding.
template <class F>
ATTNGEN_FN F fma(F a, F b, F c) {
  if constexpr (!simd::Vector<F>) {
    return __builtin_fmaf(a, b, c);
  } else {
#if defined(__AVX512F__)
    if constexpr (simd::kLanes<F> == 16) return _mm512_fmadd_ps(a, b, c);
#endif
#if defined(__FMA__)
    if constexpr (simd::kLanes<F> == 8) return _mm256_fmadd_ps(a, b, c);
    if constexpr (simd::kLanes<F> == 4) return _mm_fmadd_ps(a, b, c);
#endif
    F sum;
    for (int lane = 0; lane < simd::kLanes<F>; ++lane) sum[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return sum;
  }
}

namespace detail {

// The same value, but no longer a product that an addition could be contracted with.
template <class F>
ATTNGEN_FN F rounded(F x) {
#if defined(__CUDA_ARCH__)
  asm("" : "+f"(x));
#elif defined(__AVX512F__)
  asm("" : "+v"(x));
#else
  asm("" : "+x"(x));
#endif
  return x;
}

}  // namespace detail

// c0 + x · (c1 + x · (…)).
template <class F>
ATTNGEN_FN F polynomial(F, float c0) {
  return simd::broadcast<F>(c0);
}
template <class F, class... C>
ATTNGEN_FN F polynomial(F x, float c0, C... rest) {
  return fma(polynomial(x, rest...), x, simd::broadcast<F>(c0));
}

// Signs and order ------------------------------------------------------------------------------------

template <class V>
ATTNGEN_FN V abs(V x) {
  if constexpr (std::is_same_v<simd::Element<V>, float>) {
    return simd::bit_cast<V>(simd::bit_cast<simd::Int<V>>(x) & 0x7fffffff);
  } else {
    using U = simd::Rebind<V, std::make_unsigned_t<simd::Element<V>>>;
    return select(narrow(x < 0), simd::bit_cast<V>(U{} - simd::bit_cast<U>(x)), x);
  }
}

// The magnitude of `x` under the sign of `sign`.
template <class F>
ATTNGEN_FN F copysign(F x, F sign) {
  const auto bits = simd::bit_cast<simd::Int<F>>(sign) & static_cast<std::int32_t>(0x80000000u);
  return simd::bit_cast<F>(simd::bit_cast<simd::Int<F>>(abs(x)) | bits);
}

// -1, 0 or 1; of NaN, 0.
template <class V>
ATTNGEN_FN V sign(V x) {
  using T = simd::Element<V>;
  return select(narrow(x > T{0}), simd::broadcast<V>(T{1}), select(narrow(x < T{0}), static_cast<T>(-1), V{}));
}

// Of a number and a NaN, the number; of equal ones, the first.
template <class A, class B>
ATTNGEN_FN auto min(A a, B b) {
  using V = simd::Widest<A, B>;
  const V x = simd::broadcast<V>(a), y = simd::broadcast<V>(b);
  const V least = select(narrow(y < x), y, x);
  if constexpr (std::is_same_v<simd::Element<V>, float>) {
    return select(x != x, y, least);
  } else {
    return least;
  }
}

template <class A, class B>
ATTNGEN_FN auto max(A a, B b) {
  using V = simd::Widest<A, B>;
  const V x = simd::broadcast<V>(a), y = simd::broadcast<V>(b);
  const V most = select(narrow(y > x), y, x);
  if constexpr (std::is_same_v<simd::Element<V>, float>) {
    return select(x != x, y, most);
  } else {
    return most;
  }
}

template <class X, class A, class B>
ATTNGEN_FN auto clamp(X x, A low, B high) {
  return min(max(x, low), high);
}

// Integers -------------------------------------------------------------------------------------------

namespace detail {

template <class V>
using Unsigned = simd::Rebind<V, std::make_unsigned_t<simd::Element<V>>>;

template <class V>
ATTNGEN_FN Unsigned<V> bits(V x) {
  return simd::bit_cast<Unsigned<V>>(x);
}

}  // namespace detail

template <class A, class B>
ATTNGEN_FN auto wrap_add(A a, B b) {
  using V = simd::Widest<A, B>;
  return simd::bit_cast<V>(detail::bits(simd::broadcast<V>(a)) + detail::bits(simd::broadcast<V>(b)));
}

template <class A, class B>
ATTNGEN_FN auto wrap_sub(A a, B b) {
  using V = simd::Widest<A, B>;
  return simd::bit_cast<V>(detail::bits(simd::broadcast<V>(a)) - detail::bits(simd::broadcast<V>(b)));
}

template <class A, class B>
ATTNGEN_FN auto wrap_mul(A a, B b) {
  using V = simd::Widest<A, B>;
  return simd::bit_cast<V>(detail::bits(simd::broadcast<V>(a)) * detail::bits(simd::broadcast<V>(b)));
}

template <class V>
ATTNGEN_FN V wrap_neg(V x) {
  return wrap_sub(V{}, x);
}

// Counts are taken modulo the width.
template <class A, class B>
ATTNGEN_FN auto shift_left(A a, B count) {
  using V = simd::Widest<A, B>;
  constexpr int kMask = 8 * sizeof(simd::Element<V>) - 1;
  return simd::bit_cast<V>(detail::bits(simd::broadcast<V>(a)) << (detail::bits(simd::broadcast<V>(count)) & kMask));
}

template <class A, class B>
ATTNGEN_FN auto shift_right(A a, B count) {
  using V = simd::Widest<A, B>;
  constexpr int kMask = 8 * sizeof(simd::Element<V>) - 1;
  return simd::broadcast<V>(a) >> (simd::broadcast<V>(count) & kMask);
}

namespace detail {

template <class T>
ATTNGEN_FN T floor_div_scalar(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return wrap_neg(a);  // the one quotient that overflows
  const T quotient = a / b;
  return quotient - static_cast<T>(quotient * b != a && (a < 0) != (b < 0));
}

#if !defined(__CUDACC__)
// Of i32 lanes, exact: two 32-bit integers' quotient is never closer to a whole number than a double resolves.
template <simd::Vector V>
ATTNGEN_FN V floor_div_i32(V a, V b) {
  using Double = simd::Rebind<V, double>;
  const V divisor = select(b == 0, V{} + 1, b);
  const Double exact = simd::convert<double>(a) / simd::convert<double>(divisor);
  const V truncated = simd::convert<std::int32_t>(exact);
  const V product = truncated * divisor;
  const auto below = (product != a) & ((a ^ divisor) < 0);
  // INT_MIN / -1 converts to INT_MIN, as wrapping wants.
  return select(b == 0, V{}, truncated + below);
}
#endif

}  // namespace detail

// Rounds towards -inf; by zero gives 0.
template <class A, class B>
ATTNGEN_FN auto floor_div(A a, B b) {
  using V = simd::Widest<A, B>;
  using T = simd::Element<V>;
  if constexpr (!simd::Vector<V>) {
    return detail::floor_div_scalar<T>(a, b);
  } else {
#if !defined(__CUDACC__)
    if constexpr (!simd::Vector<B>) {
      if (__builtin_constant_p(b > 0 && (b & (b - 1)) == 0) && b > 0 && (b & (b - 1)) == 0) {
        return a >> __builtin_ctzll(static_cast<unsigned long long>(b));
      }
    }
    const V x = simd::broadcast<V>(a), y = simd::broadcast<V>(b);
    if constexpr (sizeof(T) == 4) {
      return detail::floor_div_i32(x, y);
    } else {
      V quotient;
      for (int lane = 0; lane < simd::kLanes<V>; ++lane) quotient[lane] = detail::floor_div_scalar<T>(x[lane], y[lane]);
      return quotient;
    }
#endif
  }
}

// The rest of floor_div, which has the divisor's sign; by zero gives 0.
template <class A, class B>
ATTNGEN_FN auto floor_mod(A a, B b) {
  using V = simd::Widest<A, B>;
  const V rest = wrap_sub(simd::broadcast<V>(a), wrap_mul(floor_div(a, b), b));
  return select(narrow(simd::broadcast<V>(b) == 0), V{}, rest);
}

// Casts ----------------------------------------------------------------------------------------------

template <class V>
ATTNGEN_FN simd::Float<V> to_f32(V x) {
  return simd::convert<float>(x);
}

namespace detail {

// Truncates; what doesn't fit becomes the nearest that does, NaN becomes 0.
template <class T, class F>
ATTNGEN_FN simd::Rebind<F, T> saturate(F x) {
  constexpr float kBound = sizeof(T) == 4 ? 0x1p31f : 0x1p63f;
  constexpr T kLeast = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  const auto whole = simd::convert<T>(select(abs(x) < kBound, x, F{}));
  return select(x >= kBound, static_cast<T>(~kLeast), select(x <= -kBound, kLeast, whole));
}

}  // namespace detail

// Saturates a float and wraps an i64.
template <class V>
ATTNGEN_FN simd::Int<V> to_i32(V x) {
  if constexpr (!std::is_same_v<simd::Element<V>, float>) {
    return simd::convert<std::int32_t>(x);
  } else {
    return detail::saturate<std::int32_t>(x);
  }
}

template <class V>
ATTNGEN_FN simd::Long<V> to_i64(V x) {
  if constexpr (!std::is_same_v<simd::Element<V>, float>) {
    return simd::convert<std::int64_t>(x);
  } else {
    return detail::saturate<std::int64_t>(x);
  }
}

}  // namespace attngen::math
