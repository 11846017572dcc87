// The keys of one tile: where they lie in the pool and which positions they have.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attngen/cpu/plan_view.hpp"

namespace attngen::cpu {

template <int kKeys>
struct KeyTile {
  alignas(64) std::int32_t kv[kKeys];    // logical position; 0 behind the last key
  alignas(64) std::int32_t slot[kKeys];  // row of the pool; that of the first key behind the last one
  std::int64_t k[kKeys], v[kKeys];       // element offsets of the rows in the pools, head included
  int count;
  std::int32_t last_kv;  // the largest position

  // Keys [begin, begin + count) of a list whose first block is number `list`.
  void locate(const PlanView& plan, const Level& level, std::int64_t list, std::int32_t begin, int keys,
              const Strides& k_strides, const Strides& v_strides, std::int32_t kv_head) {
    const auto* indices = level.indices ? plan.at<std::int32_t>(level.indices) + list : nullptr;
    const auto* positions = level.positions ? plan.at<std::int32_t>(level.positions) + list : nullptr;
    count = keys;
    last_kv = 0;
    std::int32_t entry = begin / level.block_size, offset = begin % level.block_size;
    for (int i = 0; i < keys; ++entry, offset = 0) {
      const std::int64_t block = indices ? indices[entry] : list + entry;
      const std::int32_t position = positions ? positions[entry] : entry * level.block_size;
      const int stop = std::min(keys, i + level.block_size - offset);
      last_kv = std::max(last_kv, position + offset + (stop - i) - 1);
      for (; i < stop; ++i, ++offset) {
        kv[i] = position + offset;
        slot[i] = static_cast<std::int32_t>(block * level.block_size + offset);
        k[i] = block * k_strides.block + offset * k_strides.token + kv_head * k_strides.head;
        v[i] = block * v_strides.block + offset * v_strides.token + kv_head * v_strides.head;
      }
    }
    for (int i = keys; i < kKeys; ++i) {
      kv[i] = 0;
      slot[i] = slot[0];
    }
  }
};

}  // namespace attngen::cpu
