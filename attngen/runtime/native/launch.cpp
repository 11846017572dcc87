#include "launch.hpp"

#include "threads.hpp"

namespace attngen::host {

Turn::Turn(std::atomic<bool>& busy) : busy_(busy) {
  if (busy.exchange(true, std::memory_order_acquire))
    fail("this Attention is running in another thread; each thread needs its own (they share kernels)");
}

void check_call(const LaunchSpec& spec, const PlanHeader& plan, const Call& call, const PoolView& pool) {
  const std::int64_t rows = plan.num_rows;
  const DLDevice device = spec.pool.device;
  check_tensor("argument `q`", *call.q, spec.type,
               {{"rows", rows, true}, {"Hq", spec.num_qo_heads}, {"D", spec.pool.head_dim}}, false, device);
  check_tensor("argument `out`", *call.out, spec.type,
               {{"rows", rows, true}, {"Hq", spec.num_qo_heads}, {"Dv", spec.pool.head_dim_v}}, false, device);
  check_writable("argument `out`", *call.out);
  if (call.lse) {
    if (!spec.softmax) refuse("argument `lse` is given, but a variant with softmax off has none");
    check_tensor("argument `lse`", *call.lse, Type::kF32, {{"rows", rows, true}, {"Hq", spec.num_qo_heads}}, true,
                 device);
    check_writable("argument `lse`", *call.lse);
  }
  if (pool.blocks * pool.block_size < plan.num_slots)
    refuse("the pool has " + std::to_string(pool.blocks) + " blocks of " + std::to_string(pool.block_size) +
           " tokens; the plan reads up to row " + std::to_string(plan.num_slots - 1) + ", so it needs " +
           std::to_string((plan.num_slots + pool.block_size - 1) / pool.block_size) + " blocks");
}

Extents extents_of(const PlanHeader& plan, const PoolView& pool) {
  return {{plan.batch, plan.num_rows, pool.blocks * pool.block_size, plan.max_q_len, plan.max_kv_len}};
}

Params make_params(const LaunchSpec& spec, const PlanHeader& plan, const Call& call, const PoolView& pool) {
  Params params{};
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
  params.partial_out = spec.partial_out;
  params.partial_lse = spec.partial_lse;
  params.arrived = spec.arrived;
  params.lse_scale = spec.lse_scale;
  params.num_qo_heads = spec.num_qo_heads;
  params.num_kv_heads = spec.num_kv_heads;
  params.group = spec.num_qo_heads / spec.num_kv_heads;
  params.raw = call.raw;
  params.levels_at = plan.levels_at;
  params.num_levels = spec.num_levels;
  return params;
}

void Launcher::forget() {
  Turn turn(busy_);
  plan_->version = 0;
}

void Launcher::planned(const Value* scalars) {
  Turn turn(busy_);
  arguments_.plan_scalars(scalars);
}

void Launcher::run(const Call& call) {
  Turn turn(busy_);
  if (plan_->version != kWorkVersion) refuse("there is no plan to run; call plan() first");
  const PoolView pool = view_pool(spec_.pool, *call.k, call.v);
  check_call(spec_, *plan_, call, pool);
  arguments_.fill(call.values, extents_of(*plan_, pool));
  if (plan_->num_items == 0) return;
  Params params = make_params(spec_, *plan_, call, pool);
  params.plan = plan_;
  params.args = arguments_.words();
  const auto work = [&](std::int32_t worker) {
    kernel_->worker(&params, worker, thread_scratch(kernel_->scratch_bytes));
  };
  parallel(threads_, plan_->num_workers, work);
}

}  // namespace attngen::host
