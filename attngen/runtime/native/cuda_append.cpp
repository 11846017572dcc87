#include "cuda_append.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "attngen/append.hpp"

namespace attngen::host {
namespace {

constexpr std::int64_t kMostCtas = 4096;  // each takes more rows where there are more
constexpr std::size_t kParamsWords = sizeof(AppendParams) / sizeof(std::int64_t);
static_assert(sizeof(AppendParams) % sizeof(std::int64_t) == 0);
static_assert(sizeof(AppendLaunch<1>) == sizeof(AppendParams) + sizeof(std::int64_t));
static_assert(static_cast<int>(TokenType::kE5m2) == static_cast<int>(Type::kE5m2));

AppendParams make_params(const AppendSpec& spec, const PoolView& pool, const Tokens& tokens) {
  AppendParams params{};
  params.k = data(*tokens.k);
  params.v = data(*tokens.v);
  params.k_pool = pool.k;
  params.v_pool = pool.v;
  params.slots = data<std::int32_t>(*tokens.slots);
  params.positions = tokens.positions ? data<std::int32_t>(*tokens.positions) : nullptr;
  params.k_token = stride(*tokens.k, 0);
  params.k_head = stride(*tokens.k, 1);
  params.v_token = stride(*tokens.v, 0);
  params.v_head = stride(*tokens.v, 1);
  params.k_strides = pool.k_strides;
  params.v_strides = pool.v_strides;
  params.num_slots = pool.blocks * pool.block_size;
  params.tokens = static_cast<std::int32_t>(tokens.slots->shape[0]);
  params.block_size = static_cast<std::int32_t>(pool.block_size);
  params.num_qo_heads = spec.num_qo_heads;
  params.num_kv_heads = static_cast<std::int32_t>(spec.pool.heads);
  params.group = spec.num_qo_heads / params.num_kv_heads;
  params.k_type = static_cast<TokenType>(tokens.k_type);
  params.v_type = static_cast<TokenType>(tokens.v_type);
  return params;
}

}  // namespace

cuda::Function load_append(const AppendSpec& spec) {
  const cuda::DeviceGuard guard(spec.pool.device.device_id);
  return spec.kernel->cubin->function(spec.pool.device.device_id, kAppendSymbol, spec.kernel->shared_bytes);
}

void append_on_gpu(const AppendSpec& spec, cuda::Function function, const DLTensor& k_pool, const DLTensor* v_pool,
                   const Tokens& tokens, std::int64_t longest, Arguments& arguments, const Value* values,
                   cuda::Stream stream) {
  const PoolView pool = check_append(spec, k_pool, v_pool, tokens);
  arguments.fill(values, {{0, 0, pool.blocks * pool.block_size, 0, longest}});
  const AppendParams params = make_params(spec, pool, tokens);
  std::vector<std::int64_t> parameter(kParamsWords + std::max<std::size_t>(1, arguments.num_words()), 0);
  std::memcpy(parameter.data(), &params, sizeof params);
  std::memcpy(parameter.data() + kParamsWords, arguments.words(), arguments.num_words() * sizeof(std::int64_t));
  const std::int64_t rows = std::int64_t{params.tokens} * params.num_kv_heads;
  if (rows == 0) return;
  const std::int64_t ctas = std::min(kMostCtas, (rows + kAppendRowsPerCta - 1) / kAppendRowsPerCta);
  const cuda::DeviceGuard guard(spec.pool.device.device_id);
  cuda::launch(function, static_cast<int>(ctas), spec.kernel->threads, spec.kernel->shared_bytes, stream,
               parameter.data(), "launching the append kernel");
}

}  // namespace attngen::host
