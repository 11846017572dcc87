// What one launch of a GPU's append kernel gets: new tokens, and where in a pool they go.
#pragma once

#include "attngen/work.hpp"

namespace attngen {

// Types of the new tokens, as dtypes.STORAGE numbers its floats.
enum class TokenType : std::int32_t { kF32, kF16, kBf16, kE4m3, kE5m2 };

// Strides in elements.
struct AppendParams {
  const void* k;                 // [tokens, num_kv_heads, head_dim]
  const void* v;                 // [tokens, num_kv_heads, head_dim_v]
  void* k_pool;
  void* v_pool;
  const std::int32_t* slots;     // i32[tokens], rows of the pool; a token whose slot it doesn't have is left out
  const std::int32_t* positions; // i32[tokens], logical; nullptr where no key stage is applied
  std::int64_t k_token, k_head, v_token, v_head;
  Strides k_strides, v_strides;  // of the pool
  std::int64_t num_slots;
  std::int32_t tokens, block_size, num_qo_heads, num_kv_heads, group;
  TokenType k_type, v_type;
  std::int32_t reserved;
};

// The only parameter of kAppendSymbol(const __grid_constant__ AppendLaunch<kWords>); the functor's argument words, of
// which those that the key stage doesn't read are harmless zeros, follow.
template <int kWords>
struct AppendLaunch {
  AppendParams params;
  std::int64_t words[kWords];
};
inline constexpr const char* kAppendSymbol = "attngen_append";
inline constexpr std::int32_t kAppendRowsPerCta = 16;  // (token, head) pairs that a CTA is launched for

}  // namespace attngen
