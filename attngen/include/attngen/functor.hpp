// The functor contract: what a generated variant offers and what a kernel template may call.
//
// A functor is built once a launch from the argument words; its members hold what depends on the launch alone.
// Three scopes are three members: row(at) and column(at) compute what depends on a row or on a column alone, the hooks
// do the rest.  Hooks are templates over the number types: F = float and I = std::int32_t in CUDA threads and for
// single keys, SIMD vectors (simd.hpp) over keys or lanes on a CPU.
//
// Argument words, in the manifest's order:
//   scalar   { value, address }         value is the bit pattern (f32 in the low half, integers sign-extended);
//                                       where address is not 0, the value is read from there
//   tensor   { address, size0, stride0, size1, stride1, … }    strides in elements
#pragma once

#include <concepts>
#include <cstdint>

#include "attngen/platform.hpp"

namespace attngen {

using Word = std::int64_t;

struct Sizes {
  std::int32_t head_dim, head_dim_v, num_qo_heads, num_kv_heads, group;
};

// The indices of a query row (a token and a head).
struct RowAt {
  std::int32_t b, h, hk, q, pos, row, q_len, kv_len;
};

// The indices of one key (I = std::int32_t) or of a vector of keys.
template <class I>
struct ColumnAt {
  I kv, slot;
  std::int32_t hk;
};

// A functor `Fn`, hook by hook.  Fn::Row derives from RowAt and Fn::Column<F, I> from ColumnAt<I>; both hold the values
// hoisted to their scope.  Hooks that a variant doesn't have are absent, and their flag is false:
//   kSoftmax kHasQuery kHasKey kHasValue kHasValueScale kHasMask kHasSink kHasOutput
//   kHasTables    Tables isn't empty, so some vector stage reads `tables`
//   kUsesLaneAt   some vector stage calls lane.at
//   kReadsSlot    some hook reads a column's slot
//   kMaskEnds     the mask hides every key from kv_len on, or at a position above all queries'
//   kLogitBound   |scale_log2 · logits| is at most this; negative where it isn't known
//
// Softmax on:  weight = exp2(scale_log2 · logits(dot)), so `logits` takes the bare dot product q'·k'.
// Softmax off: weight = logits(dot), and the mask's 0 elsewhere.
template <class Fn>
concept HasScopes = requires(const Fn fn, RowAt row, ColumnAt<std::int32_t> column, const Word* args, Sizes sizes) {
  Fn(args, sizes);
  { fn.row(row) } -> std::derived_from<RowAt>;
  { fn.template column<float, std::int32_t>(column) } -> std::derived_from<ColumnAt<std::int32_t>>;
  { fn.scale_log2 } -> std::convertible_to<float>;
};

// Floats for each lane that depend on the launch alone, Fn::Tables, lie outside the functor: one thread or many fill
// the entries first, first + step, … of memory of their choice, first `fill`, then, behind a barrier, `derive`, and set
// the functor's pointer.
template <class Fn>
concept HasTables = requires(const Fn fn, Fn mutable_fn, typename Fn::Tables& tables) {
  fn.fill(tables, 0, 1);
  fn.derive(tables, 0, 1);
  mutable_fn.tables = &tables;
};

// Fills a functor's tables by one thread and hands them to it.
template <class Fn>
ATTNGEN_FN void use_tables(Fn& fn, typename Fn::Tables& tables) {
  fn.fill(tables, 0, 1);
  fn.derive(tables, 0, 1);
  fn.tables = &tables;
}

template <class Fn>
using ScalarColumn = typename Fn::template Column<float, std::int32_t>;

template <class Fn>
concept HasLogits = requires(const Fn fn, const typename Fn::Row row, const ScalarColumn<Fn> column) {
  { fn.logits(1.0f, row, column) } -> std::same_as<float>;
};

template <class Fn>
concept HasMask = !Fn::kHasMask || requires(const Fn fn, const typename Fn::Row row, const ScalarColumn<Fn> column) {
  { fn.template mask<float>(row, column) } -> std::same_as<bool>;
};

template <class Fn>
concept HasSink = !Fn::kHasSink || requires(const Fn fn, const typename Fn::Row row) {
  { fn.sink(row) } -> std::same_as<float>;  // a natural logit
};

template <class Fn>
concept HasValueScale = !Fn::kHasValueScale || requires(const Fn fn, const ScalarColumn<Fn> column) {
  { fn.value_scale(column) } -> std::same_as<float>;
};

// Vector stages get the lanes of one vector.  The template owns the layout; a stage may only call
//   x.sum(fn)     Σ over lanes of fn(lane), an f32
//   x.each(fn)    replaces every lane by fn(lane), all reads before all writes
// and, on the `lane` that fn receives,
//   lane.d()          the lane's index (I)             lane.self()        its value (F)
//   lane.half()       lane (d + n/2) % n               lane.pair()        lane d ^ 1
//   lane.at(index)    any lane, clamped                lane.table(p)      p[d], a member of Tables
template <class Fn, class Lanes>
concept HasQuery = !Fn::kHasQuery || requires(const Fn fn, Lanes x, const typename Fn::Row row) { fn.query(x, row); };

template <class Fn, class Lanes>
concept HasKey = !Fn::kHasKey || requires(const Fn fn, Lanes x, const ScalarColumn<Fn> column) { fn.key(x, column); };

template <class Fn, class Lanes>
concept HasValue = !Fn::kHasValue || requires(const Fn fn, Lanes x, const ScalarColumn<Fn> column) { fn.value(x, column); };

template <class Fn, class Lanes>
concept HasOutput = !Fn::kHasOutput || requires(const Fn fn, Lanes x, const typename Fn::Row row) { fn.output(x, row, 0.0f); };

// One assert a hook: nvcc prints no more of a failed concept than this text.
template <class Fn, class Lanes>
constexpr bool check_functor() {
  static_assert(HasScopes<Fn>, "functor: row, column, scale_log2 or the constructor breaks the contract");
  static_assert(HasTables<Fn>, "functor: Tables, fill, derive or the pointer breaks the contract");
  static_assert(HasLogits<Fn>, "functor: logits breaks the contract");
  static_assert(HasMask<Fn>, "functor: mask breaks the contract");
  static_assert(HasSink<Fn>, "functor: sink breaks the contract");
  static_assert(HasValueScale<Fn>, "functor: value_scale breaks the contract");
  static_assert(HasQuery<Fn, Lanes>, "functor: query breaks the contract");
  static_assert(HasKey<Fn, Lanes>, "functor: key breaks the contract");
  static_assert(HasValue<Fn, Lanes>, "functor: value breaks the contract");
  static_assert(HasOutput<Fn, Lanes>, "functor: output breaks the contract");
  return true;
}

}  // namespace attngen
