// Evaluation of key bounds: the ranges of keys that a range of query positions may and must see.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attngen/bounds.hpp"

namespace attngen::plan {

struct KeyRange {
  std::int64_t first, full_from, full_to, last;
};

// The arguments of one evaluation besides the plan scalars.
struct BoundArgs {
  std::int64_t pos_lo, pos_hi, q_len, kv_len;
};

class KeyBounds {
 public:
  using Program = std::vector<std::pair<BoundOp, std::int64_t>>;

  // Four programs (first, full_from, full_to, last), or none: every key is visited, and masked if `has_mask`.
  // Throws std::invalid_argument for a program that isn't well formed.
  KeyBounds(std::vector<Program> programs, bool has_mask, int num_scalars);

  // Clipped to [0, kv_len]; [0, kv_len) with an empty full range where an intermediate leaves 32 bits, since the
  // kernel's own arithmetic wraps there.
  KeyRange evaluate(const BoundArgs& args, const std::int64_t* scalars) const;

 private:
  std::vector<Program> programs_;
  bool has_mask_;
  mutable std::vector<std::int64_t> stack_;
};

}  // namespace attngen::plan
