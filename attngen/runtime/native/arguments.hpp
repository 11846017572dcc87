// A variant's parameters: checked against what the variant declares, and laid out as the functor reads them
// (include/attngen/functor.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host.hpp"

namespace attngen::host {

// What a caller passed for one parameter.
struct Value {
  enum class Kind { kMissing, kBool, kInt, kFloat, kTensor, kOther };
  Kind kind = Kind::kMissing;
  std::int64_t integer = 0;  // also a bool
  double real = 0;
  const DLTensor* tensor = nullptr;
  const char* type = "";  // of kOther, for the message
};

// A dimension: exactly `value`, at least a size of the call, or whatever the first use binds its name to.
struct Dim {
  enum class Kind : int { kExact, kAtLeast, kBound };
  std::string name;  // empty: a plain number
  Kind kind;
  std::int64_t value;  // the size; an index into Extents; an index of the bound names
};

// Sizes that only the call knows, in the order of Dim::value: B, Rows, Slots, Q, KV.
struct Extents {
  std::int64_t sizes[5];
};

// One end of a declared range: a number, or a bound dimension.
struct Limit {
  double number = 0;
  int dim = -1;  // index of the bound names
};

// What a captured graph can hold: the smallest size that any of its tensors has, and whose it is.
struct Held {
  static constexpr std::int64_t kAny = INT64_MAX;
  std::int64_t sizes[5] = {kAny, kAny, kAny, kAny, kAny};
  std::string by[5];

  void narrow(int extent, std::int64_t size, const std::string& name) {
    if (size >= sizes[extent]) return;
    sizes[extent] = size;
    by[extent] = name;
  }
};

// Where tensors need to be, and a zero there that stands for an empty one.
struct Place {
  DLDevice device = kCpu;
  const void* zeros = nullptr;  // 64 bytes; on the CPU, the library's own
};

struct Parameter {
  std::string name;
  Type type;
  bool scalar;
  bool planned;  // given to plan(), and held in the words since
  bool needed;   // false: not read here, so not asked for either
  std::vector<Dim> dims;
  std::optional<Limit> low, high;  // half open
};

class Arguments {
 public:
  Arguments(std::vector<Parameter> parameters, bool check_ranges, Place place = {});

  // Checks `values` (one a parameter; planned ones are kept as they were) and fills the words.
  void fill(const Value* values, const Extents& extents);
  // Sets the planned scalars from `values`, one a parameter.
  void plan_scalars(const Value* values);
  // Notes how far the tensors of `values`, which fill() has checked, reach.
  void hold(const Value* values, Held& held) const;

  // Has kernels read the planned scalars at these addresses, a word each, in the order of the parameters.
  void read_planned_at(std::int64_t address);
  // Writes the planned scalars as the functor reads them.
  void write_planned(std::int64_t* words) const;

  const std::int64_t* words() const { return words_.data(); }
  std::size_t num_words() const { return words_.size(); }

 private:
  void fill_scalar(const Parameter& parameter, const Value& value, std::int64_t* words) const;
  void fill_tensor(const Parameter& parameter, const Value& value, const Extents& extents, std::int64_t* words);
  void bind(const Parameter& parameter, const DLTensor& tensor, const Extents& extents);
  void check_range(const Parameter& parameter, const DLTensor& tensor) const;
  [[noreturn]] void missing(const Parameter& parameter, const Extents* extents) const;
  [[noreturn]] void wrong_shape(const Parameter& parameter, const DLTensor& tensor, const Extents& extents) const;
  std::string wanted(const Parameter& parameter, const Extents* extents) const;

  std::vector<Parameter> parameters_;
  std::vector<std::size_t> offsets_;  // of a parameter's words
  std::vector<std::int64_t> words_;
  std::vector<std::int64_t> bound_;         // sizes of the bound names; -1: not yet
  std::vector<const Parameter*> bound_by_;  // who bound it, for the message
  bool check_ranges_;
  Place place_;
};

}  // namespace attngen::host
