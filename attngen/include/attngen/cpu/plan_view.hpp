// Typed pointers into a plan's arena.
#pragma once

#include <cstdint>

#include "attngen/functor.hpp"
#include "attngen/work.hpp"

namespace attngen::cpu {

struct PlanView {
  explicit PlanView(const PlanHeader* header)
      : base(reinterpret_cast<const char*>(header)),
        qo_indptr(at<std::int32_t>(header->qo_indptr_at)),
        kv_len(at<std::int32_t>(header->kv_len_at)),
        row_request(at<std::int32_t>(header->row_request_at)),
        workers(at<Worker>(kWorkersAt)),
        items(at<Item>(header->items_at)),
        segments(at<Segment>(header->segments_at)),
        merges(at<Merge>(header->merges_at)),
        levels(at<Level>(header->levels_at)) {}

  template <class Record>
  const Record* at(std::int64_t offset) const {
    return reinterpret_cast<const Record*>(base + offset);
  }

  // The indices of token `token` under query head `head`.
  RowAt row(std::int32_t token, std::int32_t head, std::int32_t kv_head) const {
    const std::int32_t b = row_request[token];
    const std::int32_t q = token - qo_indptr[b];
    const std::int32_t q_len = qo_indptr[b + 1] - qo_indptr[b];
    return {b, head, kv_head, q, q + kv_len[b] - q_len, token, q_len, kv_len[b]};
  }

  const char* base;
  const std::int32_t* qo_indptr;
  const std::int32_t* kv_len;
  const std::int32_t* row_request;
  const Worker* workers;
  const Item* items;
  const Segment* segments;
  const Merge* merges;
  const Level* levels;
};

}  // namespace attngen::cpu
