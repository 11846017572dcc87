// What nvcc gives a kernel, for g++: the threads of a CTA are fibers that switch wherever threads of a GPU meet, and CTAs
// run one after the other.  Included before everything else by tests/emulator/compiler.py.
//
// Asynchronous copies happen as late as a kernel's waits allow, or at once (EMULATED_COPIES=early): what reads before it
// has waited, or overwrites what others still read, gets wrong numbers in one of the two.  Threads take turns from the
// first to the last, or with early copies from the last to the first, so that what one must wait for to be written by
// another shows.  A barrier that not all threads reach ends the process with a message.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDACC__ 1
#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

namespace attngen::fa2 {
alignas(128) inline char dynamic_shared[232448];
}

namespace emulated {

// One switch of stacks: saves what a call must preserve on the old stack, and takes it from the new one.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.type emulated_switch, @function
emulated_switch:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
)");

struct Copy {
  char* to;
  const void* from;
  int size, bytes;
};

struct Fiber {
  std::unique_ptr<char[]> stack;
  void* at = nullptr;  // its stack pointer while it waits
  bool done = false;
  unsigned meetings = 0;  // of its warp, so far
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> groups;
};

// Threads that meet: the last one to come opens the gate.
struct Gate {
  int here = 0;
  unsigned opened = 0;
};

// What the lanes of a warp hand over when they meet; two, as a fast lane may be at the next meeting.
struct Warp {
  Gate gate;
  std::uint64_t words[2][32][8];
  std::uint32_t results[2][32][4];
};

constexpr std::size_t kStack = 256 << 10;

struct Cta {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Gate gate;
  int votes[2] = {0, 0};
  void* scheduler = nullptr;
  unsigned current = 0, block = 0;
  bool moved = false, early = false;
  void (*body)(const void*) = nullptr;
  const void* parameters = nullptr;
};
inline Cta cta;

inline Fiber& self() { return cta.fibers[cta.current]; }
inline unsigned lane() { return cta.current % 32; }
inline Warp& warp() { return cta.warps[cta.current / 32]; }

inline void pause() { emulated_switch(&self().at, cta.scheduler); }

// Whether this thread came last; `last` is done before the others go on.
template <class Last>
void meet(Gate& gate, int threads, const Last& last) {
  const unsigned opened = gate.opened;
  cta.moved = true;
  if (++gate.here == threads) {
    last();
    gate.here = 0;
    ++gate.opened;
    return;
  }
  while (gate.opened == opened) pause();
  cta.moved = true;
}

inline void meet_all() {
  meet(cta.gate, static_cast<int>(cta.fibers.size()), [] {});
}

// Hands `words` to the warp; gives the place of what all lanes handed over.
template <class Last>
unsigned exchange(const std::uint64_t* words, int count, const Last& last) {
  const unsigned place = self().meetings++ % 2;
  std::copy_n(words, count, warp().words[place][lane()]);
  meet(warp().gate, 32, [&] { last(place); });
  return place;
}
inline unsigned exchange(std::uint64_t word) {
  return exchange(&word, 1, [](unsigned) {});
}

inline void perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
    std::memset(copy.to + copy.bytes, 0, static_cast<std::size_t>(copy.size - copy.bytes));
  }
}

inline void copy(const Copy& wanted) {
  if (cta.early) return perform({wanted});
  self().copies.push_back(wanted);
}

inline void commit() {
  self().groups.push_back(std::move(self().copies));
  self().copies.clear();
}

inline void wait(std::size_t pending) {
  for (auto& groups = self().groups; groups.size() > pending; groups.pop_front()) perform(groups.front());
}

inline void begin() {
  cta.body(cta.parameters);
  self().done = cta.moved = true;
  pause();
}

inline void start(Fiber& fiber) {
  fiber = Fiber();
  fiber.stack = std::make_unique_for_overwrite<char[]>(kStack);
  auto* top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStack) & ~std::uintptr_t{15});
  *--top = nullptr;  // where begin() would return to; it doesn't
  *--top = reinterpret_cast<void*>(&begin);
  fiber.at = top - 6;
}

inline void run_cta(unsigned threads) {
  std::memset(attngen::fa2::dynamic_shared, 0xff, sizeof attngen::fa2::dynamic_shared);  // NaN, whatever is read
  cta.fibers.resize(threads);
  cta.warps.assign(threads / 32, Warp());
  cta.gate = Gate();
  for (Fiber& fiber : cta.fibers) start(fiber);
  for (std::size_t done = 0; done < threads;) {
    cta.moved = false;
    done = 0;
    for (unsigned turn = 0; turn < threads; ++turn) {
      cta.current = cta.early ? threads - 1 - turn : turn;
      if (!self().done) emulated_switch(&cta.scheduler, self().at);
      done += self().done;
    }
    if (!cta.moved && done < threads) {
      std::fprintf(stderr, "emulated CTA %u: some threads wait at a barrier that others don't reach\n", cta.block);
      std::abort();
    }
  }
}

struct Index {
  unsigned x;
};

}  // namespace emulated

#define threadIdx (::emulated::Index{::emulated::cta.current})
#define blockIdx (::emulated::Index{::emulated::cta.block})

// Vector types and intrinsics ----------------------------------------------------------------------------

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __fmul_rn(float a, float b) {
  float product = a * b;
  asm("" : "+x"(product));
  return product;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
inline unsigned atomicInc(unsigned* at, unsigned most) {
  const unsigned before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}

inline void __syncthreads() { emulated::meet_all(); }
inline int __syncthreads_or(int x) {
  using emulated::cta;
  static int any = 0;  // of the barrier under way
  static int result = 0;
  any |= x != 0;
  emulated::meet(cta.gate, static_cast<int>(cta.fibers.size()), [] {
    result = any;
    any = 0;
  });
  return result;
}
inline void __syncwarp() { emulated::exchange(0); }

template <class T>
T __shfl_sync(unsigned, T x, int from, int width = 32) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &x, sizeof x);
  const unsigned place = emulated::exchange(word);
  std::memcpy(&x, &emulated::warp().words[place][(emulated::lane() & ~(width - 1)) | (from & (width - 1))][0], sizeof x);
  return x;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int other) {
  return __shfl_sync(mask, x, static_cast<int>(emulated::lane()) ^ other);
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const unsigned place = emulated::exchange(x);
  unsigned all = 0;
  for (int i = 0; i < 32; ++i) all |= static_cast<unsigned>(emulated::warp().words[place][i][0] & 1) << i;
  return all;
}
inline int __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline int __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == 0xffffffffu; }
