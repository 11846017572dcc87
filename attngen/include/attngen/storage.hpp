// Storage types narrower than a float, and their conversions: exact one way, round to nearest even the other.
//
// Out of range, e4m3 (which has no infinity) saturates and the others become infinite.
#pragma once

#include "attngen/simd.hpp"

namespace attngen {

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};
struct e4m3 {
  std::uint8_t bits;
};
struct e5m2 {
  std::uint8_t bits;
};

namespace detail {

template <class F>
using Bits = simd::Rebind<F, std::uint32_t>;

template <class F>
ATTNGEN_FN Bits<F> float_bits(F x) {
  return simd::bit_cast<Bits<F>>(x);
}

// bf16 ---------------------------------------------------------------------------------------------

template <class F>
ATTNGEN_FN F decode(bf16, Bits<F> bits) {
  return simd::bit_cast<F>(bits << 16);
}

template <class F>
ATTNGEN_FN Bits<F> encode(bf16, F x) {
  const Bits<F> bits = float_bits(x);
  const Bits<F> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits<F> quiet = (bits >> 16) | 0x40u;
  return select(x != x, quiet, rounded);
}

// e4m3 and e5m2 and f16 share one scheme: `kMantissa` bits of fraction, exponents biased by `kBias`.

template <int kMantissa, int kBias, class F>
ATTNGEN_FN F decode_magnitude(Bits<F> magnitude) {
  const Bits<F> normal = (magnitude << (23 - kMantissa)) + ((127u - kBias) << 23);
  const F unit = simd::bit_cast<F>(simd::broadcast<Bits<F>>((127u + 1u - kBias - kMantissa) << 23));
  const F subnormal = simd::convert<float>(simd::bit_cast<simd::Int<F>>(magnitude)) * unit;
  return select(simd::bit_cast<simd::Int<F>>(magnitude) < (1 << kMantissa), subnormal, simd::bit_cast<F>(normal));
}

// Rounds the magnitude; the result may lie above the largest finite code, by at most one step for in-range input.
template <int kMantissa, int kBias, class F>
ATTNGEN_FN Bits<F> encode_magnitude(Bits<F> magnitude) {
  constexpr int kShift = 23 - kMantissa;
  const Bits<F> odd = (magnitude >> kShift) & 1u;
  const Bits<F> normal = (magnitude - ((127u - kBias) << 23) + ((1u << (kShift - 1)) - 1u) + odd) >> kShift;
  // Adding a float whose last place is the smallest subnormal makes the adder round there.
  constexpr std::uint32_t kMagic = (127u + 1u - kBias - kMantissa + 23u) << 23;
  const F magic = simd::bit_cast<F>(simd::broadcast<Bits<F>>(kMagic));
  const Bits<F> subnormal = float_bits<F>(simd::bit_cast<F>(magnitude) + magic) - kMagic;
  return select(simd::bit_cast<simd::Int<F>>(magnitude) < static_cast<std::int32_t>((128u - kBias) << 23), subnormal, normal);
}

template <class F>
ATTNGEN_FN F with_sign(F magnitude, Bits<F> sign_bit) {
  return simd::bit_cast<F>(float_bits(magnitude) | sign_bit);
}

template <class F>
ATTNGEN_FN F decode(e4m3, Bits<F> bits) {
  const Bits<F> magnitude = bits & 0x7fu;
  const F finite = decode_magnitude<3, 7, F>(magnitude);
  return with_sign<F>(select(magnitude == 0x7fu, __builtin_nanf(""), finite), (bits & 0x80u) << 24);
}

template <class F>
ATTNGEN_FN Bits<F> encode(e4m3, F x) {
  const Bits<F> bits = float_bits(x);
  const Bits<F> magnitude = bits & 0x7fffffffu;
  const Bits<F> code = encode_magnitude<3, 7, F>(magnitude);
  const simd::Int<F> order = simd::bit_cast<simd::Int<F>>(magnitude);
  const Bits<F> finite = select(order > 0x43e00000, 0x7eu, code);  // 448, the largest
  return select(order > 0x7f800000, 0x7fu, finite) | ((bits >> 24) & 0x80u);
}

template <int kMantissa, int kBias, std::uint32_t kInfinity, class F>
ATTNGEN_FN Bits<F> encode_ieee(Bits<F> magnitude) {
  const Bits<F> code = encode_magnitude<kMantissa, kBias, F>(magnitude);
  const simd::Int<F> order = simd::bit_cast<simd::Int<F>>(magnitude);
  const auto overflow = order >= static_cast<std::int32_t>((127u + kBias + 1u) << 23);
  const Bits<F> finite = select(overflow, kInfinity, code);
  return select(order > 0x7f800000, kInfinity | (1u << (kMantissa - 1)), finite);
}

template <int kMantissa, int kBias, std::uint32_t kInfinity, class F>
ATTNGEN_FN F decode_ieee(Bits<F> magnitude) {
  const F finite = decode_magnitude<kMantissa, kBias, F>(magnitude);
  const F special = simd::bit_cast<F>((magnitude << (23 - kMantissa)) | 0x7f800000u);
  return select(simd::bit_cast<simd::Int<F>>(magnitude) >= static_cast<std::int32_t>(kInfinity), special, finite);
}

template <class F>
ATTNGEN_FN F decode(e5m2, Bits<F> bits) {
  return with_sign<F>(decode_ieee<2, 15, 0x7cu, F>(bits & 0x7fu), (bits & 0x80u) << 24);
}

template <class F>
ATTNGEN_FN Bits<F> encode(e5m2, F x) {
  const Bits<F> bits = float_bits(x);
  return encode_ieee<2, 15, 0x7cu, F>(bits & 0x7fffffffu) | ((bits >> 24) & 0x80u);
}

// f16: one instruction where there is one ------------------------------------------------------------

template <class F>
ATTNGEN_FN F decode(f16, Bits<F> bits) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<std::uint16_t>(bits)));
  return x;
#else
#if defined(__F16C__)
  if constexpr (!simd::Vector<F>) return _cvtsh_ss(static_cast<std::uint16_t>(bits));
#endif
  return with_sign<F>(decode_ieee<10, 15, 0x7c00u, F>(bits & 0x7fffu), (bits & 0x8000u) << 16);
#endif
}

template <class F>
ATTNGEN_FN Bits<F> encode(f16, F x) {
#if defined(__CUDA_ARCH__)
  std::uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
  return code;
#else
#if defined(__F16C__)
  if constexpr (!simd::Vector<F>) return static_cast<std::uint16_t>(_cvtss_sh(x, 0));
#endif
  const Bits<F> bits = float_bits(x);
  return encode_ieee<10, 15, 0x7c00u, F>(bits & 0x7fffffffu) | ((bits >> 16) & 0x8000u);
#endif
}

template <class T>
concept Narrow = std::is_same_v<T, f16> || std::is_same_v<T, bf16> || std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>;

template <class T>
using Code = decltype(T::bits);

}  // namespace detail

// Scalars ------------------------------------------------------------------------------------------

ATTNGEN_FN float to_float(float x) { return x; }

template <detail::Narrow T>
ATTNGEN_FN float to_float(T x) {
  return detail::decode<float>(T{}, x.bits);
}

template <class T>
ATTNGEN_FN T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return T{static_cast<detail::Code<T>>(detail::encode<float>(T{}, x))};
  }
}

// Vectors: as many elements as V has lanes, at any address -------------------------------------------

template <class V, class T>
ATTNGEN_FN V load_f32(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return simd::load<V>(from);
  } else if constexpr (!simd::Vector<V>) {
    return to_float(*from);
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16> && simd::kLanes<V> == 16) {
      return simd::bit_cast<V>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    }
#endif
#if defined(__F16C__)
    if constexpr (std::is_same_v<T, f16> && simd::kLanes<V> == 8) {
      return simd::bit_cast<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }
#endif
    using Codes = simd::Rebind<V, detail::Code<T>>;
    Codes codes;
    memcpy(&codes, from, sizeof(codes));
    return detail::decode<V>(T{}, simd::convert<std::uint32_t>(codes));
#endif
  }
}

template <class T, class V>
ATTNGEN_FN void store_f32(T* to, V v) {
  if constexpr (std::is_same_v<T, float>) {
    simd::store<V>(to, v);
  } else if constexpr (!simd::Vector<V>) {
    *to = from_float<T>(v);
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16> && simd::kLanes<V> == 16) {
      const __m256i codes = _mm512_cvtps_ph(simd::bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes);
      return;
    }
#endif
#if defined(__F16C__)
    if constexpr (std::is_same_v<T, f16> && simd::kLanes<V> == 8) {
      const __m128i codes = _mm256_cvtps_ph(simd::bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), codes);
      return;
    }
#endif
    const auto codes = simd::convert<detail::Code<T>>(detail::encode<V>(T{}, v));
    memcpy(to, &codes, sizeof(codes));
#endif
  }
}

}  // namespace attngen
