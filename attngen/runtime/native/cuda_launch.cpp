#include "cuda_launch.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace attngen::host {
namespace {

constexpr std::size_t kParamsWords = sizeof(Params) / sizeof(std::int64_t);
static_assert(sizeof(Params) % sizeof(std::int64_t) == 0);
static_assert(sizeof(Launch<1>) == sizeof(Params) + sizeof(std::int64_t));

// Needs of a plan, in the order of Extents.
std::array<std::int64_t, 5> needs(const PlanHeader& plan) {
  return {plan.batch, plan.num_rows, plan.num_slots, plan.max_q_len, plan.max_kv_len};
}

cuda::Function load(const Kernel& kernel, int device) {
  const cuda::Function function = kernel.cubin->function(device, kLaunchSymbol, kernel.shared_bytes);
  if (cuda::ctas_per_multiprocessor(function, kernel.threads, kernel.shared_bytes) < 1)
    fail("no CTA of " + std::to_string(kernel.threads) + " threads with " + std::to_string(kernel.shared_bytes) +
         " bytes of shared memory fits a multiprocessor of cuda:" + std::to_string(device));
  return function;
}

}  // namespace

CudaLauncher::CudaLauncher(CudaSpec spec, Arguments arguments)
    : spec_(std::move(spec)), arguments_(std::move(arguments)), copied_(spec_.buffers.size()) {
  const cuda::DeviceGuard guard(spec_.device);
  std::int32_t first = 0;
  for (const Queue& queue : spec_.queues) {
    entries_.push_back({queue, load(*queue.kernel, spec_.device), first});
    first += queue.workers;
  }
  parameter_.assign(kParamsWords + std::max<std::size_t>(1, arguments_.num_words()), 0);
}

CudaLauncher::~CudaLauncher() {
  try {
    const cuda::DeviceGuard guard(spec_.device);
    if (used_ && !cuda::is_capturing(last_stream_)) {
      switched_.record(last_stream_);
      switched_.wait();
    }
    for (const cuda::Marker& copied : copied_) copied.wait();
    for (cuda::Marker& copied : copied_) copied.release();
    switched_.release();
  } catch (...) {
    // The driver is shutting down with the process, or this is a forked child: nothing is under way then.
  }
}

// Makes `stream` the one that this Attention works on.
void CudaLauncher::follow(cuda::Stream stream) {
  if (used_ && stream != last_stream_ && !cuda::is_capturing(last_stream_)) {
    switched_.record(last_stream_);
    switched_.order(stream);
  }
  last_stream_ = stream;
  used_ = true;
}

int CudaLauncher::begin(cuda::Stream stream) {
  Turn turn(busy_);
  const cuda::DeviceGuard guard(spec_.device);
  if (cuda::is_capturing(stream))
    fail("plan() was called while a CUDA graph is captured; plan before the capture, and between replays");
  plan_ = nullptr;
  next_ = (next_ + 1) % spec_.buffers.size();
  copied_[next_].wait();
  return static_cast<int>(next_);
}

void CudaLauncher::planned(const Value* scalars) {
  Turn turn(busy_);
  arguments_.plan_scalars(scalars);
}

void CudaLauncher::commit(cuda::Stream stream) {
  Turn turn(busy_);
  std::byte* buffer = spec_.buffers[next_];
  const auto* plan = reinterpret_cast<const PlanHeader*>(buffer);
  if (plan->version != kWorkVersion) fail("the planner left no plan");
  check_held(*plan);
  arguments_.write_planned(reinterpret_cast<std::int64_t*>(buffer + plan->scalars_at));
  arguments_.read_planned_at(static_cast<std::int64_t>(spec_.arena) + plan->scalars_at);

  const cuda::DeviceGuard guard(spec_.device);
  follow(stream);
  cuda::check(cuda::driver().cuMemcpyHtoDAsync(spec_.arena, buffer, static_cast<std::size_t>(plan->bytes), stream),
              "copying a plan to the device");
  copied_[next_].record(stream);
  plan_ = plan;
}

// A plan that a captured graph can't hold would read or write beyond its tensors when the graph is replayed.
void CudaLauncher::check_held(const PlanHeader& plan) const {
  static constexpr const char* kNames[5] = {"B", "Rows", "Slots", "Q", "KV"};
  const std::array<std::int64_t, 5> wanted = needs(plan);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] > held_.sizes[i])
      refuse("a captured CUDA graph has " + held_.by[i] + " with " + kNames[i] + " = " +
             std::to_string(held_.sizes[i]) + "; this plan needs " + std::to_string(wanted[i]) +
             ". Capture with larger tensors, give each graph an Attention of its own (they share kernels), or call "
             "release_graphs() once the graph is gone");
}

bool CudaLauncher::is_capturing(cuda::Stream stream) const {
  const cuda::DeviceGuard guard(spec_.device);
  return cuda::is_capturing(stream);
}

void CudaLauncher::release_graphs() {
  Turn turn(busy_);
  held_ = Held();
}

void CudaLauncher::hold(const Call& call, const PoolView& pool) {
  held_.narrow(1, call.q->shape[0], "`q`");
  held_.narrow(1, call.out->shape[0], "`out`");
  if (call.lse) held_.narrow(1, call.lse->shape[0], "`lse`");
  held_.narrow(2, pool.blocks * pool.block_size, "the pool");
  arguments_.hold(call.values, held_);
}

// A queue's items are contiguous.
bool CudaLauncher::has_work(const Entry& entry) const {
  const auto* bytes = reinterpret_cast<const std::byte*>(plan_);
  const auto* workers = reinterpret_cast<const Worker*>(bytes + kWorkersAt) + entry.first_worker;
  return workers[0].item_begin != workers[entry.queue.workers - 1].item_end;
}

void CudaLauncher::run(const Call& call, cuda::Stream stream) {
  Turn turn(busy_);
  if (plan_ == nullptr) refuse("there is no plan to run; call plan() first");
  const PoolView pool = view_pool(spec_.common.pool, *call.k, call.v);
  check_call(spec_.common, *plan_, call, pool);
  check_aligned("argument `q`", *call.q);
  check_aligned("argument `out`", *call.out);
  check_aligned(call.v ? "the K pool" : "the pool", *call.k);
  if (call.v) check_aligned("the V pool", *call.v);
  arguments_.fill(call.values, extents_of(*plan_, pool));

  Params params = make_params(spec_.common, *plan_, call, pool);
  params.plan = reinterpret_cast<const PlanHeader*>(spec_.arena);
  std::memcpy(parameter_.data() + kParamsWords, arguments_.words(), arguments_.num_words() * sizeof(std::int64_t));

  const cuda::DeviceGuard guard(spec_.device);
  const bool capturing = cuda::is_capturing(stream);
  if (capturing)
    hold(call, pool);
  else if (stream != last_stream_)
    follow(stream);
  // A graph launches every kernel, as a later plan may need any; without items one ends at once.
  for (const Entry& entry : entries_) {
    if (!capturing && !has_work(entry)) continue;
    params.first_worker = entry.first_worker;
    std::memcpy(parameter_.data(), &params, sizeof params);
    cuda::launch(entry.function, entry.queue.workers, entry.queue.kernel->threads, entry.queue.kernel->shared_bytes,
                 stream, parameter_.data(), "launching the attention kernel");
  }
}

}  // namespace attngen::host
