// include/attngen/ptx/memory.hpp without a GPU.
#pragma once

#include <cstdint>

#define ATTNGEN_DEVICE inline

namespace attngen::ptx {

template <class T>
T opaque(T x) {
  return x;
}

inline int thread() { return static_cast<int>(threadIdx.x); }
inline int warp() { return thread() / 32; }
inline int lane() { return thread() % 32; }

inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(static_cast<const char*>(p) - fa2::dynamic_shared);
}

template <int kSize>
void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool enabled = true) {
  if (!enabled) return;
  if (to % kSize != 0 || reinterpret_cast<std::uintptr_t>(from) % kSize != 0) std::abort();
  emulated::copy({fa2::dynamic_shared + to, from, kSize, static_cast<int>(bytes)});
}
inline std::uint32_t count(std::uint32_t* counter, std::uint32_t last) { return atomicInc(counter, last); }

inline void commit_copies() { emulated::commit(); }
template <int kPending>
void wait_copies() {
  emulated::wait(kPending);
}

// Lane l gets, of each matrix, columns 2 (l % 4) and the next of row l / 4; transposed, rows and columns change places.
template <bool kTransposed>
void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) {
  const std::uint64_t word = from;
  const unsigned place = emulated::exchange(&word, 1, [](unsigned at) {
    for (int lane = 0; lane < 32; ++lane)
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::uint16_t two[2];
        for (int i = 0; i < 2; ++i) {
          const int row = kTransposed ? 2 * (lane % 4) + i : lane / 4;
          const int column = kTransposed ? lane / 4 : 2 * (lane % 4) + i;
          std::memcpy(&two[i], fa2::dynamic_shared + emulated::warp().words[at][8 * matrix + row][0] + 2 * column, 2);
        }
        std::memcpy(&emulated::warp().results[at][lane][matrix], two, 4);
      }
  });
  std::copy_n(emulated::warp().results[place][emulated::lane()], 4, r);
}
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) { load_matrices<false>(r, from); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t from) { load_matrices<true>(r, from); }

}  // namespace attngen::ptx
