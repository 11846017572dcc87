#include "pool.hpp"

#include <algorithm>
#include <array>

namespace attngen::host {
namespace {

constexpr std::size_t kMostAxes = 5;  // of any tensor that is checked here
constexpr std::int64_t kRowAlignment = 16;  // bytes of one asynchronous copy to shared memory

std::string wanted(Type type, const Axis* axes, std::size_t count, DLDevice device) {
  std::string text = std::string(type_row(type).name) + "[";
  for (std::size_t i = 0; i < count; ++i) {
    if (i) text += ", ";
    if (axes[i].name) text += axes[i].name;
    if (axes[i].size < 0) continue;
    if (axes[i].name) text += axes[i].at_least ? " >= " : " = ";
    text += std::to_string(axes[i].size);
  }
  return text + "] on " + device_name(device);
}

bool fits(const DLTensor& tensor, const Axis* axes, std::size_t count) {
  if (tensor.ndim != static_cast<int>(count)) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (axes[i].size < 0) continue;
    if (axes[i].at_least ? tensor.shape[i] < axes[i].size : tensor.shape[i] != axes[i].size) return false;
  }
  return true;
}

void check(const char* what, const DLTensor& tensor, Type type, const Axis* axes, std::size_t count,
           bool free_strides, DLDevice device) {
  if (!same_device(tensor.device, device) || !same_type(tensor.dtype, type) || !fits(tensor, axes, count))
    refuse(std::string(what) + " is " + describe(tensor, device) + "; it needs " + wanted(type, axes, count, device));
  if (!free_strides && stride(tensor, tensor.ndim - 1) != 1)
    refuse(std::string(what) + " has stride " + std::to_string(stride(tensor, tensor.ndim - 1)) +
           " along its last dimension; it needs 1 (`.contiguous()` makes it so)");
}

// One of K and V, as an axis-free tensor: `skip` is the index of a K/V axis, or -1.
struct Half {
  void* memory;
  Strides strides;
  std::int64_t blocks;
};

Half view_half(const PoolSpec& spec, const char* what, const DLTensor& tensor, std::int64_t lanes, int part,
               bool both) {
  const bool flat = tensor.ndim == 3 + (both ? 1 : 0) && spec.may_be_flat, blocked = !flat && spec.may_be_blocked;
  const Axis heads{"Hk", spec.heads}, tokens{nullptr, spec.block_size};
  std::array<Axis, kMostAxes> axes;
  std::size_t count = 0;
  axes[count++] = {blocked ? "blocks" : "tokens", -1};
  if (both) axes[count++] = {"K and V", 2};
  if (blocked && !spec.heads_first) axes[count++] = tokens;
  axes[count++] = heads;
  if (blocked && spec.heads_first) axes[count++] = tokens;
  axes[count++] = {both || part == 0 ? "D" : "Dv", lanes};
  check(what, tensor, spec.type, axes.data(), count, false, spec.device);
  const int next = both ? 2 : 1;
  Half half;
  half.memory = data(tensor) + (both ? part * stride(tensor, 1) * type_row(spec.type).bytes : 0);
  if (flat) {
    half.strides = {stride(tensor, 0) * spec.block_size, stride(tensor, 0), stride(tensor, next)};
    half.blocks = tensor.shape[0] / spec.block_size;
  } else {
    const int token = spec.heads_first ? next + 1 : next, head = spec.heads_first ? next : next + 1;
    half.strides = {stride(tensor, 0), stride(tensor, token), stride(tensor, head)};
    half.blocks = tensor.shape[0];
  }
  return half;
}

}  // namespace

void check_tensor(const char* what, const DLTensor& tensor, Type type, std::initializer_list<Axis> axes,
                  bool free_strides, DLDevice device) {
  check(what, tensor, type, axes.begin(), axes.size(), free_strides, device);
}

void check_aligned(const char* what, const DLTensor& tensor) {
  const std::int64_t bytes = (tensor.dtype.bits + 7) / 8;
  if (tensor.shape[tensor.ndim - 1] == 0) return;
  if (const auto address = reinterpret_cast<std::uintptr_t>(data(tensor)); address % kRowAlignment != 0)
    refuse(std::string(what) + " starts " + std::to_string(address % kRowAlignment) +
           " bytes past a multiple of 16; a GPU needs rows that start at multiples of 16 bytes");
  for (int axis = 0; axis + 1 < tensor.ndim; ++axis)
    if (tensor.shape[axis] > 1 && stride(tensor, axis) * bytes % kRowAlignment != 0)
      refuse(std::string(what) + " is " + describe(tensor, tensor.device) + " with stride " + std::to_string(stride(tensor, axis)) +
             " along dimension " + std::to_string(axis) + ", which is " +
             std::to_string(stride(tensor, axis) * bytes) + " bytes; a GPU needs a multiple of 16 bytes");
}

void check_writable(const char* what, const DLTensor& tensor) {
  std::array<int, kMostAxes> axes;
  int count = 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] == 0) return;
    if (tensor.shape[axis] > 1) axes[count++] = axis;
  }
  std::sort(axes.begin(), axes.begin() + count, [&](int a, int b) { return stride(tensor, a) < stride(tensor, b); });
  std::int64_t reach = 0;  // of all steps along the axes so far, in elements
  for (int i = 0; i < count; ++i) {
    const int axis = axes[i];
    if (stride(tensor, axis) <= reach)
      refuse(std::string(what) + " is " + describe(tensor) + " with stride " + std::to_string(stride(tensor, axis)) +
             " along dimension " + std::to_string(axis) + "; it needs memory of its own for every element");
    reach += (tensor.shape[axis] - 1) * stride(tensor, axis);
  }
}

PoolView view_pool(const PoolSpec& spec, const DLTensor& k, const DLTensor* v) {
  const bool both = v == nullptr;
  if (both && spec.head_dim != spec.head_dim_v)
    refuse("the pool is one tensor, but K has head_dim " + std::to_string(spec.head_dim) + " and V has " +
           std::to_string(spec.head_dim_v) + "; it needs to be a pair (k, v)");
  const char* names[2] = {both ? "the pool" : "the K pool", both ? "the pool" : "the V pool"};
  const Half first = view_half(spec, names[0], k, spec.head_dim, 0, both);
  const Half second = view_half(spec, names[1], both ? k : *v, spec.head_dim_v, 1, both);
  if (first.blocks != second.blocks)
    refuse("the K pool is " + describe(k) + " and the V pool is " + describe(both ? k : *v) +
           "; they need the same number of blocks");
  return {first.memory, second.memory, first.strides, second.strides, first.blocks, spec.block_size};
}

}  // namespace attngen::host
