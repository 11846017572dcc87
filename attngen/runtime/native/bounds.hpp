// Evaluation of key bounds: the ranges of keys that a range of query positions may and must see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "attngen/bounds.hpp"

namespace attngen::plan {

struct KeyRange {
  std::int64_t first, full_from, full_to, last;
};

class KeyBounds {
 public:
  using Program = std::vector<std::pair<BoundOp, std::int64_t>>;

  // Four programs (first, full_from, full_to, last), or none: every key is visited, and masked if `has_mask`.
  // Throws std::invalid_argument for a program that isn't well formed.
  KeyBounds(std::vector<Program> programs, bool has_mask, int num_scalars);

  // Clipped to [0, kv_len]; [0, kv_len) with an empty full range where an intermediate leaves 32 bits, since the
  // kernel's own arithmetic wraps there.
  // The scalars are those of the last `bind`.  Arguments come one by one, in registers: a plan does this once a tile.
  KeyRange evaluate(std::int64_t pos_lo, std::int64_t pos_hi, std::int64_t q_len, std::int64_t kv_len) const {
    const bool small = is_small(pos_lo) && is_small(pos_hi) && is_small(q_len) && is_small(kv_len);
    if (!sums_hold_ || !small) return run_programs(pos_lo, pos_hi, q_len, kv_len);
    const auto bound = [&](int i) {
      const std::int64_t* factor = factor_[i];
      return base_[i] + factor[0] * pos_lo + factor[1] * pos_hi + factor[2] * q_len + factor[3] * kv_len;
    };
    return clip(bound(0), bound(1), bound(2), bound(3), kv_len);
  }

  // Takes over the plan's scalars; they must stay in place.
  void bind(const std::int64_t* scalars);

 private:
  // Most masks have bounds like min(pos + 1, kv_len): a sum of arguments, then clipped as any bound is.  Then one
  // evaluation is a few multiplications.
  struct Sums {
    std::int64_t constant[4];
    std::vector<std::int64_t> factors[4];  // of each argument, scalars last
  };
  static bool find_sum(const Program& program, int num_scalars, std::int64_t* constant,
                       std::vector<std::int64_t>* factors);
  KeyRange run_programs(std::int64_t pos_lo, std::int64_t pos_hi, std::int64_t q_len, std::int64_t kv_len) const;

  // Sums of up to kTerms arguments below kSmall and a constant below kLargeConstant stay inside 32 bits at every step.
  static constexpr std::int64_t kSmall = 1 << 27, kTerms = 8, kLargeConstant = 1 << 29;
  static bool is_small(std::int64_t value) { return static_cast<std::uint64_t>(value + kSmall) < 2 * kSmall; }

  static KeyRange clip(std::int64_t first, std::int64_t full_from, std::int64_t full_to, std::int64_t last,
                       std::int64_t kv_len) {
    first = std::clamp<std::int64_t>(first, 0, kv_len);
    last = std::clamp(last, first, kv_len);
    full_from = std::clamp(full_from, first, last);
    return {first, full_from, std::clamp(full_to, full_from, last), last};
  }

  std::vector<Program> programs_;
  bool has_mask_;
  int num_scalars_;
  bool are_sums_ = false;  // all four
  Sums sums_;
  const std::int64_t* scalars_ = nullptr;
  bool sums_hold_ = false;            // no scalar is so large that a sum might leave 32 bits
  std::int64_t base_[4], factor_[4][4];  // of each sum, with the scalars in it
  mutable std::vector<std::int64_t> stack_;
};

}  // namespace attngen::plan
