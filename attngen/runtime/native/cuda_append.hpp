// Appending to a pool on a GPU: the same checks as append.hpp, then one launch of the append kernel.
#pragma once

#include "append.hpp"
#include "cuda.hpp"

namespace attngen::host {

// Loads the kernel, so that calls may be captured into a CUDA graph.
cuda::Function load_append(const AppendSpec& spec);

// `longest` is the largest position + 1 where the host knows it, else 0.  Slots and positions are on the GPU, unchecked.
void append_on_gpu(const AppendSpec& spec, cuda::Function function, const DLTensor& k_pool, const DLTensor* v_pool,
                   const Tokens& tokens, std::int64_t longest, Arguments& arguments, const Value* values,
                   cuda::Stream stream);

}  // namespace attngen::host
