// Shared memory and asynchronous copies: one instruction a function (sm_80 and later).
#pragma once

#include <cstdint>

#define ATTNGEN_DEVICE __device__ __forceinline__

namespace attngen::ptx {

// A number of which the compiler knows nothing.
ATTNGEN_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
ATTNGEN_DEVICE std::uint32_t opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
ATTNGEN_DEVICE const char* opaque(const char* x) {
  asm volatile("" : "+l"(x));
  return x;
}

// The thread's index in the CTA, its warp's, and its own in the warp; tests of them are made anew each time, not kept in
// registers.
ATTNGEN_DEVICE int thread() { return opaque(threadIdx.x); }
ATTNGEN_DEVICE int warp() { return static_cast<unsigned>(thread()) / 32; }
ATTNGEN_DEVICE int lane() { return static_cast<unsigned>(thread()) % 32; }

ATTNGEN_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Copies `bytes` of kSize bytes from global memory and fills up with zeros; reads nothing where bytes is 0.  Where it isn't
// `enabled` it does nothing, by a predicate and not by a branch.
template <int kSize>
ATTNGEN_DEVICE void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool enabled = true) {
  static_assert(kSize == 4 || kSize == 8 || kSize == 16);
  if constexpr (kSize == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n}" ::"r"(to),
        "l"(from), "r"(bytes), "r"(static_cast<std::uint32_t>(enabled))
        : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p cp.async.ca.shared.global [%0], [%1], %2, %3;\n}" ::"r"(to),
                 "l"(from), "n"(kSize), "r"(bytes), "r"(static_cast<std::uint32_t>(enabled))
                 : "memory");
  }
}

ATTNGEN_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's committed groups are under way.
template <int kPending>
ATTNGEN_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Counts up to `last` and then from 0 again; returns what it found.  What this thread knows of was stored before, and what
// others stored before they counted is seen behind it, at gpu scope.
ATTNGEN_DEVICE std::uint32_t count(std::uint32_t* counter, std::uint32_t last) {
  std::uint32_t found;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;" : "=r"(found) : "l"(counter), "r"(last) : "memory");
  return found;
}

// Four 8 × 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
ATTNGEN_DEVICE void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

ATTNGEN_DEVICE void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

}  // namespace attngen::ptx
