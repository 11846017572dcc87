// Brings rows of a pool into the form that the matrix engine reads: transformed by the variant's hook, rounded once to
// the operand type, padded with zeros.
#pragma once

#include <algorithm>
#include <cstring>

#include "attngen/cpu/shape.hpp"
#include "attngen/lanes.hpp"

namespace attngen::cpu {

struct NoHook {};

template <class T, class V>
ATTNGEN_FN V round_to(V v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    simd::Rebind<V, detail::Code<T>> codes;
    store_f32<T>(reinterpret_cast<T*>(&codes), v);
    return load_f32<V>(reinterpret_cast<const T*>(&codes));
  }
}

// to[0, kPadded) = from[0, kCount) as floats, then zeros; reads nothing behind from[kCount).
template <int W, int kCount, int kPadded, class T>
ATTNGEN_FN void widen(const T* from, float* to) {
  using F = simd::f32<W>;
  constexpr int kWhole = kCount / W * W;
  for (int i = 0; i < kWhole; i += W) simd::store<F>(to + i, load_f32<F>(from + i));
  if constexpr (kWhole < kPadded) {
    if constexpr (kWhole < kCount) {
      T tail[W] = {};
      std::copy(from + kWhole, from + kCount, tail);
      simd::store<F>(to + kWhole, load_f32<F>(tail));
    }
    std::fill(to + round_up(kCount, W), to + kPadded, 0.0f);
  }
}

// Rounds floats to the operand type, in the engine's storage; `to` may be `from`.
template <class S, int kPadded>
ATTNGEN_FN void narrow_row(const float* from, typename S::Element* to) {
  using F = simd::f32<S::kWidth>;
  for (int i = 0; i < kPadded; i += S::kWidth) {
    const F value = simd::load<F>(from + i);
    if constexpr (S::kTiles) {
      store_f32<bf16>(to + i, value);
    } else {
      simd::store<F>(to + i, round_to<typename S::Operand>(value));
    }
  }
}

// Runs a vector stage on kCount floats; what it leaves in the padding is wiped, since products run over it.
template <int W, int kCount, int kPadded, class Hook>
ATTNGEN_FN void transform(float* floats, const Hook& hook) {
  Lanes<W, kCount> lanes(floats);
  hook(lanes);
  std::fill(floats + kCount, floats + kPadded, 0.0f);
}

// The operand row of `from`: transformed, rounded, padded.  `floats` is room for kPadded of them.
template <class S, int kCount, int kPadded, class T, class Hook>
ATTNGEN_FN void stage(const T* from, typename S::Element* to, float* floats, const Hook& hook) {
  constexpr bool kHook = !std::is_same_v<Hook, NoHook>;
  constexpr bool kExact = std::is_same_v<T, typename S::Operand> || (sizeof(T) == 1 && !S::kTiles);
  if constexpr (!kHook && S::kTiles && std::is_same_v<T, bf16>) {
    std::memcpy(to, from, kCount * sizeof(bf16));
    std::memset(to + kCount, 0, (kPadded - kCount) * sizeof(bf16));
  } else if constexpr (!kHook && !S::kTiles && kExact) {
    widen<S::kWidth, kCount, kPadded>(from, to);
  } else {
    widen<S::kWidth, kCount, kPadded>(from, floats);
    if constexpr (kHook) transform<S::kWidth, kCount, kPadded>(floats, hook);
    narrow_row<S, kPadded>(floats, to);
  }
}

}  // namespace attngen::cpu
