// Scatters new keys and values into a pool, keys through the variant's key stage where the pool holds key(k).
//
// Traits: kHeadDim, kHeadDimV, kWarps, Pool.  A warp takes as many vectors at once as VectorLayout puts into it.
#pragma once

#include "attngen/append.hpp"
#include "attngen/fa2/lanes.hpp"
#include "attngen/functor.hpp"

namespace attngen::fa2 {

// The functor of a pool that holds keys as they are.
struct PlainKeys {
  static constexpr bool kHasKey = false, kHasTables = false, kUsesLaneAt = false;
  struct Tables {};
  ATTNGEN_DEVICE PlainKeys(const Word*, Sizes) {}
};

ATTNGEN_DEVICE float load_token(const void* from, TokenType type, std::int64_t at) {
  switch (type) {
    case TokenType::kF32: return static_cast<const float*>(from)[at];
    case TokenType::kF16: return to_float(static_cast<const f16*>(from)[at]);
    case TokenType::kBf16: return to_float(static_cast<const bf16*>(from)[at]);
    case TokenType::kE4m3: return to_float(static_cast<const e4m3*>(from)[at]);
    default: return to_float(static_cast<const e5m2*>(from)[at]);
  }
}

// fp8 saturates at its largest finite value, also from an infinity; NaN stays NaN.
template <class Pool>
ATTNGEN_DEVICE Pool to_pool(float x) {
  if constexpr (sizeof(Pool) == 1) {
    constexpr float kLargest = std::is_same_v<Pool, e4m3> ? 448.0f : 57344.0f;
    x = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
  }
  return from_float<Pool>(x);
}

template <class Traits, class Fn>
class Appender {
  using Pool = typename Traits::Pool;

 public:
  ATTNGEN_DEVICE Appender(const AppendParams& params, const Fn& fn, float* room)
      : params_(params), fn_(fn), room_(room) {}

  ATTNGEN_DEVICE void keys() const {
    scatter<Traits::kHeadDim>(params_.k, params_.k_type, params_.k_token, params_.k_head, params_.k_pool,
                              params_.k_strides, [&](auto& x, std::int32_t token, std::int32_t head, std::int32_t slot) {
      if constexpr (Fn::kHasKey) {
        using L = VectorLayout<Traits::kHeadDim>;
        WarpLanes<Traits::kHeadDim, Fn::kUsesLaneAt> lanes(x, room_ + L::row() * L::kRoom);
        const std::int32_t kv = slot < 0 ? 0 : params_.positions[token];
        fn_.key(lanes, fn_.template column<float, std::int32_t>({kv, slot < 0 ? 0 : slot, head}));
      }
    });
  }

  ATTNGEN_DEVICE void values() const {
    scatter<Traits::kHeadDimV>(params_.v, params_.v_type, params_.v_token, params_.v_head, params_.v_pool,
                               params_.v_strides, [](auto&, std::int32_t, std::int32_t, std::int32_t) {});
  }

 private:
  // Every lane of a warp takes every step, since a stage sums over lanes.
  template <int kCount, class Stage>
  ATTNGEN_DEVICE void scatter(const void* from, TokenType type, std::int64_t by_token, std::int64_t by_head, void* pool,
                              const Strides& strides, Stage&& stage) const {
    using L = VectorLayout<kCount>;
    const std::int64_t rows = std::int64_t{params_.tokens} * params_.num_kv_heads;
    const std::int64_t warp = std::int64_t{blockIdx.x} * Traits::kWarps + threadIdx.x / 32;
    const std::int64_t step = std::int64_t{gridDim.x} * Traits::kWarps * L::kRows;
    for (std::int64_t first = warp * L::kRows; first < rows; first += step) {
      const std::int64_t row = first + L::row();
      const bool exists = row < rows;
      const auto token = static_cast<std::int32_t>(exists ? row / params_.num_kv_heads : 0);
      const auto head = static_cast<std::int32_t>(exists ? row % params_.num_kv_heads : 0);
      std::int32_t slot = exists ? params_.slots[token] : -1;
      if (slot >= params_.num_slots) slot = -1;
      Chunks<kCount> x;
      const std::int64_t source = token * by_token + head * by_head;
      each<kCount>([&](int own, int half, int i, int d) {
        x[own][half][i] = slot >= 0 && d >= 0 ? load_token(from, type, source + d) : 0.0f;
      });
      stage(x, token, head, slot);
      if (slot < 0) continue;
      Pool* to = static_cast<Pool*>(pool) + slot / params_.block_size * strides.block +
                 slot % params_.block_size * strides.token + head * strides.head;
      each<kCount>([&](int own, int half, int i, int d) {
        if (d >= 0) to[d] = to_pool<Pool>(x[own][half][i]);
      });
    }
  }

  // fn(own, half, i, d) for the lane's share of a vector; d is -1 where it doesn't exist.
  template <int kCount, class Each>
  ATTNGEN_DEVICE static void each(Each&& fn) {
    using L = VectorLayout<kCount>;
#pragma unroll
    for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) fn(own, half, i, L::exists(own, half) ? L::chunk(own, half) * 8 + i : -1);
  }

  const AppendParams& params_;
  const Fn& fn_;
  float* room_;
};

template <class Traits, class Fn, int kWords>
ATTNGEN_DEVICE void append(const AppendLaunch<kWords>& launch) {
  using L = VectorLayout<Traits::kHeadDim>;
  constexpr bool kRoom = Fn::kHasKey && (Fn::kUsesLaneAt || Traits::kHeadDim % 16 != 0);
  __shared__ float room[kRoom ? Traits::kWarps : 1][kRoom ? L::kRows * L::kRoom : 1];
  const AppendParams& params = launch.params;
  Fn fn(launch.words,
        {Traits::kHeadDim, Traits::kHeadDimV, params.num_qo_heads, params.num_kv_heads, params.group});
  if constexpr (Fn::kHasTables) {
    __shared__ typename Fn::Tables tables;
    fn.fill(tables, threadIdx.x, 32 * Traits::kWarps);
    __syncthreads();
    fn.derive(tables, threadIdx.x, 32 * Traits::kWarps);
    __syncthreads();
    fn.tables = &tables;
  }
  const Appender<Traits, Fn> appender(params, fn, room[kRoom ? threadIdx.x / 32 : 0]);
  appender.values();
  appender.keys();
}

}  // namespace attngen::fa2
