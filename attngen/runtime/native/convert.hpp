// Storage types to fp32 and back.  Rounds to nearest, ties to even.  f16 and bf16 overflow to infinity as IEEE says;
// the fp8 types saturate to their largest finite value, infinities included: a quantised cache has no use for those.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "host.hpp"

namespace attngen::host {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A small float: kExponent and kMantissa bits, codes above kLargest are infinities or NaN (kNaN is one).
template <class Code, int kExponent, int kMantissa, Code kLargest, Code kOverflow, Code kNaN>
struct Small {
  using Storage = Code;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr Code kSign = static_cast<Code>(1u << (kExponent + kMantissa));

  static float widen(Code code) {
    const std::uint32_t sign = code & kSign ? 0x80000000u : 0u;
    const std::uint32_t magnitude = code & static_cast<Code>(kSign - 1);
    if (magnitude > kLargest) {
      const bool infinite = kOverflow > kLargest && magnitude == kOverflow;
      return float_of(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
    }
    if (magnitude >> kMantissa == 0) {
      constexpr std::uint32_t kUnit = 128 - kBias - kMantissa;  // the exponent of the smallest subnormal
      const float value = static_cast<float>(magnitude) * float_of(kUnit << 23);
      return sign ? -value : value;
    }
    return float_of(sign | ((magnitude << (23 - kMantissa)) + (static_cast<std::uint32_t>(127 - kBias) << 23)));
  }

  static Code narrow(float value) {
    const std::uint32_t bits = bits_of(value);
    const Code sign = bits >> 31 ? kSign : Code{0};
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<Code>(sign | kNaN);
    std::uint32_t code;
    if (magnitude < static_cast<std::uint32_t>(128 - kBias) << 23) {  // a subnormal, or nothing
      code = static_cast<std::uint32_t>(
          std::nearbyint(float_of(magnitude) * float_of(static_cast<std::uint32_t>(126 + kBias + kMantissa) << 23)));
    } else {
      constexpr int kDrop = 23 - kMantissa;
      const std::uint32_t rounded = magnitude + ((1u << (kDrop - 1)) - 1) + (magnitude >> kDrop & 1);
      code = (rounded >> kDrop) - (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
    }
    return static_cast<Code>(sign | (code > kLargest ? kOverflow : static_cast<Code>(code)));
  }
};

struct Bf16 {
  using Storage = std::uint16_t;
  static float widen(std::uint16_t code) { return float_of(static_cast<std::uint32_t>(code) << 16); }
  static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::uint16_t>(nan ? 0x7fc0u : rounded);
  }
};

struct F32 {
  using Storage = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

using F16 = Small<std::uint16_t, 5, 10, 0x7bff, 0x7c00, 0x7e00>;
using E4m3 = Small<std::uint8_t, 4, 3, 0x7e, 0x7e, 0x7f>;
using E5m2 = Small<std::uint8_t, 5, 2, 0x7b, 0x7b, 0x7e>;

// Calls fn(format) with the format of a float type; false for the other types.
template <class Fn>
bool with_float(Type type, const Fn& fn) {
  switch (type) {
    case Type::kF32: fn(F32{}); return true;
    case Type::kF16: fn(F16{}); return true;
    case Type::kBf16: fn(Bf16{}); return true;
    case Type::kE4m3: fn(E4m3{}); return true;
    case Type::kE5m2: fn(E5m2{}); return true;
    default: return false;
  }
}

}  // namespace attngen::host
