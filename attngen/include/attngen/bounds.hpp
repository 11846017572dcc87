// Key bounds as data: postfix programs of (operation, operand) pairs that the planner evaluates in 64 bits.
#pragma once

#include <cstdint>

namespace attngen {

enum class BoundOp : std::int64_t {
  kConst = 0,   // push operand
  kArg = 1,     // push argument: 0 pos_lo, 1 pos_hi, 2 q_len, 3 kv_len, 4 + i the i-th plan scalar in manifest order
  kAdd = 2,
  kSub = 3,
  kMul = 4,
  kFloorDiv = 5,   // by zero: 0
  kMod = 6,        // floors; by zero: 0
  kMin = 7,
  kMax = 8,
  kNeg = 9,
  kAbs = 10,
  kLess = 11,      // comparisons give 1 or 0
  kLessEqual = 12,
  kEqual = 13,
  kAnd = 14,       // of 0/1 values
  kOr = 15,
  kNot = 16,
  kSelect = 17,    // condition, then, otherwise
};

}  // namespace attngen
