// Merges attention states of one query set, in fp32 and in the order given.
#pragma once

#include <vector>

#include "host.hpp"

namespace attngen::host {

struct State {
  const DLTensor* out;
  const DLTensor* lse;  // nullptr in all: softmax off, states add
};

// Writes the merged state; (0, -inf) is the identity, bit for bit.  `natural`: the lse's base is e, else 2.
void merge(const std::vector<State>& states, const DLTensor& out, const DLTensor* lse, Type type, bool natural,
           int threads);

}  // namespace attngen::host
