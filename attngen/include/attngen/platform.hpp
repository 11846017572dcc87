// How functions are declared that run on a CPU and on a GPU alike.
#pragma once

#if defined(__CUDACC__)
#define ATTNGEN_FN __host__ __device__ __forceinline__
#else
#define ATTNGEN_FN inline __attribute__((always_inline))
#endif
