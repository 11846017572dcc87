#include "bounds.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace attngen::plan {
namespace {

constexpr int kFixedArgs = 4;

int operands(BoundOp op) {
  switch (op) {
    case BoundOp::kConst:
    case BoundOp::kArg:
      return 0;
    case BoundOp::kNeg:
    case BoundOp::kAbs:
    case BoundOp::kNot:
      return 1;
    case BoundOp::kSelect:
      return 3;
    default:
      return 2;
  }
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));  // the smallest a overflows
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// Non-zero where a value leaves 32 bits.
std::uint64_t beyond(std::int64_t value) { return (static_cast<std::uint64_t>(value) + 0x80000000u) >> 32; }

// Signed arithmetic that wraps: a value that left 32 bits is noticed at the end, and may overflow until then.
std::int64_t wrap(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Runs one program; false where a value leaves 32 bits.
bool run(const KeyBounds::Program& program, const std::int64_t* args, const std::int64_t* scalars,
         std::int64_t* stack, std::int64_t* result) {
  std::int64_t* top = stack - 1;  // the last value
  std::uint64_t outside = 0;
  for (const auto& [op, operand] : program) {
    switch (op) {
      case BoundOp::kConst: *++top = operand; break;
      case BoundOp::kArg: *++top = operand < kFixedArgs ? args[operand] : scalars[operand - kFixedArgs]; break;
      case BoundOp::kAdd: --top, *top = wrap(bits(*top) + bits(top[1])); break;
      case BoundOp::kSub: --top, *top = wrap(bits(*top) - bits(top[1])); break;
      case BoundOp::kMul: --top, *top = wrap(bits(*top) * bits(top[1])); break;
      case BoundOp::kFloorDiv: --top, *top = floor_div(*top, top[1]); break;
      case BoundOp::kMod: --top, *top = top[1] == 0 ? 0 : wrap(bits(*top) - bits(top[1]) * bits(floor_div(*top, top[1]))); break;
      case BoundOp::kMin: --top, *top = std::min(*top, top[1]); break;
      case BoundOp::kMax: --top, *top = std::max(*top, top[1]); break;
      case BoundOp::kNeg: *top = wrap(0 - bits(*top)); break;
      case BoundOp::kAbs: *top = *top < 0 ? wrap(0 - bits(*top)) : *top; break;
      case BoundOp::kLess: --top, *top = *top < top[1]; break;
      case BoundOp::kLessEqual: --top, *top = *top <= top[1]; break;
      case BoundOp::kEqual: --top, *top = *top == top[1]; break;
      case BoundOp::kAnd: --top, *top &= top[1]; break;
      case BoundOp::kOr: --top, *top |= top[1]; break;
      case BoundOp::kNot: *top = *top == 0; break;
      case BoundOp::kSelect: top -= 2, *top = *top != 0 ? top[1] : top[2]; break;
    }
    outside |= beyond(*top);
  }
  *result = *top;
  return outside == 0;
}

// The depth of the stack that a program needs; throws where it isn't a well-formed postfix program.
std::size_t depth(const KeyBounds::Program& program, int num_scalars) {
  std::int64_t height = 0, highest = 0;
  for (const auto& [op, operand] : program) {
    const auto code = static_cast<std::int64_t>(op);
    if (code < 0 || code > static_cast<std::int64_t>(BoundOp::kSelect))
      throw std::invalid_argument("key_bounds: unknown operation " + std::to_string(code));
    if (op == BoundOp::kArg && (operand < 0 || operand >= kFixedArgs + num_scalars))
      throw std::invalid_argument("key_bounds: argument " + std::to_string(operand) + " of " +
                                  std::to_string(kFixedArgs + num_scalars));
    height -= operands(op);
    if (height < 0) throw std::invalid_argument("key_bounds: an operation lacks operands");
    highest = std::max(highest, ++height);
  }
  if (height != 1) throw std::invalid_argument("key_bounds: a program must leave one value");
  return static_cast<std::size_t>(highest);
}

}  // namespace

KeyBounds::KeyBounds(std::vector<Program> programs, bool has_mask, int num_scalars)
    : programs_(std::move(programs)), has_mask_(has_mask), num_scalars_(num_scalars) {
  if (!programs_.empty() && programs_.size() != 4)
    throw std::invalid_argument("key_bounds: got " + std::to_string(programs_.size()) + " programs, need 0 or 4");
  for (const Program& program : programs_) stack_.resize(std::max(stack_.size(), depth(program, num_scalars)));
  are_sums_ = !programs_.empty();
  for (std::size_t i = 0; i < programs_.size(); ++i)
    are_sums_ = are_sums_ && find_sum(programs_[i], num_scalars, &sums_.constant[i], &sums_.factors[i]);
}

// Whether a program sums arguments and a constant and at most clips the sum to [0, kv_len] at the end.
bool KeyBounds::find_sum(const Program& program, int num_scalars, std::int64_t* constant,
                         std::vector<std::int64_t>* factors) {
  struct Sum {
    std::int64_t constant;
    std::vector<std::int64_t> factors;
    bool clipped;
  };
  constexpr std::size_t kKvLen = 3;
  const auto terms = [](const Sum& sum) {
    std::int64_t count = 0;
    for (const std::int64_t factor : sum.factors) count += std::abs(factor);
    return count;
  };
  std::vector<Sum> stack;
  for (const auto& [op, operand] : program) {
    Sum sum{0, std::vector<std::int64_t>(kFixedArgs + static_cast<std::size_t>(num_scalars)), false};
    if (op == BoundOp::kConst) {
      sum.constant = operand;
    } else if (op == BoundOp::kArg) {
      sum.factors[static_cast<std::size_t>(operand)] = 1;
    } else {
      if (op != BoundOp::kAdd && op != BoundOp::kSub && op != BoundOp::kMin && op != BoundOp::kMax) return false;
      const Sum right = std::move(stack.back());
      stack.pop_back();
      Sum left = std::move(stack.back());
      stack.pop_back();
      if (op == BoundOp::kAdd || op == BoundOp::kSub) {
        if (left.clipped || right.clipped) return false;
        const std::int64_t sign = op == BoundOp::kAdd ? 1 : -1;
        left.constant += sign * right.constant;
        for (std::size_t i = 0; i < left.factors.size(); ++i) left.factors[i] += sign * right.factors[i];
      } else {
        const bool by_len = right.constant == 0 && terms(right) == 1 && right.factors[kKvLen] == 1;
        const bool by_zero = right.constant == 0 && terms(right) == 0;
        if (right.clipped || !(op == BoundOp::kMin ? by_len : by_zero)) return false;
        left.clipped = true;
      }
      sum = std::move(left);
    }
    if (std::abs(sum.constant) >= kLargeConstant || terms(sum) > kTerms) return false;
    stack.push_back(std::move(sum));
  }
  *constant = stack.back().constant;
  *factors = std::move(stack.back().factors);
  return true;
}

void KeyBounds::bind(const std::int64_t* scalars) {
  scalars_ = scalars;
  sums_hold_ = are_sums_;
  for (int s = 0; s < num_scalars_; ++s) sums_hold_ = sums_hold_ && is_small(scalars[s]);
  for (int i = 0; sums_hold_ && i < 4; ++i) {
    const std::vector<std::int64_t>& factors = sums_.factors[i];
    base_[i] = sums_.constant[i];
    for (int s = 0; s < num_scalars_; ++s) base_[i] += factors[static_cast<std::size_t>(kFixedArgs + s)] * scalars[s];
    for (int argument = 0; argument < kFixedArgs; ++argument)
      factor_[i][argument] = factors[static_cast<std::size_t>(argument)];
  }
}

KeyRange KeyBounds::run_programs(std::int64_t pos_lo, std::int64_t pos_hi, std::int64_t q_len,
                                 std::int64_t kv_len) const {
  if (programs_.empty()) return {0, 0, has_mask_ ? 0 : kv_len, kv_len};
  const std::int64_t fixed[kFixedArgs] = {pos_lo, pos_hi, q_len, kv_len};
  std::int64_t bound[4];
  for (int i = 0; i < 4; ++i)
    if (!run(programs_[i], fixed, scalars_, stack_.data(), &bound[i])) return {0, 0, 0, kv_len};
  return clip(bound[0], bound[1], bound[2], bound[3], kv_len);
}

}  // namespace attngen::plan
