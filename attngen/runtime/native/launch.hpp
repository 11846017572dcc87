// One launch of a CPU kernel: arguments checked against the plan, workers spread over the threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "arguments.hpp"
#include "pool.hpp"

namespace attngen::host {

struct LaunchSpec {
  const Kernel* kernel;
  PoolSpec pool;
  Type type;  // of q and out
  std::int32_t num_qo_heads, num_kv_heads;
  bool softmax;
  double lse_scale;
  int threads;
  // The workspace: fixed in place for the launcher's life.
  PlanHeader* plan;
  float* partial_out;
  float* partial_lse;
  std::uint32_t* arrived;
};

class Launcher {
 public:
  Launcher(const LaunchSpec& spec, Arguments arguments) : spec_(spec), arguments_(std::move(arguments)) {}

  struct Call {
    const DLTensor* q;
    const DLTensor* k;
    const DLTensor* v;  // nullptr: `k` holds both
    const DLTensor* out;
    const DLTensor* lse;  // nullptr: not wanted
    bool raw;
    const Value* values;
  };
  void run(const Call& call);

  // Leaves no plan to run, until the next one is whole.
  void forget();

  // Takes over the scalars that plan() was given.
  void planned(const Value* scalars);

 private:
  void check(const Call& call, const PoolView& pool) const;

  LaunchSpec spec_;
  Arguments arguments_;
  std::atomic<bool> busy_{false};
};

}  // namespace attngen::host
