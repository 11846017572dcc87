// Tensors checked against what a call needs, and K/V pools of any layout seen as blocks of tokens.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "host.hpp"

namespace attngen::host {

// A wanted dimension; a negative size is one that the tensor itself decides.
struct Axis {
  const char* name;  // nullptr: a plain number
  std::int64_t size;
  bool at_least = false;
};

// Refuses a tensor that isn't on the device, of this type and of this shape with a contiguous last axis (any strides
// where `free_strides`).  `what` names it: "argument `q`".
void check_tensor(const char* what, const DLTensor& tensor, Type type, std::initializer_list<Axis> axes,
                  bool free_strides = false, DLDevice device = kCpu);

// Refuses a tensor to be written in which two elements share memory: an axis must step over all that shorter steps reach.
void check_writable(const char* what, const DLTensor& tensor);

// Refuses a tensor whose rows (along the last axis) don't all start at multiples of 16 bytes, as a GPU loads them.
void check_aligned(const char* what, const DLTensor& tensor);

// How tensors become pools: [blocks, tokens, heads, lanes] (NHD), [blocks, heads, tokens, lanes] (HND), or, where a
// pool is flat, [tokens, heads, lanes].  One tensor for both K and V has an axis of size 2 after the first.
struct PoolSpec {
  std::int64_t block_size;
  bool heads_first;
  bool may_be_blocked;
  bool may_be_flat;
  Type type;
  std::int64_t heads, head_dim, head_dim_v;
  DLDevice device = kCpu;  // where it needs to be
};

struct PoolView {
  void* k;
  void* v;
  Strides k_strides, v_strides;
  std::int64_t blocks, block_size;
};

// The pool that `k` and `v`, or `k` alone, hold.
PoolView view_pool(const PoolSpec& spec, const DLTensor& k, const DLTensor* v);

}  // namespace attngen::host
