// The part of the CUDA driver API that the host library uses.  The driver is found when it is first needed, so that
// the library builds without a CUDA toolkit, loads without a GPU, and does nothing before a fork.
//
// Every call is checked: what fails raises RuntimeError in Python with the driver's name for it and what was being done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace attngen::cuda {

using Address = std::uint64_t;  // of device memory

// Opaque handles, as the driver has them.
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;

// The driver's entry points, under the driver's names.
struct Driver {
  int (*cuInit)(unsigned flags);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDevicePrimaryCtxRetain)(Context* context, int device);
  int (*cuCtxGetCurrent)(Context* context);
  int (*cuCtxPushCurrent)(Context context);
  int (*cuCtxPopCurrent)(Context* context);
  int (*cuModuleLoadData)(Module* module, const void* image);
  int (*cuModuleGetFunction)(Function* function, Module module, const char* name);
  int (*cuFuncSetAttribute)(Function function, int attribute, int value);
  int (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, Function function, int threads, std::size_t shared);
  int (*cuLaunchKernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, Stream stream, void** parameters,
                        void** extra);
  int (*cuMemcpyHtoDAsync)(Address to, const void* from, std::size_t bytes, Stream stream);
  int (*cuEventCreate)(Event* event, unsigned flags);
  int (*cuEventRecord)(Event event, Stream stream);
  int (*cuEventSynchronize)(Event event);
  int (*cuEventDestroy)(Event event);
  int (*cuStreamWaitEvent)(Stream stream, Event event, unsigned flags);
  int (*cuStreamIsCapturing)(Stream stream, int* status);
  int (*cuGetErrorName)(int result, const char** name);
  int (*cuGetErrorString)(int result, const char** text);
};

// The driver, initialised; fails where there is none.
const Driver& driver();

// Which library the driver is looked for in, until it is found; at first "libcuda.so.1".
void use_library(const std::string& name);

// Fails unless `result` is a success; `doing` ends the sentence "… while".
void check(int result, const char* doing);
void check(int result, const std::string& doing);

// The primary context of a device, which torch uses too; retained for as long as the process lives.
Context context(int device);

// Makes a device current while it lives, whatever was current before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

// A compiled file of device code, loaded on each device that asks for it, and then as long as the process lives.
// Any thread may call it.
class Cubin {
 public:
  explicit Cubin(std::string path) : path_(std::move(path)) {}

  // A kernel with room for `shared_bytes` of dynamic shared memory, on a device that a DeviceGuard has made current.
  // `symbol` lives as long as the process.
  Function function(int device, const char* symbol, int shared_bytes);

 private:
  Module module(int device);

  const std::string path_;
  std::mutex mutex_;
  std::map<int, Module> modules_;
  std::map<std::pair<int, std::string>, Function> functions_;
};

// CTAs of `threads` that one multiprocessor holds at once.
int ctas_per_multiprocessor(Function function, int threads, int shared_bytes);

// Launches a one-dimensional grid with one by-value parameter; the device must be current.
void launch(Function function, int ctas, int threads, int shared_bytes, Stream stream, void* parameter,
            const char* doing);

bool is_capturing(Stream stream);

// An event for ordering, made when it is first recorded.  Its methods need its device to be current.
class Marker {
 public:
  Marker() = default;
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;

  void record(Stream stream);
  // Later work on `stream` waits for what was recorded; at once where nothing was.
  void order(Stream stream) const;
  // The host waits.
  void wait() const;
  // Gives the event back; never fails.
  void release() noexcept;

 private:
  Event event_ = nullptr;
};

}  // namespace attngen::cuda
