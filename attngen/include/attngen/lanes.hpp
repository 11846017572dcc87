// The lanes of one vector, as vector stages see them (functor.hpp): an array of N floats, W of them at a time.
//
// The array is padded to a multiple of W; what lies in the padding is computed with and never counts.  W = 1 makes a
// lane a scalar, which is how the contract is checked where no kernel supplies lanes of its own.
#pragma once

#include "attngen/tensor.hpp"

namespace attngen {

template <int W, int N>
class Lanes {
  static_assert(N % 8 == 0, "head dimensions are multiples of 8");
  static constexpr int kVectors = (N + W - 1) / W;

 public:
  class Lane {
   public:
    using F = std::conditional_t<W == 1, float, simd::f32<W>>;
    using I = simd::Int<F>;

    ATTNGEN_FN Lane(const float* x, int base) : x_(x), base_(base) {}

    ATTNGEN_FN I d() const { return simd::iota<I>() + base_; }
    ATTNGEN_FN F self() const { return simd::load<F>(x_ + base_); }
    ATTNGEN_FN F table(const float* p) const { return simd::load<F>(p + base_); }

    ATTNGEN_FN F half() const {
      if constexpr (N / 2 % W == 0) {
        return simd::load<F>(x_ + (base_ < N / 2 ? base_ + N / 2 : base_ - N / 2));
      } else {
        const I here = d();
        return at(select(here < N / 2, here + N / 2, here - N / 2));
      }
    }

    ATTNGEN_FN F pair() const {
      if constexpr (W == 1) {
        return x_[base_ ^ 1];
      } else {
#if !defined(__CUDACC__)
        const F x = self();
        return [&]<int... L>(std::integer_sequence<int, L...>) {
          return __builtin_shufflevector(x, x, (L ^ 1)...);
        }(std::make_integer_sequence<int, W>());
#endif
      }
    }

    // One lane for all where the index is a scalar.
    template <class Index>
    ATTNGEN_FN simd::Float<Index> at(Index index) const {
      const Index raised = select(index < 0, Index{}, index);
      const Index inside = select(raised < N, raised, simd::broadcast<Index>(N - 1));
      if constexpr (simd::Vector<Index>) {
#if !defined(__CUDACC__)
        return detail::gather(x_, inside);
#endif
      } else {
        return x_[inside];
      }
    }

   private:
    const float* x_;
    int base_;
  };

  using F = typename Lane::F;

  ATTNGEN_FN explicit Lanes(float* x) : x_(x) {}

  template <class Fn>
  ATTNGEN_FN void each(Fn&& fn) {
    F fresh[kVectors];
    for (int v = 0; v < kVectors; ++v) fresh[v] = simd::broadcast<F>(fn(Lane(x_, v * W)));
    for (int v = 0; v < kVectors; ++v) simd::store<F>(x_ + v * W, fresh[v]);
  }

  template <class Fn>
  ATTNGEN_FN float sum(Fn&& fn) const {
    F total{};
    for (int v = 0; v < N / W; ++v) total += simd::broadcast<F>(fn(Lane(x_, v * W)));
    if constexpr (N % W != 0) {
      constexpr int kTail = N / W * W;
      const Lane lane(x_, kTail);
      total += select(lane.d() < N, simd::broadcast<F>(fn(lane)), F{});
    }
    return simd::reduce_add(total);
  }

 private:
  float* x_;
};

}  // namespace attngen
