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
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t binary(BoundOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case BoundOp::kAdd: return a + b;
    case BoundOp::kSub: return a - b;
    case BoundOp::kMul: return a * b;
    case BoundOp::kFloorDiv: return floor_div(a, b);
    case BoundOp::kMod: return b == 0 ? 0 : a - b * floor_div(a, b);
    case BoundOp::kMin: return std::min(a, b);
    case BoundOp::kMax: return std::max(a, b);
    case BoundOp::kLess: return a < b;
    case BoundOp::kLessEqual: return a <= b;
    case BoundOp::kEqual: return a == b;
    case BoundOp::kAnd: return a & b;
    default: return a | b;
  }
}

bool fits(std::int64_t value) {
  return value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max();
}

// Runs one program; false where a value leaves 32 bits.  Values on the stack fit 32 bits, so nothing overflows 64.
bool run(const KeyBounds::Program& program, const std::int64_t* args, const std::int64_t* scalars,
         std::int64_t* stack, std::int64_t* result) {
  std::int64_t* top = stack;  // one past the last value
  for (const auto& [op, operand] : program) {
    std::int64_t value;
    switch (operands(op)) {
      case 0:
        value = op == BoundOp::kConst ? operand : operand < kFixedArgs ? args[operand] : scalars[operand - kFixedArgs];
        break;
      case 1:
        value = *--top;
        value = op == BoundOp::kNeg ? -value : op == BoundOp::kAbs ? (value < 0 ? -value : value) : value == 0;
        break;
      case 3:
        top -= 3;
        value = top[0] != 0 ? top[1] : top[2];
        break;
      default:
        top -= 2;
        value = binary(op, top[0], top[1]);
    }
    if (!fits(value)) return false;
    *top++ = value;
  }
  *result = top[-1];
  return true;
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
    : programs_(std::move(programs)), has_mask_(has_mask) {
  if (!programs_.empty() && programs_.size() != 4)
    throw std::invalid_argument("key_bounds: got " + std::to_string(programs_.size()) + " programs, need 0 or 4");
  for (const Program& program : programs_) stack_.resize(std::max(stack_.size(), depth(program, num_scalars)));
}

KeyRange KeyBounds::evaluate(const BoundArgs& args, const std::int64_t* scalars) const {
  const std::int64_t kv_len = args.kv_len;
  if (programs_.empty()) return {0, 0, has_mask_ ? 0 : kv_len, kv_len};
  const std::int64_t fixed[kFixedArgs] = {args.pos_lo, args.pos_hi, args.q_len, kv_len};
  std::int64_t bound[4];
  for (int i = 0; i < 4; ++i)
    if (!run(programs_[i], fixed, scalars, stack_.data(), &bound[i])) return {0, 0, 0, kv_len};
  KeyRange range;
  range.first = std::clamp<std::int64_t>(bound[0], 0, kv_len);
  range.last = std::clamp<std::int64_t>(bound[3], range.first, kv_len);
  range.full_from = std::clamp(bound[1], range.first, range.last);
  range.full_to = std::clamp(bound[2], range.full_from, range.last);
  return range;
}

}  // namespace attngen::plan
