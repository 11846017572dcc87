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

  // Rows [begin, begin + kCount) of the item, by one warp, a lane each; those behind its last repeat it and are stored
  // nowhere.  Returns where the lane's query lies.
  template <int kCount>
  ATTNGEN_DEVICE const char* describe(const Item& item, const Level& level, int begin) const {
    static_assert(kCount <= 32);
    const int i = begin + ptx::lane() % kCount;
    const bool real = i < item.packed_count;
    const std::int32_t packed = item.packed_begin + (real ? i : item.packed_count - 1);
    const std::int32_t index = packed / params_.group;
    const std::int32_t head = item.kv_head * params_.group + packed - index * params_.group;
    const std::int32_t token = level.tokens ? plan_.at<std::int32_t>(level.tokens)[index] : index;
    books_.rows[i] = fn_.row(item.q_begin < 0 ? plan_.row(token, head, item.kv_head) : row_of(item, token, head));
    books_.partial[i] = !real ? kNoRow : item.segment_count > 1 ? partial_of(item, i) : place(item.partial, i);
    return static_cast<const char*>(params_.q) + 2 * (token * params_.q_row + head * params_.q_head);
  }

  // Has the queries of those rows copied into shared memory, padded with zeros; `own` is where the lane's lies.
  template <int kCount>
  ATTNGEN_DEVICE void copy(int begin, const char* own) const {
    using Pieces = RowPieces<kCount, S::kDim / 8>;
    const std::uint32_t base = ptx::shared_address(shared_ + S::kQueries);
    const int lane = ptx::lane();
#pragma unroll 4
    for (int first = 0; first < Pieces::kSteps; first += Pieces::kOfRow) {
      const int row = Pieces::row(lane, first);
      const auto from = reinterpret_cast<const char*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(own), row % kCount));
      if (!Pieces::exists(lane, first)) continue;
#pragma unroll
      for (int step = first; step < first + Pieces::kOfRow; ++step) {
        const int piece = Pieces::piece(lane, step), at = piece * 16;
        const bool real = S::kHeadDim == S::kDim || at < 2 * S::kHeadDim;
        ptx::copy_async<16>(base + S::Keys::at(begin + row, piece), from + (real ? at : 0), real ? 16 : 0);
      }
    }
  }

  // Transforms the queries that copy() brought; every lane of the warp has waited for its copies.
  template <int kCount>
  ATTNGEN_DEVICE void transform(int begin) const {
    if constexpr (Fn::kHasQuery) {
      using L = VectorLayout<S::kHeadDim>;
      __syncwarp();
#pragma unroll 1
      for (int first = 0; first < kCount; first += L::kRows) {
        const int own = first + L::row(), i = begin + (own < kCount ? own : 0);
        auto* at = reinterpret_cast<Operand*>(shared_ + S::kQueries + i * S::kPitch);
        Chunks<S::kHeadDim> x;
        read_vector<S::kHeadDim>(at, x, S::Keys::turn(i));
        WarpLanes<S::kHeadDim, Fn::kUsesLaneAt> lanes(x, room_ + L::row() * L::kRoom);
        fn_.query(lanes, books_.rows[i]);
        __syncwarp();
        if (own < kCount) write_vector<S::kHeadDim>(at, x, S::Keys::turn(i));
      }
    }
  }

 private:
  using Operand = typename S::Operand;

  ATTNGEN_DEVICE static RowAt row_of(const Item& item, std::int32_t token, std::int32_t head) {
    const std::int32_t q = token - item.q_begin;
    return {item.request, head, item.kv_head, q, q + item.kv_len - item.q_len, token, item.q_len, item.kv_len};
  }

  ATTNGEN_DEVICE static std::int32_t place(std::int32_t partial, int i) {
    return partial == kWriteThrough ? kWriteThrough : partial + i;
  }

  ATTNGEN_DEVICE std::int32_t partial_of(const Item& item, int i) const {
    const Segment* segments = plan_.at<Segment>(plan_.plan_->segments_at) + item.segment_begin;
    for (int s = 0; s < item.segment_count; ++s)
      if (i >= segments[s].offset && i < segments[s].offset + segments[s].count)
        return place(moved(segments[s], books_.move).partial, i - segments[s].offset);
    return kNoRow;
  }

  const Params& params_;
  PlanView plan_;
  const Fn& fn_;
  char* shared_;
  Books<S, Fn>& books_;
  float* room_;
};

}  // namespace attngen::fa2
