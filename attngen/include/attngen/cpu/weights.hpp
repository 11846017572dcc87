// From dot products to weights: the variant's logits, the mask, and a running softmax over the keys of a tile.
#pragma once

#include <limits>

#include "attngen/cpu/mask.hpp"
#include "attngen/cpu/stage.hpp"
#include "attngen/simd.hpp"

namespace attngen::cpu {

// 2^x to 2 ulp for x ≤ 127, 0 below -126, NaN for NaN; a minimax polynomial on [-1/2, 1/2].
template <class F>
ATTNGEN_FN F exp2_fraction(F f) {
  F p = f * 0.001326472731307149f + 0.009671512991189957f;
  p = p * f + 0.05550733581185341f;
  p = p * f + 0.24022242426872253f;
  p = p * f + 0.6931470036506653f;
  return p * f + 1.0f;
}

template <class F>
ATTNGEN_FN F exp2_weight(F x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(F) == 64) {
    const __m512 lanes = simd::bit_cast<__m512>(x);
    const __m512 whole = _mm512_roundscale_ps(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 p = simd::bit_cast<__m512>(exp2_fraction(simd::bit_cast<F>(lanes - whole)));
    const __mmask16 normal = _mm512_cmp_ps_mask(lanes, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return simd::bit_cast<F>(_mm512_maskz_scalef_ps(normal, p, whole));
  }
#endif
  using I = simd::Int<F>;
  const F magic = simd::broadcast<F>(12582912.0f);  // 1.5 · 2^23: the sum's low bits are the rounded x
  const F bounded = select(x < -126.0f, -126.0f, x);
  const F shifted = bounded + magic;
  const F p = exp2_fraction(bounded - (shifted - magic));
  const I power = (simd::bit_cast<I>(shifted) << 23) + 0x3f800000;  // a product below, so that NaN stays NaN
  return select(x < -126.0f, 0.0f, p * simd::bit_cast<F>(power));
}

// A weight in the engine's storage, rounded to the operand type.
template <class S, class F>
ATTNGEN_FN void store_weight(typename S::Element* to, F weight) {
  if constexpr (!S::kTiles) {
    simd::store<F>(to, round_to<typename S::Operand>(weight));
  } else {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh(simd::bit_cast<__m512>(weight));  // flushes subnormals
    std::memcpy(to, &rounded, sizeof(rounded));
#else
    store_f32<bf16>(to, weight);
#endif
  }
}

// The softmax state of a row: weights so far are exp2(scale_log2 · logit + shift), and `sum` is theirs.  `top` is the
// largest logit seen; it starts so low that the first real one replaces it, without a test for "none yet".
struct RowState {
  float top, shift, sum;
};

inline constexpr float kLowest = -1e30f;

// Small logits need no maximum, if weights aren't rounded: a row with one key, whose weight would be 1 and exact, would
// otherwise carry the rounding of a weight that is anything.
template <class S, class Fn>
inline constexpr bool kFixedReference = Fn::kLogitBound >= 0 && std::is_same_v<typename S::Operand, float>;

template <class S, class Fn>
RowState fresh_row(const Fn& fn) {
  if constexpr (kFixedReference<S, Fn>) return {0.0f, 0.0f, 0.0f};
  return {kLowest, -kLowest * fn.scale_log2, 0.0f};
}

// How a pass over one row of scores reads and writes.
template <class S, class Fn, bool kMasked>
struct RowPass {
  using F = simd::f32<S::kWidth>;
  using I = simd::i32<S::kWidth>;
  using Column = typename Fn::template Column<F, I>;
  static constexpr int W = S::kWidth;

  const Fn& fn;
  const typename Fn::Row& row;
  const Column* columns;
  const Bits* allowed;
  int begin, end;
  float* scores;
  typename S::Element* weights;

  ATTNGEN_FN F logits(int v, float masked) const {
    const F value = fn.logits(simd::load<F>(scores + v * W), row, columns[v]);
    if constexpr (kMasked) return select(from_bits<I>(allowed[v]), value, masked);
    return value;
  }

  // A masked key's value_scale may be NaN; its weight is 0 all the same.
  ATTNGEN_FN void put(int v, F weight) const {
    if constexpr (Fn::kHasValueScale) {
      weight *= fn.value_scale(columns[v]);
      if constexpr (kMasked) weight = select(from_bits<I>(allowed[v]), weight, 0.0f);
    }
    store_weight<S>(weights + v * W, weight);
  }

  // Softmax off: the weight is the logit.
  void plain() const {
    for (int v = begin; v < end; ++v) put(v, logits(v, 0.0f));
  }

  // Logits are known to be small, so that no maximum is needed; masked ones get weight 0.
  void bounded(RowState& state) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    F sum{};
    for (int v = begin; v < end; ++v) {
      const F weight = exp2_weight(logits(v, kNone) * fn.scale_log2);
      sum += weight;
      put(v, weight);
    }
    state.sum += simd::reduce_add(sum);
  }

  // The logits, kept in `scores`, and the new maximum; returns the factor that brings earlier sums to it.
  float raise(RowState& state) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    F top[2] = {simd::broadcast<F>(state.top), simd::broadcast<F>(state.top)};  // two chains, since each step waits
    for (int v = begin; v < end; ++v) {
      const F value = logits(v, kNone);
      simd::store<F>(scores + v * W, value);
      F& so_far = top[v & 1];
      so_far = select(value > so_far, value, so_far);
    }
    const float before = state.shift;
    state.top = simd::reduce_max<F>(select(top[0] > top[1], top[0], top[1]));
    state.shift = -state.top * fn.scale_log2;
    return state.shift == before ? 1.0f : exp2_weight(state.shift - before);
  }

  // The weights of the logits that `raise` left.
  void exponentiate(RowState& state, float factor) const {
    F sum{};
    const float scale = fn.scale_log2, shift = state.shift;
    for (int v = begin; v < end; ++v) {
      const F weight = exp2_weight(simd::load<F>(scores + v * W) * scale + shift);
      sum += weight;
      put(v, weight);
    }
    state.sum = state.sum * factor + simd::reduce_add(sum);
  }
};

}  // namespace attngen::cpu
