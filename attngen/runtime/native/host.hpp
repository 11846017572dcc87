// What the parts of the host library share: how an argument is refused, tensors by name, storage types, open kernels.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <string>

#include "attngen/work.hpp"

namespace attngen::host {

// Raises ValueError in Python.
[[noreturn]] void refuse(const std::string& message);
// Raises RuntimeError in Python.
[[noreturn]] void fail(const std::string& message);

// Rows of attngen/dtypes.py, in its order.
enum class Type : int { kF32, kF16, kBf16, kE4m3, kE5m2, kI64, kI32, kI16, kI8, kU8, kBool };
inline constexpr int kNumTypes = 11;

struct TypeRow {
  const char* name;
  int bytes;
  DLDataType dlpack;
};
const TypeRow& type_row(Type type);
bool same_type(DLDataType a, Type b);

// "bf16[3, 8, 128]", as messages call a tensor.
std::string describe(const DLTensor& tensor);

// A loaded kernel; lives as long as the process.
struct Kernel {
  std::string path;
  CpuWorker worker;
  std::int64_t scratch_bytes;
  CpuTransformKeys transform_keys;  // nullptr where the variant has no key stage
};

template <class T = char>
T* data(const DLTensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

inline std::int64_t stride(const DLTensor& tensor, int axis) { return tensor.strides[axis]; }

}  // namespace attngen::host
