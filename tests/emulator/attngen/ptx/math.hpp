// include/attngen/ptx/math.hpp without a GPU.
#pragma once

#include "attngen/ptx/memory.hpp"
#include "attngen/storage.hpp"

namespace attngen::ptx {

template <class T>
float half_of(std::uint32_t pair, int which) {
  return to_float(T{static_cast<std::uint16_t>(pair >> (16 * which))});
}

// Each lane finds its four sums from the fragments of all lanes.
template <class T>
[[gnu::noinline]] void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint64_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const unsigned place = emulated::exchange(words, 6, [](unsigned) {});
  const auto& all = emulated::warp().words[place];
  const int lane = static_cast<int>(emulated::lane());
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = 2 * (lane % 4) + e % 2;
    float sum = c[e];
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const auto left = static_cast<std::uint32_t>(all[row * 4 + pair][e / 2 + k / 8 * 2]);
      const auto right = static_cast<std::uint32_t>(all[column * 4 + pair][4 + k / 8]);
      sum += half_of<T>(left, k % 2) * half_of<T>(right, k % 2);
    }
    c[e] = sum;
  }
}

template <class T>
std::uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | std::uint32_t{from_float<T>(high).bits} << 16;
}

template <class T>
std::uint32_t add_zero_times(std::uint32_t x, std::uint32_t sum) {
  return pack<T>(half_of<T>(x, 0) * 0.0f + half_of<T>(sum, 0), half_of<T>(x, 1) * 0.0f + half_of<T>(sum, 1));
}

inline float exp2(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}

}  // namespace attngen::ptx
