#include "merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "convert.hpp"
#include "pool.hpp"
#include "threads.hpp"

namespace attngen::host {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kRowsPerTask = 16;

float lse_at(const State& state, std::int64_t row, std::int64_t head) {
  return data<float>(*state.lse)[row * stride(*state.lse, 0) + head * stride(*state.lse, 1)];
}

template <class Format>
void merge_row(const std::vector<State>& states, const DLTensor& out, const DLTensor* lse, bool natural,
               std::int64_t row, std::int64_t head, float* sum) {
  using Code = typename Format::Storage;
  const std::int64_t lanes = out.shape[2];
  float largest = -kInfinity;
  if (lse)
    for (const State& state : states) largest = std::fmax(largest, lse_at(state, row, head));
  float total = 0.0f;
  bool first = true;
  for (const State& state : states) {
    float weight = 1.0f;
    if (lse) {
      const float own = lse_at(state, row, head);
      if (own == -kInfinity) continue;  // whatever its output holds has no effect
      weight = natural ? std::exp(own - largest) : std::exp2(own - largest);
      total += weight;
    }
    const Code* from = data<Code>(*state.out) + row * stride(*state.out, 0) + head * stride(*state.out, 1);
    // NOTE: 0 + x would turn -0 into 0.
    if (first)
      for (std::int64_t d = 0; d < lanes; ++d) sum[d] = weight * Format::widen(from[d]);
    else
      for (std::int64_t d = 0; d < lanes; ++d) sum[d] += weight * Format::widen(from[d]);
    first = false;
  }
  if (first) std::fill(sum, sum + lanes, 0.0f);
  const float divisor = lse && !first ? total : 1.0f;
  Code* to = data<Code>(out) + row * stride(out, 0) + head * stride(out, 1);
  for (std::int64_t d = 0; d < lanes; ++d) to[d] = Format::narrow(sum[d] / divisor);
  if (lse)
    data<float>(*lse)[row * stride(*lse, 0) + head * stride(*lse, 1)] =
        first ? -kInfinity : largest + (natural ? std::log(total) : std::log2(total));
}

}  // namespace

void merge(const std::vector<State>& states, const DLTensor& out, const DLTensor* lse, Type type, bool natural,
           int threads) {
  const std::int64_t rows = out.shape[0], heads = out.shape[1], lanes = out.shape[2];
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string name = "states[" + std::to_string(i) + "]";
    check_tensor((name + "[0]").c_str(), *states[i].out, type, {{"rows", rows}, {"heads", heads}, {"lanes", lanes}});
    if (states[i].lse)
      check_tensor((name + "[1]").c_str(), *states[i].lse, Type::kF32, {{"rows", rows}, {"heads", heads}}, true);
  }
  const bool supported = with_float(type, [&](auto format) {
    const auto task = [&](std::int32_t index) {
      auto* sum = static_cast<float*>(thread_scratch(lanes * 4));
      const std::int64_t end = std::min(rows, (index + 1) * kRowsPerTask);
      for (std::int64_t row = index * kRowsPerTask; row < end; ++row)
        for (std::int64_t head = 0; head < heads; ++head)
          merge_row<decltype(format)>(states, out, lse, natural, row, head, sum);
    };
    parallel(threads, static_cast<std::int32_t>((rows + kRowsPerTask - 1) / kRowsPerTask), task);
  });
  if (!supported) refuse(std::string("states[0][0] holds ") + type_row(type).name + "; it needs a float type");
}

}  // namespace attngen::host
