// Number types that hooks are instantiated for: plain scalars everywhere, and on a CPU GCC vectors of W lanes.
//
// A comparison of vectors gives a mask of i32 lanes, -1 where it holds and 0 where it doesn't; of scalars, a bool.
// Masks combine with & | ^ and `!`; `select` is the only branch that generated code knows.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if !defined(__CUDACC__)
#include <immintrin.h>
#endif

#include "attngen/functor.hpp"

namespace attngen::simd {

template <class V>
concept Vector = !std::is_arithmetic_v<V> && !std::is_class_v<V> && !std::is_pointer_v<V> && requires(V v) { v[0]; };

template <class V>
struct Traits {
  using Element = V;
  static constexpr int kLanes = 1;
};

template <class T, int W>
struct Pack {
#if defined(__CUDACC__)
  using Type = T;
#else
  typedef T Type __attribute__((vector_size(W * sizeof(T))));
#endif
};

template <Vector V>
struct Traits<V> {
  using Element = std::remove_cvref_t<decltype(std::declval<V&>()[0])>;
  static constexpr int kLanes = sizeof(V) / sizeof(Element);
};

template <class V>
using Element = typename Traits<V>::Element;

template <class V>
inline constexpr int kLanes = Traits<V>::kLanes;

template <class T, int W>
using Vec = typename Pack<T, W>::Type;

template <int W>
using f32 = Vec<float, W>;
template <int W>
using f64 = Vec<double, W>;
template <int W>
using i32 = Vec<std::int32_t, W>;
template <int W>
using u32 = Vec<std::uint32_t, W>;
template <int W>
using i64 = Vec<std::int64_t, W>;

// The type with the lanes of V and elements T; a vector of bools is a mask.
template <class V, class T>
struct RebindTo {
  using Type = T;
};
template <Vector V, class T>
struct RebindTo<V, T> {
  using Type = Vec<std::conditional_t<std::is_same_v<T, bool>, std::int32_t, T>, kLanes<V>>;
};
template <class V, class T>
using Rebind = typename RebindTo<V, T>::Type;

template <class V>
using Float = Rebind<V, float>;
template <class V>
using Int = Rebind<V, std::int32_t>;
template <class V>
using Long = Rebind<V, std::int64_t>;
template <class V>
using Mask = std::conditional_t<Vector<V>, Int<V>, bool>;

// Of several types the first that is a vector, else the first.
template <class T, class... Ts>
struct WidestOf {
  using Type = T;
};
template <class T, class U, class... Ts>
struct WidestOf<T, U, Ts...> {
  using Type = std::conditional_t<Vector<T>, T, typename WidestOf<std::conditional_t<Vector<U>, U, T>, Ts...>::Type>;
};
template <class... Ts>
using Widest = typename WidestOf<Ts...>::Type;

template <class V, class T>
ATTNGEN_FN V broadcast(T x) {
  if constexpr (Vector<V> && !Vector<T>) {
    return static_cast<Element<V>>(x) - V{};  // not V{} + x, which would lose the sign of -0
  } else {
    return static_cast<V>(x);
  }
}

// Every lane converted to T as C++ converts; `math::to_i32` and its kin saturate.
template <class T, class V>
ATTNGEN_FN Rebind<V, T> convert(V v) {
  if constexpr (std::is_same_v<Element<V>, T>) {
    return v;
#if !defined(__CUDACC__)
  } else if constexpr (Vector<V>) {
    return __builtin_convertvector(v, Rebind<V, T>);
#endif
  } else {
    return static_cast<T>(v);
  }
}

// The bits of v as a value of type U.
template <class U, class V>
ATTNGEN_FN U bit_cast(V v) {
  static_assert(sizeof(U) == sizeof(V));
  U u;
  memcpy(&u, &v, sizeof(u));
  return u;
}

// As many elements as V has, from any address.
template <class V>
ATTNGEN_FN V load(const Element<V>* from) {
  V v;
  memcpy(&v, from, sizeof(v));
  return v;
}

template <class V>
ATTNGEN_FN void store(Element<V>* to, V v) {
  memcpy(to, &v, sizeof(v));
}

#if !defined(__CUDACC__)

template <Vector V>
ATTNGEN_FN V iota() {
  return []<int... L>(std::integer_sequence<int, L...>) {
    return V{static_cast<Element<V>>(L)...};
  }(std::make_integer_sequence<int, kLanes<V>>());
}

// The lanes [First, First + N) of v.
template <int First, int N, Vector V>
ATTNGEN_FN Vec<Element<V>, N> slice(V v) {
  return [&]<int... L>(std::integer_sequence<int, L...>) {
    return __builtin_shufflevector(v, v, (First + L)...);
  }(std::make_integer_sequence<int, N>());
}

template <Vector V>
ATTNGEN_FN V concat(Vec<Element<V>, kLanes<V> / 2> low, Vec<Element<V>, kLanes<V> / 2> high) {
  return [&]<int... L>(std::integer_sequence<int, L...>) {
    return __builtin_shufflevector(low, high, L...);
  }(std::make_integer_sequence<int, kLanes<V>>());
}

template <Vector V, class Op>
ATTNGEN_FN Element<V> reduce(V v, Op op) {
  if constexpr (kLanes<V> == 1) {
    return v[0];
  } else {
    constexpr int kHalf = kLanes<V> / 2;
    if constexpr (kHalf == 1) {
      return op(v[0], v[1]);
    } else {
      return reduce(op(slice<0, kHalf>(v), slice<kHalf, kHalf>(v)), op);
    }
  }
}

template <Vector V>
ATTNGEN_FN Element<V> reduce_add(V v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

// NaN lanes count or not, as it happens.
template <Vector V>
ATTNGEN_FN Element<V> reduce_max(V v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}

template <Vector M>
ATTNGEN_FN bool any(M mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(M) == 64 && sizeof(Element<M>) == 4) {
    return _mm512_test_epi32_mask(bit_cast<__m512i>(mask), bit_cast<__m512i>(mask)) != 0;
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(M) == 32) return _mm256_testz_si256(bit_cast<__m256i>(mask), bit_cast<__m256i>(mask)) == 0;
#endif
  return reduce(mask, [](auto a, auto b) { return a | b; }) != 0;
}

template <Vector M>
ATTNGEN_FN bool all(M mask) {
  return !any(mask == 0);
}

#endif  // !__CUDACC__

template <class V>
  requires(!Vector<V>)
ATTNGEN_FN V iota() {
  return V{0};
}
template <class V>
  requires(!Vector<V>)
ATTNGEN_FN V reduce_add(V v) {
  return v;
}
template <class V>
  requires(!Vector<V>)
ATTNGEN_FN V reduce_max(V v) {
  return v;
}
ATTNGEN_FN bool any(bool mask) { return mask; }
ATTNGEN_FN bool all(bool mask) { return mask; }

}  // namespace attngen::simd

namespace attngen {

// A mask for the lanes of F that is the same in all of them.
template <class F>
ATTNGEN_FN simd::Mask<F> as_mask(bool flag) {
  if constexpr (simd::Vector<F>) {
    return simd::broadcast<simd::Mask<F>>(-static_cast<std::int32_t>(flag));
  } else {
    return flag;
  }
}

// The mask of a comparison of i64 lanes, as one of i32 lanes.
template <class M>
ATTNGEN_FN auto narrow(M mask) {
  if constexpr (simd::Vector<M>) {
    return simd::convert<std::int32_t>(mask);
  } else {
    return mask;
  }
}

// `a` where the mask holds and `b` elsewhere, lane by lane; scalars are broadcast to the widest operand.
template <class M, class A, class B>
ATTNGEN_FN auto select(M mask, A a, B b) {
  using Value = simd::Widest<A, B>;
  if constexpr (simd::Vector<M>) {
#if !defined(__CUDACC__)
    using V = simd::Rebind<M, simd::Element<Value>>;
    if constexpr (sizeof(simd::Element<V>) == 8) {
      // Vectors wider than a register would be selected lane by lane; their bits are not.
      using Bits = simd::Long<V>;
      const Bits bits = simd::convert<std::int64_t>(mask);
      const Bits then = simd::bit_cast<Bits>(simd::broadcast<V>(a));
      return simd::bit_cast<V>((then & bits) | (simd::bit_cast<Bits>(simd::broadcast<V>(b)) & ~bits));
    } else {
      return mask ? simd::broadcast<V>(a) : simd::broadcast<V>(b);
    }
#endif
  } else {
    return mask ? simd::broadcast<Value>(a) : simd::broadcast<Value>(b);
  }
}

}  // namespace attngen
