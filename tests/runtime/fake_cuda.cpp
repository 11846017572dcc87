// A CUDA driver without a GPU: device memory is host memory, all work is done at once, and calls are written down.  What
// it takes for a cubin is the path of a library: of an emulated kernel (tests/emulator), or of a CPU kernel, of which a
// launch runs one worker a CTA.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attngen/work.hpp"

#define DRIVER extern "C" __attribute__((visibility("default"))) int

namespace {

std::string calls;
std::set<std::uintptr_t> capturing;
int failing = 0;  // what the next launch answers
int current = 1, previous = 1;  // devices, as contexts of one number more
int events = 0;

using Emulated = void (*)(unsigned ctas, unsigned threads, const void* parameters);
std::set<void*> emulated;

void note(const std::string& line) { calls += line + "\n"; }

std::string number(const void* handle) { return std::to_string(reinterpret_cast<std::uintptr_t>(handle)); }

}  // namespace

DRIVER cuInit(unsigned) { return 0; }

DRIVER cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < 2 ? 0 : 101;
}

DRIVER cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(std::intptr_t{device} + 1);
  return 0;
}

DRIVER cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(std::intptr_t{current});
  return 0;
}

DRIVER cuCtxPushCurrent_v2(void* context) {
  previous = current;
  current = static_cast<int>(reinterpret_cast<std::intptr_t>(context));
  note("push " + std::to_string(current - 1));
  return 0;
}

DRIVER cuCtxPopCurrent_v2(void** context) {
  *context = reinterpret_cast<void*>(std::intptr_t{current});
  current = previous;
  note("pop");
  return 0;
}

DRIVER cuModuleLoadData(void** module, const void* image) {
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  note("load");
  return *module ? 0 : 200;
}

DRIVER cuModuleGetFunction(void** function, void* module, const char* symbol) {
  *function = dlsym(module, "emulated_launch");
  if (*function)
    emulated.insert(*function);
  else
    *function = dlsym(module, attngen::kCpuWorkerSymbol);
  note(std::string("find ") + symbol);
  return *function ? 0 : 500;
}

DRIVER cuFuncSetAttribute(void*, int attribute, int value) {
  note("attribute " + std::to_string(attribute) + " " + std::to_string(value));
  return 0;
}

DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, std::size_t shared) {
  *blocks = threads <= 1024 && shared <= 227 * 1024 ? 1 : 0;
  return 0;
}

DRIVER cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                      unsigned shared, void* stream, void** parameters, void**) {
  if (failing) {
    const int result = failing;
    failing = 0;
    return result;
  }
  const bool captured = capturing.count(reinterpret_cast<std::uintptr_t>(stream)) != 0;
  if (emulated.count(function)) {
    if (!captured) reinterpret_cast<Emulated>(function)(grid, block, parameters[0]);
    return 0;
  }
  attngen::Params params;
  std::memcpy(&params, parameters[0], sizeof params);
  note("launch " + std::to_string(grid) + " x " + std::to_string(block) + " shared " + std::to_string(shared) +
       " first " + std::to_string(params.first_worker) + " stream " + number(stream));
  if (captured) return 0;
  params.args = reinterpret_cast<const std::int64_t*>(static_cast<const char*>(parameters[0]) + sizeof params);
  std::vector<char> scratch(1 << 16);
  for (unsigned cta = 0; cta < grid; ++cta)
    reinterpret_cast<attngen::CpuWorker>(function)(&params, params.first_worker + static_cast<int>(cta),
                                                   scratch.data());
  return 0;
}

DRIVER cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  note("copy stream " + number(stream));
  return 0;
}

DRIVER cuEventCreate(void** event, unsigned) {
  *event = reinterpret_cast<void*>(std::intptr_t{++events});
  return 0;
}

DRIVER cuEventRecord(void* event, void* stream) {
  note("record " + number(event) + " stream " + number(stream));
  return 0;
}

DRIVER cuEventSynchronize(void* event) {
  note("wait " + number(event));
  return 0;
}

DRIVER cuEventDestroy_v2(void*) { return 0; }

DRIVER cuStreamWaitEvent(void* stream, void* event, unsigned) {
  note("order " + number(event) + " stream " + number(stream));
  return 0;
}

DRIVER cuStreamIsCapturing(void* stream, int* status) {
  *status = capturing.count(reinterpret_cast<std::uintptr_t>(stream)) != 0;
  return 0;
}

DRIVER cuGetErrorName(int result, const char** name) {
  *name = result == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

DRIVER cuGetErrorString(int, const char** text) {
  *text = "told by the driver";
  return 0;
}

// What tests call.

extern "C" __attribute__((visibility("default"))) const char* fake_calls() {
  static std::string last;
  last = std::exchange(calls, "");
  return last.c_str();
}

DRIVER fake_capture(std::int64_t stream, int on) {
  if (on) capturing.insert(static_cast<std::uintptr_t>(stream));
  else capturing.erase(static_cast<std::uintptr_t>(stream));
  return 0;
}

DRIVER fake_fail(int result) {
  failing = result;
  return 0;
}
