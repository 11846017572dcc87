// The end of a row: normalise, join the sink, apply `output`, store; or leave a partial and merge the last one in.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>

#include "attngen/cpu/plan_view.hpp"
#include "attngen/cpu/stage.hpp"
#include "attngen/lanes.hpp"

namespace attngen::cpu {

// The lse is a double until it is stored: at logits of 6e4 every rounding in fp32 costs 0.004.
inline constexpr double kNoKeys = -std::numeric_limits<double>::infinity();  // the lse of a row without keys
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// log2(2^a + 2^b), -inf where both are.
inline double log2_add(double a, double b) {
  if (a != a || b != b) return a + b;
  const double top = a > b ? a : b;
  if (std::isinf(top)) return top;
  return top + std::log2(std::exp2(a - top) + std::exp2(b - top));
}

template <class S, class Fn>
class Finish {
 public:
  using F = simd::f32<S::kWidth>;
  static constexpr int W = S::kWidth;

  Finish(const Params& params, const PlanView& plan, const Fn& fn) : params_(params), plan_(plan), fn_(fn) {}

  // Where the row's output goes.
  typename S::Query* target(const RowAt& row) const {
    return static_cast<typename S::Query*>(params_.out) + row.row * params_.out_row + row.h * params_.out_head;
  }

  // A row that is complete but for sink and output.  `lse` is in log2; `out` has kDimV floats and is overwritten.
  void store_row(const typename Fn::Row& row, float* out, double lse) const {
    if (!params_.raw) {
      if constexpr (Fn::kHasSink && Fn::kSoftmax) lse = join_sink(row, out, lse);
      if constexpr (Fn::kHasOutput) {
        Lanes<S::kWidth, S::kHeadDimV> lanes(out);
        fn_.output(lanes, row, static_cast<float>(lse * kLn2));
      }
    }
    typename S::Query* to = target(row);
    constexpr int kWhole = S::kHeadDimV / W * W;
    for (int i = 0; i < kWhole; i += W) store_f32<typename S::Query>(to + i, simd::load<F>(out + i));
    for (int i = kWhole; i < S::kHeadDimV; ++i) to[i] = from_float<typename S::Query>(out[i]);
    if (params_.lse)
      params_.lse[row.row * params_.lse_row + row.h * params_.lse_head] = static_cast<float>(lse * params_.lse_scale);
  }

  void store_partial(std::int64_t partial, const float* out, double lse) const {
    std::memcpy(params_.partial_out + partial * S::kHeadDimV, out, S::kHeadDimV * sizeof(float));
    params_.partial_lse[partial] = static_cast<float>(lse);
  }

  // Counts a segment in; whoever comes last merges.  The counter is left at 0 for the next launch.
  void arrive(std::int32_t merge, float* room) const {
    const Merge& work = plan_.merges[merge];
    std::atomic_ref<std::uint32_t> arrived(params_.arrived[merge]);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != static_cast<std::uint32_t>(work.arrivals)) return;
    arrived.store(0, std::memory_order_relaxed);
    for (std::int32_t i = 0; i < work.packed_count; ++i) merge_row(work, i, room);
  }

 private:
  static double join_sink(double sink, float* out, double lse) {
    const double joined = log2_add(lse, sink);
    const float factor = joined == kNoKeys ? 0.0f : static_cast<float>(std::exp2(lse - joined));
    for (int i = 0; i < S::kDimV; ++i) out[i] *= factor;
    return joined;
  }
  double join_sink(const typename Fn::Row& row, float* out, double lse) const {
    return join_sink(fn_.sink(row) * kLog2E, out, lse);
  }

  // Parts in index order: the same bits whoever merges.
  void merge_row(const Merge& work, std::int32_t i, float* out) const {
    const double lse = Fn::kSoftmax ? merged_lse(work, i) : 0.0;
    std::fill(out, out + S::kDimV, 0.0f);
    for (std::int32_t part = 0; part < work.part_count; ++part) {
      const std::int64_t partial = partial_of(work, part, i);
      const float weight = Fn::kSoftmax ? part_weight(params_.partial_lse[partial], lse) : 1.0f;
      const float* from = params_.partial_out + partial * S::kHeadDimV;
      for (int lane = 0; lane < S::kHeadDimV; ++lane) out[lane] += weight * from[lane];
    }
    const std::int32_t packed = work.packed_begin + i;
    const std::int32_t head = work.kv_head * params_.group + packed % params_.group;
    store_row(fn_.row(plan_.row(packed / params_.group, head, work.kv_head)), out, lse);
  }

  static float part_weight(double part, double lse) {
    return lse == kNoKeys ? 0.0f : static_cast<float>(std::exp2(part - lse));
  }

  static std::int64_t partial_of(const Merge& work, std::int32_t part, std::int32_t i) {
    return work.partial + std::int64_t{part} * work.packed_count + i;
  }

  double merged_lse(const Merge& work, std::int32_t i) const {
    double top = kNoKeys, sum = 0.0;
    for (std::int32_t part = 0; part < work.part_count; ++part) {
      const double lse = params_.partial_lse[partial_of(work, part, i)];
      top = lse > top || lse != lse ? lse : top;
    }
    if (top == kNoKeys) return kNoKeys;
    for (std::int32_t part = 0; part < work.part_count; ++part)
      sum += std::exp2(params_.partial_lse[partial_of(work, part, i)] - top);
    return top + std::log2(sum);
  }

  const Params& params_;
  const PlanView& plan_;
  const Fn& fn_;
};

}  // namespace attngen::cpu
