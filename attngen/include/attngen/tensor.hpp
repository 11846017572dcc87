// A variant's parameters, read from the argument words (functor.hpp).
#pragma once

#include "attngen/storage.hpp"

namespace attngen {

// What an element is in a hook: f32, i64, i32 or bool (a mask, for vectors of indices).
template <class T>
using Loaded = std::conditional_t<
    std::is_same_v<T, bool> || std::is_same_v<T, float> || std::is_same_v<T, std::int64_t>, T,
    std::conditional_t<detail::Narrow<T>, float, std::int32_t>>;

template <class T>
ATTNGEN_FN T scalar(const Word* words) {
  if (words[1] != 0) return *reinterpret_cast<const T*>(words[1]);
  T value;
  memcpy(&value, words, sizeof(value));
  return value;
}

namespace detail {

// The bits at `from`, whatever type they were stored as: an empty tensor's zero is a Word.  On a GPU they lie in global
// memory, which no kernel writes while it reads them.
template <class T>
ATTNGEN_FN T read(const void* from) {
  T bits;
#if defined(__CUDA_ARCH__)
  using Bits = std::conditional_t<sizeof(T) == 1, unsigned char,
                                  std::conditional_t<sizeof(T) == 2, unsigned short,
                                                     std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>>;
  const Bits there = __ldg(static_cast<const Bits*>(from));
  memcpy(&bits, &there, sizeof(bits));
#else
  memcpy(&bits, __builtin_assume_aligned(from, alignof(T)), sizeof(bits));
#endif
  return bits;
}

template <class T>
ATTNGEN_FN Loaded<T> load_one(const T* from) {
  if constexpr (Narrow<T>) {
    return to_float(read<T>(from));
  } else {
    return read<T>(from);
  }
}

// A bool tensor's bytes may hold anything that isn't 0.
template <>
ATTNGEN_FN bool load_one<bool>(const bool* from) {
  return read<std::uint8_t>(from) != 0;
}

#if !defined(__CUDACC__)

template <class T>
using CodeOf = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;

// The 4-byte elements at `from` plus an offset for each lane.
template <simd::Vector I>
ATTNGEN_FN simd::Rebind<I, std::uint32_t> gather_words(const void* from, I offset) {
  using Words = simd::Rebind<I, std::uint32_t>;
#if defined(__AVX512F__)
  if constexpr (simd::kLanes<I> == 16) {
    const __m512i zero = _mm512_setzero_si512();
    return simd::bit_cast<Words>(_mm512_mask_i32gather_epi32(zero, 0xffff, simd::bit_cast<__m512i>(offset), from, 4));
  }
#endif
#if defined(__AVX2__)
  if constexpr (simd::kLanes<I> == 8) {
    const auto* words = static_cast<const int*>(from);
    return simd::bit_cast<Words>(_mm256_i32gather_epi32(words, simd::bit_cast<__m256i>(offset), 4));
  }
#endif
  Words words;
  for (int lane = 0; lane < simd::kLanes<I>; ++lane) {
    words[lane] = read<std::uint32_t>(static_cast<const std::uint32_t*>(from) + offset[lane]);
  }
  return words;
}

// Every lane's element; `Offset` holds i32 or i64 lanes.
template <class T, simd::Vector Offset>
ATTNGEN_FN auto gather(const T* from, Offset offset) {
  using Values = simd::Rebind<Offset, Loaded<T>>;
  if constexpr (sizeof(T) == 8) {
    Values values;
    for (int lane = 0; lane < simd::kLanes<Offset>; ++lane) values[lane] = read<T>(from + offset[lane]);
    return values;
  } else {
    using Codes = simd::Rebind<Offset, std::uint32_t>;
    Codes codes;
    if constexpr (sizeof(T) == 4 && std::is_same_v<simd::Element<Offset>, std::int32_t>) {
      codes = gather_words(from, offset);
    } else {
      for (int lane = 0; lane < simd::kLanes<Offset>; ++lane) codes[lane] = read<CodeOf<T>>(from + offset[lane]);
    }
    if constexpr (std::is_same_v<T, bool>) {
      return simd::bit_cast<simd::Int<Offset>>(codes) != 0;
    } else if constexpr (Narrow<T>) {
      return decode<Values>(T{}, codes);
    } else if constexpr (sizeof(T) == 4) {
      return simd::bit_cast<Values>(codes);
    } else {
      return simd::convert<std::int32_t>(simd::convert<T>(codes));
    }
  }
}

#endif  // !__CUDACC__

}  // namespace detail

// A strided view of `Rank` dimensions whose every load is inside it: an index outside is clamped, an empty tensor
// reads as zero.
template <class T, int Rank>
class Tensor {
 public:
  ATTNGEN_FN explicit Tensor(const Word* words) : data_(reinterpret_cast<const T*>(words[0])) {
    Word reach = 0;
    for (int k = 0; k < Rank; ++k) {
      last_[k] = words[1 + 2 * k] - 1;
      stride_[k] = words[2 + 2 * k];
      reach += last_[k] * (stride_[k] < 0 ? -stride_[k] : stride_[k]);
    }
    narrow_ = reach < (Word{1} << 31);
    for (int k = 0; k < Rank; ++k) {
      if (last_[k] < 0) read_zero(words + 1 + 2 * k);
    }
  }

  // Scalars, or vectors of one width beside scalars; i32 or i64.
  template <class... I>
  ATTNGEN_FN auto load(I... index) const {
    static_assert(sizeof...(I) == Rank);
    if constexpr ((simd::Vector<I> || ...)) {
#if !defined(__CUDACC__)
      using Lanes = simd::Int<simd::Widest<I...>>;
      const T* from = data_ + uniform_offset(std::make_integer_sequence<int, Rank>(), index...);
      if (narrow_) return detail::gather(from, lane_offset<Lanes>(std::make_integer_sequence<int, Rank>(), index...));
      using Wide = simd::Long<Lanes>;
      return detail::gather(from, lane_offset<Wide>(std::make_integer_sequence<int, Rank>(), index...));
#endif
    } else {
      return detail::load_one<T>(data_ + uniform_offset(std::make_integer_sequence<int, Rank>(), index...));
    }
  }

 private:
  // `zero` is a size, and it is 0.
  ATTNGEN_FN void read_zero(const Word* zero) {
    data_ = reinterpret_cast<const T*>(zero);
    narrow_ = true;
    for (int k = 0; k < Rank; ++k) last_[k] = stride_[k] = 0;
  }

  template <int... K, class... I>
  ATTNGEN_FN Word uniform_offset(std::integer_sequence<int, K...>, I... index) const {
    return (Word{0} + ... + uniform_term<K>(index));
  }

  template <int K, class I>
  ATTNGEN_FN Word uniform_term(I index) const {
    if constexpr (simd::Vector<I>) {
      return 0;
    } else {
      constexpr Word kMost = sizeof(I) == 4 ? 0x7fffffff : 0x7fffffffffffffff;
      const I last = static_cast<I>(last_[K] < kMost ? last_[K] : kMost);
      return static_cast<Word>(index < 0 ? 0 : index > last ? last : index) * stride_[K];
    }
  }

  template <class Offset, int... K, class... I>
  ATTNGEN_FN Offset lane_offset(std::integer_sequence<int, K...>, I... index) const {
    return (Offset{} + ... + lane_term<Offset, K>(index));
  }

  template <class Offset, int K, class I>
  ATTNGEN_FN Offset lane_term(I index) const {
    if constexpr (!simd::Vector<I>) {
      return Offset{};
    } else {
      using E = simd::Element<I>;
      constexpr Word kMost = sizeof(E) == 4 ? 0x7fffffff : 0x7fffffffffffffff;
      const I last = simd::broadcast<I>(static_cast<E>(last_[K] < kMost ? last_[K] : kMost));
      const I raised = select(narrow(index < 0), I{}, index);
      const I inside = select(narrow(raised > last), last, raised);
      return simd::convert<simd::Element<Offset>>(inside) * static_cast<simd::Element<Offset>>(stride_[K]);
    }
  }

  const T* data_;
  bool narrow_;  // every offset fits 31 bits
  Word last_[Rank], stride_[Rank];
};

template <class T>
class Tensor<T, 0> {
 public:
  ATTNGEN_FN explicit Tensor(const Word* words) : data_(reinterpret_cast<const T*>(words[0])) {}
  ATTNGEN_FN Loaded<T> load() const { return detail::load_one<T>(data_); }

 private:
  const T* data_;
};

}  // namespace attngen
