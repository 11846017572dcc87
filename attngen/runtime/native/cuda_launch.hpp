// Launches on a GPU: plans go through pinned buffers into an arena at a fixed place on the device, and each queue of the
// plan is a kernel.
//
// Order: whatever an Attention does on a stream comes after what it did before on another one.  A captured graph is the
// exception, since nothing is known of the stream that replays it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cuda.hpp"
#include "launch.hpp"

namespace attngen::host {

struct Queue {
  const Kernel* kernel;
  std::int32_t workers;  // CTAs
};

struct CudaSpec {
  LaunchSpec common;
  int device;
  std::vector<Queue> queues;
  cuda::Address arena;               // on the device
  std::vector<std::byte*> buffers;   // in pinned host memory, each as large as the arena
};

class CudaLauncher {
 public:
  // Loads the kernels on the device.
  CudaLauncher(CudaSpec spec, Arguments arguments);
  // Waits for what is under way, since the workspace may go now.
  ~CudaLauncher();
  CudaLauncher(const CudaLauncher&) = delete;
  CudaLauncher& operator=(const CudaLauncher&) = delete;

  // Begins a plan: there is none to run from here on.  Gives the buffer to plan into, which no copy reads any more.
  int begin(cuda::Stream stream);
  // Takes over the scalars that plan() was given.
  void planned(const Value* scalars);
  // The plan in the buffer of begin() is whole: checks that captured graphs can hold it, and sends it to the device.
  void commit(cuda::Stream stream);

  void run(const Call& call, cuda::Stream stream);

  bool is_capturing(cuda::Stream stream) const;

  // The graphs captured so far are gone, so that plans needn't fit them any more.
  void release_graphs();

 private:
  struct Entry {
    Queue queue;
    cuda::Function function;
    std::int32_t first_worker;
  };

  void check_held(const PlanHeader& plan) const;
  void hold(const Call& call, const PoolView& pool);
  void follow(cuda::Stream stream);
  bool has_work(const Entry& entry) const;

  const CudaSpec spec_;
  Arguments arguments_;
  std::vector<Entry> entries_;
  std::vector<std::int64_t> parameter_;      // a Launch<words>
  std::vector<cuda::Marker> copied_;         // out of each buffer
  cuda::Marker switched_;                    // what was done on the last stream
  cuda::Stream last_stream_ = nullptr;
  bool used_ = false;                        // last_stream_ means something
  std::size_t next_ = 0;                     // buffer
  const PlanHeader* plan_ = nullptr;         // in its buffer; nullptr: none to run
  bool captured_ = false;
  Held held_;                                // by captured graphs
  std::atomic<bool> busy_{false};
};

}  // namespace attngen::host
