// A vector of N elements spread over a few lanes of a warp, as the variant's vector stages see it (functor.hpp).
//
// Elements come in chunks of 8.  A lane owns chunk p and, half a vector further, chunk p + kPairs, for every kLanes-th p;
// so both partners of `half` and of `pair` lie in one lane, unless N is no multiple of 16: then, and for `at`, the
// vector is looked up in `room`.
#pragma once

#include "attngen/ptx/math.hpp"
#include "attngen/tensor.hpp"

namespace attngen::fa2 {

__host__ __device__ constexpr int round_up(int n, int step) { return (n + step - 1) / step * step; }
__host__ __device__ constexpr int power_above(int n) { return n <= 1 ? 1 : 2 * power_above((n + 1) / 2); }

// How a warp goes over kRows rows of kPieces pieces each: which piece of which row a lane has at a step.  Where kPieces
// divides 32 nothing but the row changes from step to step.
template <int kRows, int kPieces>
struct RowPieces {
  static constexpr int kSteps = (kRows * kPieces + 31) / 32;

  ATTNGEN_DEVICE static int row(int lane, int step) {
    return 32 % kPieces == 0 ? lane / kPieces + step * (32 / kPieces) : (step * 32 + lane) / kPieces;
  }
  ATTNGEN_DEVICE static int piece(int lane, int step) {
    return (32 % kPieces == 0 ? lane : step * 32 + lane) % kPieces;
  }
  ATTNGEN_DEVICE static bool exists(int lane, int step) { return kRows * kPieces % 32 == 0 || row(lane, step) < kRows; }
};

template <int N>
struct VectorLayout {
  static constexpr int kChunks = N / 8;
  static constexpr int kPairs = (kChunks + 1) / 2;
  static constexpr int kLanes = power_above(kPairs) < 32 ? power_above(kPairs) : 32;
  static constexpr int kOwn = (kPairs + kLanes - 1) / kLanes;  // pairs of chunks of one lane
  static constexpr int kRows = 32 / kLanes;                    // vectors that a warp holds at once
  static constexpr int kRoom = round_up(N, 16);                // floats a vector in `room`

  ATTNGEN_DEVICE static int lane() { return threadIdx.x % kLanes; }
  ATTNGEN_DEVICE static int row() { return threadIdx.x % 32 / kLanes; }
  ATTNGEN_DEVICE static int chunk(int own, int half) { return lane() + own * kLanes + half * kPairs; }
  ATTNGEN_DEVICE static bool exists(int own, int half) {
    return lane() + own * kLanes < kPairs && chunk(own, half) < kChunks;
  }
};

template <int N>
using Chunks = float[VectorLayout<N>::kOwn][2][8];

// kRoom: some stage needs `room`, VectorLayout<N>::kRoom floats for each of the warp's vectors.
template <int N, bool kRoom>
class WarpLanes {
  using L = VectorLayout<N>;
  static constexpr bool kAligned = N % 16 == 0;

 public:
  class Lane {
   public:
    ATTNGEN_DEVICE Lane(const Chunks<N>& x, const float* room, int own, int half, int i)
        : x_(x), room_(room), own_(own), half_(half), i_(i) {}
    ATTNGEN_DEVICE std::int32_t d() const { return L::chunk(own_, half_) * 8 + i_; }
    ATTNGEN_DEVICE float self() const { return x_[own_][half_][i_]; }
    ATTNGEN_DEVICE float pair() const { return x_[own_][half_][i_ ^ 1]; }
    ATTNGEN_DEVICE float half() const {
      if constexpr (kAligned) {
        return x_[own_][half_ ^ 1][i_];
      } else {
        return room_[d() < N / 2 ? d() + N / 2 : d() - N / 2];
      }
    }
    ATTNGEN_DEVICE float at(std::int32_t index) const { return room_[index < 0 ? 0 : index < N ? index : N - 1]; }
    ATTNGEN_DEVICE float table(const float* p) const { return p[d()]; }

   private:
    const Chunks<N>& x_;
    const float* room_;
    int own_, half_, i_;
  };

  ATTNGEN_DEVICE WarpLanes(Chunks<N>& x, float* room) : x_(x), room_(room) {}

  template <class Fn>
  ATTNGEN_DEVICE void each(Fn&& fn) {
    publish();
    Chunks<N> fresh;
#pragma unroll
    for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          fresh[own][half][i] = L::exists(own, half) ? fn(Lane(x_, room_, own, half, i)) : 0.0f;
#pragma unroll
    for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) x_[own][half][i] = fresh[own][half][i];
  }

  // In the same order on every lane: butterflies are symmetric.
  template <class Fn>
  ATTNGEN_DEVICE float sum(Fn&& fn) const {
    publish();
    float total = 0.0f;
#pragma unroll
    for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          total += L::exists(own, half) ? fn(Lane(x_, room_, own, half, i)) : 0.0f;
#pragma unroll
    for (int step = 1; step < L::kLanes; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    return total;
  }

 private:
  ATTNGEN_DEVICE void publish() const {
    if constexpr (kRoom || !kAligned) {
      __syncwarp();
#pragma unroll
      for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < 8; ++i)
            if (L::exists(own, half)) room_[L::chunk(own, half) * 8 + i] = x_[own][half][i];
      __syncwarp();
    }
  }

  Chunks<N>& x_;
  float* room_;
};

// Chunks in memory ------------------------------------------------------------------------------------

// Eight elements at an address aligned to their size.
template <class T>
ATTNGEN_DEVICE void read_chunk(const T* from, float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    alignas(16) T codes[8];
    if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<uint4*>(codes) = *reinterpret_cast<const uint4*>(from);
    } else {
      *reinterpret_cast<uint2*>(codes) = *reinterpret_cast<const uint2*>(from);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(codes[i]);
  }
}

template <class T>
ATTNGEN_DEVICE void write_chunk(T* to, const float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    *reinterpret_cast<uint4*>(to) = make_uint4(ptx::pack<T>(x[0], x[1]), ptx::pack<T>(x[2], x[3]),
                                               ptx::pack<T>(x[4], x[5]), ptx::pack<T>(x[6], x[7]));
  }
}

// The lane's share of a vector of N elements; chunks that don't exist read as 0.
template <int N, class T>
ATTNGEN_DEVICE void read_vector(const T* from, Chunks<N>& x) {
  using L = VectorLayout<N>;
#pragma unroll
  for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (L::exists(own, half)) {
        read_chunk(from + L::chunk(own, half) * 8, x[own][half]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[own][half][i] = 0.0f;
      }
    }
}

template <int N, class T>
ATTNGEN_DEVICE void write_vector(T* to, const Chunks<N>& x) {
  using L = VectorLayout<N>;
#pragma unroll
  for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (L::exists(own, half)) write_chunk(to + L::chunk(own, half) * 8, x[own][half]);
}

}  // namespace attngen::fa2
