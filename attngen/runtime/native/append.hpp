// Scatters new tokens into a pool of any layout and type, keys transformed by the variant where the pool wants that.
#pragma once

#include <cstdint>

#include "arguments.hpp"
#include "pool.hpp"

namespace attngen::host {

// Arrays of 32-bit integers on the host, as a request list gives them.
struct Requests {
  const std::int32_t* qo_indptr;
  const std::int32_t* kv_indptr;
  const std::int32_t* kv_indices;  // nullptr: kv_indptr counts blocks of the pool themselves
  const std::int32_t* kv_len;      // after appending
  std::int32_t batch;
  std::int64_t num_indices, num_tokens;
};

// The pool row and the logical position of every new token: the last q_len positions of each request's kv_len.
void map_slots(const Requests& requests, std::int64_t block_size, std::int32_t* slots, std::int32_t* positions);

struct AppendSpec {
  PoolSpec pool;
  const Kernel* kernel;  // nullptr: keys go in as they are
  std::int32_t num_qo_heads;
  int threads;
};

struct Tokens {
  const DLTensor* k;
  const DLTensor* v;
  Type k_type, v_type;
  const DLTensor* slots;      // i32[tokens]; a negative slot leaves its token out
  const DLTensor* positions;  // i32[tokens]; only read with a kernel
};

// The pool's view, after refusing tensors that don't fit it or each other; slots are looked at by the caller.
PoolView check_append(const AppendSpec& spec, const DLTensor& k_pool, const DLTensor* v_pool, const Tokens& tokens);

void append(const AppendSpec& spec, const DLTensor& k_pool, const DLTensor* v_pool, const Tokens& tokens,
            Arguments& arguments, const Value* values);

}  // namespace attngen::host
