// What the parts of the host library share: how an argument is refused, tensors by name, storage types, open kernels.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <memory>
#include <string>

#include "attngen/work.hpp"
#include "cuda.hpp"

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

inline constexpr DLDevice kCpu{kDLCPU, 0};

bool same_device(DLDevice a, DLDevice b);

// "cuda:1", as torch has it.
std::string device_name(DLDevice device);

// "bf16[3, 8, 128]", as messages call a tensor; with its device where that isn't `expected`, or isn't the CPU.
std::string describe(const DLTensor& tensor, DLDevice expected = kCpu);

// An opened kernel; lives as long as the process.
struct Kernel {
  std::string path;
  // On a CPU, a shared object that is loaded:
  CpuWorker worker = nullptr;
  std::int64_t scratch_bytes = 0;
  CpuTransformKeys transform_keys = nullptr;  // nullptr where the variant has no key stage
  // On a GPU, a cubin that is loaded on a device when that first needs it:
  std::unique_ptr<cuda::Cubin> cubin = nullptr;
  int threads = 0, shared_bytes = 0;
};

template <class T = char>
T* data(const DLTensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

inline std::int64_t stride(const DLTensor& tensor, int axis) { return tensor.strides[axis]; }

}  // namespace attngen::host
