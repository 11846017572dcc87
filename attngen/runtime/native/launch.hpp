// One launch of a kernel: arguments checked against the plan, and what every kernel is told.  On a CPU, workers are
// spread over the threads; cuda_launch.hpp is the GPU's.
#pragma once

#include <atomic>
#include <cstdint>

#include "arguments.hpp"
#include "pool.hpp"

namespace attngen::host {

struct LaunchSpec {
  PoolSpec pool;
  Type type;  // of q and out
  std::int32_t num_qo_heads, num_kv_heads;
  bool softmax;
  double lse_scale;
  std::int32_t num_levels;  // that the arena has room for
  // The workspace: fixed in place for the launcher's life.
  float* partial_out;
  float* partial_lse;
  std::uint32_t* arrived;
};

struct Call {
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;  // nullptr: `k` holds both
  const DLTensor* out;
  const DLTensor* lse;  // nullptr: not wanted
  bool raw;
  const Value* values;
};

// Refuses tensors that don't fit the plan.
void check_call(const LaunchSpec& spec, const PlanHeader& plan, const Call& call, const PoolView& pool);

// What the plan asks of the variant's tensors.
Extents extents_of(const PlanHeader& plan, const PoolView& pool);

// All that the call and the plan say; `plan`, `args` and `first_worker` are left to the caller.
Params make_params(const LaunchSpec& spec, const PlanHeader& plan, const Call& call, const PoolView& pool);

// One call at a time, since words and workspace are the launcher's own.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& busy);
  ~Turn() { busy_.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& busy_;
};

class Launcher {
 public:
  Launcher(const LaunchSpec& spec, const Kernel* kernel, int threads, PlanHeader* plan, Arguments arguments)
      : spec_(spec), kernel_(kernel), threads_(threads), plan_(plan), arguments_(std::move(arguments)) {}

  void run(const Call& call);

  // Leaves no plan to run, until the next one is whole.
  void forget();

  // Takes over the scalars that plan() was given.
  void planned(const Value* scalars);

 private:
  const LaunchSpec spec_;
  const Kernel* kernel_;
  const int threads_;
  PlanHeader* plan_;
  Arguments arguments_;
  std::atomic<bool> busy_{false};
};

}  // namespace attngen::host
