#include "cuda.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "host.hpp"

namespace attngen::cuda {
namespace {

using host::fail;

// Numbers of the driver's own header.
constexpr int kSuccess = 0;
constexpr int kNotInitialized = 3;
constexpr int kMaxDynamicSharedBytes = 8;   // CU_FUNC_ATTRIBUTE_…
constexpr unsigned kDisableTiming = 2;      // CU_EVENT_…
constexpr int kMaxDevices = 64;

std::mutex opening;
std::string library_name = "libcuda.so.1";
const Driver* opened = nullptr;                // never freed: launchers may outlive static objects
std::atomic<const Driver*> ready{nullptr};
std::atomic<pid_t> owner{0};                   // the process that initialised the driver
std::atomic<Context> contexts[kMaxDevices];

std::unique_ptr<Driver> open() {
  void* library = dlopen(library_name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(std::string("no CUDA driver: ") + dlerror());
  auto found = std::make_unique<Driver>();
  const auto find = [library](auto& entry, const char* symbol) {
    entry = reinterpret_cast<std::decay_t<decltype(entry)>>(dlsym(library, symbol));
    if (entry == nullptr) fail("the CUDA driver " + library_name + " has no " + symbol + "; it is too old");
  };
  // NOTE: the suffixes are part of the names: without them come entry points with other parameters.
  find(found->cuInit, "cuInit");
  find(found->cuDeviceGet, "cuDeviceGet");
  find(found->cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(found->cuCtxGetCurrent, "cuCtxGetCurrent");
  find(found->cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  find(found->cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  find(found->cuModuleLoadData, "cuModuleLoadData");
  find(found->cuModuleGetFunction, "cuModuleGetFunction");
  find(found->cuFuncSetAttribute, "cuFuncSetAttribute");
  find(found->cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(found->cuLaunchKernel, "cuLaunchKernel");
  find(found->cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  find(found->cuEventCreate, "cuEventCreate");
  find(found->cuEventRecord, "cuEventRecord");
  find(found->cuEventSynchronize, "cuEventSynchronize");
  find(found->cuEventDestroy, "cuEventDestroy_v2");
  find(found->cuStreamWaitEvent, "cuStreamWaitEvent");
  find(found->cuStreamIsCapturing, "cuStreamIsCapturing");
  find(found->cuGetErrorName, "cuGetErrorName");
  find(found->cuGetErrorString, "cuGetErrorString");
  return found;
}

std::string error_text(const Driver& api, int result) {
  const char *name = nullptr, *text = nullptr;
  if (api.cuGetErrorName(result, &name) != kSuccess || name == nullptr) return "CUDA error " + std::to_string(result);
  if (api.cuGetErrorString(result, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

[[noreturn]] void fail_with(const Driver& api, int result, const char* doing) {
  std::string message = error_text(api, result) + " while " + doing;
  if (result == kNotInitialized && owner.load() != getpid())
    message += "; CUDA was used before this process was forked, and then its children can't: start them with "
               "multiprocessing's \"spawn\"";
  fail(message);
}

}  // namespace

const Driver& driver() {
  if (const Driver* found = ready.load(std::memory_order_acquire)) return *found;
  const std::lock_guard<std::mutex> lock(opening);
  if (ready.load(std::memory_order_relaxed) == nullptr) {
    if (opened == nullptr) opened = open().release();
    if (const int result = opened->cuInit(0); result != kSuccess)
      fail(error_text(*opened, result) + " while initialising the CUDA driver");
    owner.store(getpid());
    ready.store(opened, std::memory_order_release);
  }
  return *opened;
}

void use_library(const std::string& name) {
  const std::lock_guard<std::mutex> lock(opening);
  library_name = name;
}

void check(int result, const char* doing) {
  if (result != kSuccess) fail_with(driver(), result, doing);
}

void check(int result, const std::string& doing) { check(result, doing.c_str()); }

Context context(int device) {
  if (device < 0 || device >= kMaxDevices) fail("there is no device cuda:" + std::to_string(device));
  if (const Context found = contexts[device].load(std::memory_order_acquire)) return found;
  const Driver& api = driver();
  const std::string name = "cuda:" + std::to_string(device);
  int handle = 0;
  Context made = nullptr;
  check(api.cuDeviceGet(&handle, device), "looking for device " + name);
  // Two threads here at once retain it twice, which is as harmless as never giving it back.
  check(api.cuDevicePrimaryCtxRetain(&made, handle), "opening device " + name);
  contexts[device].store(made, std::memory_order_release);
  return made;
}

DeviceGuard::DeviceGuard(int device) {
  const Context wanted = context(device);
  Context current = nullptr;
  check(driver().cuCtxGetCurrent(&current), "asking for the current device");
  if (current == wanted) return;
  check(driver().cuCtxPushCurrent(wanted), "switching to another device");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  Context popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent(&popped);
}

Module Cubin::module(int device) {
  if (const auto found = modules_.find(device); found != modules_.end()) return found->second;
  std::ifstream file(path_, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || image.empty()) fail("the file can't be read");
  Module module = nullptr;
  check(driver().cuModuleLoadData(&module, image.data()), "loading it on cuda:" + std::to_string(device));
  return modules_[device] = module;
}

Function Cubin::function(int device, const char* symbol, int shared_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto key = std::make_pair(device, std::string(symbol));
  if (const auto found = functions_.find(key); found != functions_.end()) return found->second;
  Function function = nullptr;
  check(driver().cuModuleGetFunction(&function, module(device), symbol), std::string("looking for ") + symbol);
  // NOTE: setting it also makes a driver that loads lazily load the kernel now, not under a capture.
  check(driver().cuFuncSetAttribute(function, kMaxDynamicSharedBytes, shared_bytes),
        "asking for " + std::to_string(shared_bytes) + " bytes of shared memory");
  return functions_[key] = function;
}

int ctas_per_multiprocessor(Function function, int threads, int shared_bytes) {
  int count = 0;
  check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, threads,
                                                             static_cast<std::size_t>(shared_bytes)),
        "asking how many CTAs fit");
  return count;
}

void launch(Function function, int ctas, int threads, int shared_bytes, Stream stream, void* parameter,
            const char* doing) {
  void* parameters[] = {parameter};
  check(driver().cuLaunchKernel(function, static_cast<unsigned>(ctas), 1, 1, static_cast<unsigned>(threads), 1, 1,
                                static_cast<unsigned>(shared_bytes), stream, parameters, nullptr),
        doing);
}

bool is_capturing(Stream stream) {
  int status = 0;
  check(driver().cuStreamIsCapturing(stream, &status), "asking whether the stream is being captured");
  return status != 0;
}

void Marker::record(Stream stream) {
  if (event_ == nullptr) check(driver().cuEventCreate(&event_, kDisableTiming), "making an event");
  check(driver().cuEventRecord(event_, stream), "recording an event");
}

void Marker::order(Stream stream) const {
  if (event_ != nullptr) check(driver().cuStreamWaitEvent(stream, event_, 0), "ordering two streams");
}

void Marker::wait() const {
  if (event_ != nullptr) check(driver().cuEventSynchronize(event_), "waiting for the device");
}

void Marker::release() noexcept {
  const Driver* api = ready.load(std::memory_order_acquire);
  if (event_ != nullptr && api != nullptr) api->cuEventDestroy(event_);
  event_ = nullptr;
}

}  // namespace attngen::cuda
