// An item's query rows: who they are, where their results go, and their queries in shared memory.
#pragma once

#include "attngen/fa2/shape.hpp"

namespace attngen::fa2 {

// Typed pointers into a plan's arena.
struct PlanView {
  ATTNGEN_DEVICE explicit PlanView(const PlanHeader* plan) : plan_(plan) {}

  template <class Record>
  ATTNGEN_DEVICE const Record* at(std::int64_t offset) const {
    return reinterpret_cast<const Record*>(reinterpret_cast<const char*>(plan_) + offset);
  }

  // The indices of token `token` under query head `head`.
  ATTNGEN_DEVICE RowAt row(std::int32_t token, std::int32_t head, std::int32_t kv_head) const {
    const std::int32_t b = at<std::int32_t>(plan_->row_request_at)[token];
    const std::int32_t* qo_indptr = at<std::int32_t>(plan_->qo_indptr_at) + b;
    const std::int32_t begin = qo_indptr[0], q_len = qo_indptr[1] - begin;
    const std::int32_t kv_len = at<std::int32_t>(plan_->kv_len_at)[b];
    return {b, head, kv_head, token - begin, token - begin + kv_len - q_len, token, q_len, kv_len};
  }

  const PlanHeader* plan_;
};

template <class S, class Fn>
class RowLoader {
 public:
  ATTNGEN_DEVICE RowLoader(const Params& params, const Fn& fn, char* shared, Books<S, Fn>& books, float* room)
      : params_(params), plan_(params.plan), fn_(fn), shared_(shared), books_(books), room_(room) {}

  // The rows of the item; those behind its last repeat it and are stored nowhere.
  ATTNGEN_DEVICE void describe(const Item& item, const Level& level) const {
    const auto* tokens = level.tokens ? plan_.at<std::int32_t>(level.tokens) : nullptr;
    for (int i = threadIdx.x; i < S::kRows; i += S::kThreads) {
      const std::int32_t packed = item.packed_begin + (i < item.packed_count ? i : item.packed_count - 1);
      const std::int32_t index = packed / params_.group;
      const std::int32_t head = item.kv_head * params_.group + packed - index * params_.group;
      books_.rows[i] = fn_.row(plan_.row(tokens ? tokens[index] : index, head, item.kv_head));
      if (i >= item.packed_count) books_.partial[i] = kNoRow;
    }
    const Segment* segments = plan_.at<Segment>(plan_.plan_->segments_at) + item.segment_begin;
    for (int s = 0; s < item.segment_count; ++s) {
      const Segment segment = segments[s];
      for (int i = threadIdx.x; i < segment.count; i += S::kThreads)
        books_.partial[segment.offset + i] = segment.partial == kWriteThrough ? kWriteThrough : segment.partial + i;
    }
  }

  // Queries of rows [begin, end) of the tile, by one warp: transformed, rounded, padded with zeros.
  ATTNGEN_DEVICE void load(int begin, int end) const {
    using L = VectorLayout<S::kHeadDim>;
    using Operand = typename S::Operand;
#pragma unroll 1
    for (int i = begin + L::row(); i < begin + round_up(end - begin, L::kRows); i += L::kRows) {
      const typename Fn::Row& row = books_.rows[i < end ? i : begin];
      Chunks<S::kHeadDim> x;
      read_vector<S::kHeadDim>(
          static_cast<const Operand*>(params_.q) + row.row * params_.q_row + row.h * params_.q_head, x);
      if constexpr (Fn::kHasQuery) {
        WarpLanes<S::kHeadDim, Fn::kUsesLaneAt> lanes(x, room_ + L::row() * L::kRoom);
        fn_.query(lanes, row);
      }
      if (i < end) {
        auto* to = reinterpret_cast<Operand*>(shared_ + S::kQueries + i * S::kPitch);
        write_vector<S::kHeadDim>(to, x);
        if constexpr (S::kDim != S::kHeadDim) {
          if (L::lane() == 0) *reinterpret_cast<uint4*>(to + S::kHeadDim) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }

 private:
  const Params& params_;
  PlanView plan_;
  const Fn& fn_;
  char* shared_;
  Books<S, Fn>& books_;
  float* room_;
};

}  // namespace attngen::fa2
