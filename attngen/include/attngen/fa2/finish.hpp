// The end of a row: join the copies that warps hold, normalise, join the sink, apply `output`, store; or leave a partial,
// and merge where the last one has come.
#pragma once

#include "attngen/fa2/rows.hpp"

namespace attngen::fa2 {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

template <class S, class Fn>
class Finish {
  using L = VectorLayout<S::kHeadDimV>;
  using Values = Chunks<S::kHeadDimV>;
  using Row = typename Fn::Row;

 public:
  ATTNGEN_DEVICE Finish(const Params& params, const Fn& fn, Books<S, Fn>& books, float* room)
      : params_(params), plan_(params.plan), fn_(fn), books_(books), room_(room) {}

  // Stores `count` rows of the tile from row `begin` on, by one warp.  kCopies warps, from `warp` on, hold a copy each,
  // where these rows are their row `own` and those behind; a copy is kCopyRows rows of S::kOutPitch bytes, and the first
  // one's row `own` lies at `staged`.
  template <int kCopies, int kCopyRows>
  ATTNGEN_DEVICE void store(const char* staged, int warp, int own, int begin, int count) const {
#pragma unroll 1
    for (int i = L::row(); i < round_up(count, L::kRows); i += L::kRows) {
      const int row = i < count ? i : 0;
      Values out;
      float sum, shift;
      join<kCopies, kCopyRows>(staged + row * S::kOutPitch, warp, own + row, out, sum, shift);
      const double lse = normalise(out, sum, shift);
      const std::int32_t partial = i < count ? books_.partial[begin + row] : kNoRow;
      store_row(books_.rows[begin + row], out, lse, partial == kWriteThrough);
      if (partial >= 0) store_partial(partial, out, static_cast<float>(lse));
    }
  }

  // Whether the item's rows can leave by complete() and store_rows(): all are written through, no stage takes them whole.
  ATTNGEN_DEVICE static bool is_plain(const Item& item) {
    return !Fn::kHasOutput && S::kPitchV <= S::kPitch && item.segment_count == 1 && item.partial == kWriteThrough;
  }

  // Stores the lse of row `at` of the tile, the warp's row `own`, and leaves the factor that completes its values in the
  // place of its shift.
  ATTNGEN_DEVICE void complete(int at, int warp, int own) const {
    const Row& row = books_.rows[at];
    const float sum = books_.sum(warp, own);
    float& shift = books_.shift[warp][own];
    float factor = Fn::kSoftmax ? inverse(sum) : 1.0f;
    double lse = Fn::kSoftmax ? log_sum(sum, shift) : 0.0;
    if constexpr (Fn::kHasSink && Fn::kSoftmax)
      if (!params_.raw) factor *= sink_factor(row, lse);
    if (books_.partial[at] == kWriteThrough) store_lse(row, lse);
    shift = factor;
  }

  // Stores kCount complete rows of the tile from `begin` on, by one warp; they lie at `staged` as S::Keys.
  template <int kCount>
  ATTNGEN_DEVICE void store_rows(const char* staged, int begin) const {
    using Pieces = RowPieces<kCount, S::kHeadDimV / 8>;
    const int lane = ptx::lane(), at = begin + lane % kCount;
    const auto own = reinterpret_cast<unsigned long long>(
        books_.partial[at] == kWriteThrough ? out_of(books_.rows[at]) : nullptr);
#pragma unroll 4
    for (int first = 0; first < Pieces::kSteps; first += Pieces::kOfRow) {
      const int row = Pieces::row(lane, first);
      auto* to = reinterpret_cast<char*>(__shfl_sync(0xffffffffu, own, row % kCount));
      if (to == nullptr || !Pieces::exists(lane, first)) continue;
#pragma unroll
      for (int step = first; step < first + Pieces::kOfRow; ++step) {
        const int piece = Pieces::piece(lane, step);
        reinterpret_cast<uint4*>(to)[piece] = *reinterpret_cast<const uint4*>(staged + S::Keys::at(row, piece));
      }
    }
  }

  // Counts the item's segments in and merges those that are complete; all threads of the CTA.  The counters are left at
  // 0 for the next launch.
  ATTNGEN_DEVICE void arrive(const Item& item) const {
    const bool single = item.segment_count == 1;
    if (single && item.merge < 0) return;
    const Segment* segments = plan_.at<Segment>(plan_.plan_->segments_at) + item.segment_begin;
    const Merge* merges = books_.plan_merges;
    Merge merge{};
    if (single) merge = merges[item.merge];  // asked for before the wait for the others
    __syncthreads();
    if (ptx::warp() == 0) {  // whose atomics order the whole CTA between two barriers
      for (int s = ptx::lane(); s < item.segment_count; s += 32) {
        const std::int32_t number = single ? item.merge : moved(segments[s], books_.move).merge;
        const bool last = number >= 0 && is_last(number, single ? item.arrivals : merges[number].arrivals);
        books_.last(s) = last ? number : -1;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < item.segment_count; ++s) {
      if (books_.last(s) < 0) continue;
      if (!single) merge = merges[books_.last(s)];
      merge_rows(merge, single);
    }
  }

 private:
  ATTNGEN_DEVICE bool is_last(std::int32_t merge, std::int32_t arrivals) const {
    const unsigned others = arrivals - 1;
    return ptx::count(params_.arrived + merge, others) == others;
  }

  // The copies brought to one reference and added, in the order of the warps.
  template <int kCopies, int kCopyRows>
  ATTNGEN_DEVICE void join(const char* staged, int warp, int row, Values& out, float& sum, float& shift) const {
    shift = books_.shift[warp][row];
#pragma unroll
    for (int copy = 1; copy < kCopies; ++copy) shift = fminf(shift, books_.shift[warp + copy][row]);
    sum = 0.0f;
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
      const float factor = kCopies == 1 || !Fn::kSoftmax ? 1.0f : ptx::exp2(shift - books_.shift[warp + copy][row]);
      sum += factor * books_.sum(warp + copy, row);
      Values part;
      read_vector<S::kHeadDimV>(reinterpret_cast<const float*>(staged + copy * kCopyRows * S::kOutPitch), part);
      each(out, [&](int own, int half, int i) {
        const float added = factor * part[own][half][i];
        return copy == 0 ? added : out[own][half][i] + added;
      });
    }
  }

  ATTNGEN_DEVICE static float inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

  // log2 of the sum of exp2(logit) where `sum` is that of exp2(logit + shift).
  ATTNGEN_DEVICE static double log_sum(float sum, float shift) {
    return sum == 0.0f ? -static_cast<double>(__builtin_inff()) : static_cast<double>(::log2f(sum)) - shift;
  }

  // Divides by the sum and gives the lse in log2; with softmax off both are left alone.
  ATTNGEN_DEVICE double normalise(Values& out, float sum, float shift) const {
    if constexpr (!Fn::kSoftmax) return 0.0;
    scale(out, inverse(sum));
    return log_sum(sum, shift);
  }

  // A row that is complete but for sink and output; every lane of its group, but only those that are `real` store.
  ATTNGEN_DEVICE void store_row(const Row& row, const Values& complete, double lse, bool real) const {
    Values out;
    each(out, [&](int own, int half, int i) { return complete[own][half][i]; });
    if ((Fn::kHasSink || Fn::kHasOutput) && !params_.raw) {
      if constexpr (Fn::kHasSink && Fn::kSoftmax) scale(out, sink_factor(row, lse));
      if constexpr (Fn::kHasOutput) {
        WarpLanes<S::kHeadDimV, Fn::kUsesLaneAt> lanes(out, room_ + L::row() * L::kRoom);
        fn_.output(lanes, row, static_cast<float>(lse * kLn2));
      }
    }
    if (!real) return;
    using Operand = typename S::Operand;
    write_vector<S::kHeadDimV>(out_of(row), out);
    if (L::lane() == 0) store_lse(row, lse);
  }

  ATTNGEN_DEVICE typename S::Operand* out_of(const Row& row) const {
    return static_cast<typename S::Operand*>(params_.out) + row.row * params_.out_row + row.h * params_.out_head;
  }

  ATTNGEN_DEVICE void store_lse(const Row& row, double lse) const {
    if (params_.lse)
      params_.lse[row.row * params_.lse_row + row.h * params_.lse_head] = static_cast<float>(lse * params_.lse_scale);
  }

  // Joins the row's sink: gives the factor of its values, and the new lse.
  ATTNGEN_DEVICE float sink_factor(const Row& row, double& lse) const {
    const double sink = fn_.sink(row) * kLog2E, top = lse > sink || lse != lse ? lse : sink;
    double joined = top;
    if (top - top == 0.0)  // finite
      joined = top + static_cast<double>(::log2f(ptx::exp2(static_cast<float>(lse - top)) +
                                                 ptx::exp2(static_cast<float>(sink - top))));
    const bool none = joined == -static_cast<double>(__builtin_inff());
    const float factor = none ? 0.0f : ptx::exp2(static_cast<float>(lse - joined));
    lse = joined;
    return factor;
  }

  ATTNGEN_DEVICE void store_partial(std::int64_t partial, const Values& out, float lse) const {
    write_vector<S::kHeadDimV>(params_.partial_out + partial * S::kHeadDimV, out);
    if (L::lane() == 0) params_.partial_lse[partial] = lse;
  }

  // Parts in index order: the same bits whoever merges.  `own`: its rows are the item's.
  ATTNGEN_DEVICE void merge_rows(const Merge& merge, bool own) const {
    constexpr int kAtOnce = S::kWarps * L::kRows;
#pragma unroll 1
    for (int first = ptx::warp() * L::kRows; first < merge.packed_count; first += kAtOnce) {
      const int i = first + L::row() < merge.packed_count ? first + L::row() : first;
      Values out;
      const double lse = merge_row(merge, i, out);
      store_row(own ? books_.rows[i] : merged_row(merge, i), out, lse, i == first + L::row());
    }
  }

  // Parts of a row whose values are asked for together.
  static constexpr int kTogether = L::kOwn > 1 || L::kLanes < 4 ? 1 : 4;

  ATTNGEN_DEVICE Row merged_row(const Merge& merge, int i) const {
    const std::int32_t packed = merge.packed_begin + i, token = packed / params_.group;
    const std::int32_t head = merge.kv_head * params_.group + packed - token * params_.group;
    return fn_.row(plan_.row(token, head, merge.kv_head));
  }

  // One pass: the lanes of a row share the lse of kLanes parts at a time, and values are asked for before these are known.
  ATTNGEN_DEVICE double merge_row(const Merge& merge, int row, Values& out) const {
    float top = -__builtin_inff(), sum = 0.0f;
    each(out, [&](int, int, int) { return 0.0f; });
#pragma unroll 1
    for (int first = 0; first < merge.part_count; first += L::kLanes) {
      const int own = first + L::lane();
      const bool exists = own < merge.part_count;
      float lse = -__builtin_inff();
      if (Fn::kSoftmax && exists) lse = __ldcg(params_.partial_lse + merge.partial + own * merge.packed_count + row);
      Values parts[kTogether];
      read_parts(merge, row, first, parts);
      float mine = exists ? 1.0f : 0.0f;
      if constexpr (Fn::kSoftmax) {
        float now = larger_or_nan(top, lse);
#pragma unroll
        for (int step = 1; step < L::kLanes; step *= 2)
          now = larger_or_nan(now, __shfl_xor_sync(0xffffffffu, now, step));
        const float kept = now == -__builtin_inff() ? 0.0f : ptx::exp2(top - now);
        mine = now == -__builtin_inff() ? 0.0f : ptx::exp2(lse - now);
        top = now;
        sum *= kept;
        scale(out, kept);
      }
#pragma unroll 1
      for (int i = 0; i < L::kLanes; i += kTogether) {
        if (i > 0) read_parts(merge, row, first + i, parts);
#pragma unroll
        for (int part = 0; part < kTogether; ++part) {
          const float weight = __shfl_sync(0xffffffffu, mine, i + part, L::kLanes);
          if (first + i + part >= merge.part_count) continue;
          each(out, [&](int own, int half, int e) { return out[own][half][e] + weight * parts[part][own][half][e]; });
          sum += weight;
        }
      }
    }
    if constexpr (!Fn::kSoftmax) return 0.0;
    scale(out, inverse(sum));
    return log_sum(sum, -top);
  }

  // The values of parts [first, first + kTogether); of the last one again behind it.
  ATTNGEN_DEVICE void read_parts(const Merge& merge, int row, int first, Values (&parts)[kTogether]) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int part = first + i < merge.part_count ? first + i : merge.part_count - 1;
      const std::int64_t partial = merge.partial + std::int64_t{part} * merge.packed_count + row;
      read_vector<S::kHeadDimV>(params_.partial_out + partial * S::kHeadDimV, parts[i]);
    }
  }

  ATTNGEN_DEVICE static float larger_or_nan(float a, float b) { return b > a || b != b ? b : a; }

  ATTNGEN_DEVICE static void scale(Values& out, float factor) {
    each(out, [&](int own, int half, int i) { return out[own][half][i] * factor; });
  }

  template <class F>
  ATTNGEN_DEVICE static void each(Values& out, const F& value) {
#pragma unroll
    for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) out[own][half][i] = value(own, half, i);
  }

  const Params& params_;
  PlanView plan_;
  const Fn& fn_;
  Books<S, Fn>& books_;
  float* room_;
};

}  // namespace attngen::fa2
