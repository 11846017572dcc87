#include "launch.hpp"

#include "threads.hpp"

namespace attngen::host {
namespace {

// One call at a time: the words and the workspace are the launcher's own.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& busy) : busy_(busy) {
    if (busy.exchange(true, std::memory_order_acquire))
      fail("this Attention is running in another thread; each thread needs its own (they share kernels)");
  }
  ~Turn() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

void Launcher::forget() {
  Turn turn(busy_);
  spec_.plan->version = 0;
}

void Launcher::planned(const Value* scalars) {
  Turn turn(busy_);
  arguments_.plan_scalars(scalars);
}

void Launcher::check(const Call& call, const PoolView& pool) const {
  const std::int64_t rows = spec_.plan->num_rows;
  check_tensor("argument `q`", *call.q, spec_.type,
               {{"rows", rows, true}, {"Hq", spec_.num_qo_heads}, {"D", spec_.pool.head_dim}});
  check_tensor("argument `out`", *call.out, spec_.type,
               {{"rows", rows, true}, {"Hq", spec_.num_qo_heads}, {"Dv", spec_.pool.head_dim_v}});
  check_writable("argument `out`", *call.out);
  if (call.lse) {
    if (!spec_.softmax) refuse("argument `lse` is given, but a variant with softmax off has none");
    check_tensor("argument `lse`", *call.lse, Type::kF32, {{"rows", rows, true}, {"Hq", spec_.num_qo_heads}}, true);
    check_writable("argument `lse`", *call.lse);
  }
  if (pool.blocks * pool.block_size < spec_.plan->num_slots)
    refuse("the pool has " + std::to_string(pool.blocks) + " blocks of " + std::to_string(pool.block_size) +
           " tokens; the plan reads up to row " + std::to_string(spec_.plan->num_slots - 1) + ", so it needs " +
           std::to_string((spec_.plan->num_slots + pool.block_size - 1) / pool.block_size) + " blocks");
}

void Launcher::run(const Call& call) {
  Turn turn(busy_);
  const PlanHeader& plan = *spec_.plan;
  if (plan.version != kWorkVersion) refuse("there is no plan to run; call plan() first");
  const PoolView pool = view_pool(spec_.pool, *call.k, call.v);
  check(call, pool);
  arguments_.fill(call.values, {{plan.batch, plan.num_rows, pool.blocks * pool.block_size, plan.max_q_len,
                                 plan.max_kv_len}});
  if (plan.num_items == 0) return;

  Params params{};
  params.plan = &plan;
  params.q = data(*call.q);
  params.k = pool.k;
  params.v = pool.v;
  params.out = data(*call.out);
  params.lse = call.lse ? data<float>(*call.lse) : nullptr;
  params.q_row = stride(*call.q, 0);
  params.q_head = stride(*call.q, 1);
  params.out_row = stride(*call.out, 0);
  params.out_head = stride(*call.out, 1);
  params.lse_row = call.lse ? stride(*call.lse, 0) : 0;
  params.lse_head = call.lse ? stride(*call.lse, 1) : 0;
  params.k_strides = pool.k_strides;
  params.v_strides = pool.v_strides;
  params.args = arguments_.words();
  params.partial_out = spec_.partial_out;
  params.partial_lse = spec_.partial_lse;
  params.arrived = spec_.arrived;
  params.num_qo_heads = spec_.num_qo_heads;
  params.num_kv_heads = spec_.num_kv_heads;
  params.group = spec_.num_qo_heads / spec_.num_kv_heads;
  params.lse_scale = spec_.lse_scale;
  params.raw = call.raw;
  const auto work = [&](std::int32_t worker) {
    spec_.kernel->worker(&params, worker, thread_scratch(spec_.kernel->scratch_bytes));
  };
  parallel(spec_.threads, plan.num_workers, work);
}

}  // namespace attngen::host
