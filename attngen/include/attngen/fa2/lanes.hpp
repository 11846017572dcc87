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

// How a warp goes over kRows rows of kPieces pieces of 16 bytes: which piece of which row a lane has at a step.  Where it
// can, eight lanes take the 128 bytes of one line, and a lane's pieces of a row follow each other.
template <int kRows, int kPieces>
struct RowPieces {
  static constexpr bool kByLine = kPieces % 8 == 0;
  static constexpr int kLines = kPieces / 8;  // of a row
  static constexpr int kOfRow = kByLine ? kLines : 1;  // steps that follow each other in one row
  static constexpr int kSteps = kByLine ? (kRows + 3) / 4 * kLines : (kRows * kPieces + 31) / 32;

  ATTNGEN_DEVICE static int row(int lane, int step) {
    if constexpr (kByLine) return lane / 8 + step / kLines * 4;
    return (step * 32 + lane) / kPieces;
  }
  ATTNGEN_DEVICE static int piece(int lane, int step) {
    if constexpr (kByLine) return lane % 8 + step % kLines * 8;
    return (step * 32 + lane) % kPieces;
  }
  ATTNGEN_DEVICE static bool exists(int lane, int step) { return kRows * kPieces % 32 == 0 || row(lane, step) < kRows; }
};

// Rows of operands in shared memory, kDim of 16 bits each.  The pieces of a row change places by its number, so that the
// eight rows which ldmatrix reads lie in different banks.  Padding would do that too, but a line that an asynchronous copy
// writes across two lines takes twice as long, and its sectors come from L2 twice.
template <int kDim>
struct Operands {
  static constexpr int kPieces = kDim / 8, kPitch = 2 * kDim;
  static constexpr int kTurns = kPieces % 8 == 0 ? 8 : kPieces % 4 == 0 ? 4 : 2;
  static_assert(kDim % 16 == 0);

  // What a piece's number is exchanged by; the same for rows that are a multiple of 8 apart.
  ATTNGEN_DEVICE static int turn(int row) { return row / (8 / kTurns) % kTurns; }

  // Where a piece of a row lies, in bytes from row 0, which lies at a multiple of 128.
  ATTNGEN_DEVICE static int at(int row, int piece) { return row * kPitch + (piece ^ turn(row)) * 16; }

  // From where a piece of a row lies to where that piece lies so many rows further, a multiple of 4.
  ATTNGEN_DEVICE static std::uint32_t down(std::uint32_t at, int rows) { return (at ^ turn(rows) * 16) + rows * kPitch; }

  // From where piece `piece` or the one behind it lies to where piece + 2 or the one behind it does; `piece` is even.
  ATTNGEN_DEVICE static std::uint32_t next(std::uint32_t at, int piece) {
    const int turned = piece % kTurns ^ (piece + 2) % kTurns, over = (piece + 2) % kTurns == 0 ? kTurns : 0;
    return (at ^ turned * 16) + over * 16;
  }
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

// The lane's share of a vector of N elements, whose chunk c lies at place c ^ turn; those that don't exist read as 0.
template <int N, class T>
ATTNGEN_DEVICE void read_vector(const T* from, Chunks<N>& x, int turn = 0) {
  using L = VectorLayout<N>;
#pragma unroll
  for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (L::exists(own, half)) {
        read_chunk(from + (L::chunk(own, half) ^ turn) * 8, x[own][half]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[own][half][i] = 0.0f;
      }
    }
}

template <int N, class T>
ATTNGEN_DEVICE void write_vector(T* to, const Chunks<N>& x, int turn = 0) {
  using L = VectorLayout<N>;
#pragma unroll
  for (int own = 0; own < L::kOwn; ++own)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (L::exists(own, half)) write_chunk(to + (L::chunk(own, half) ^ turn) * 8, x[own][half]);
}

}  // namespace attngen::fa2
