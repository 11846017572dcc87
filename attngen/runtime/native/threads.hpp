// The CPU engine's threads: those of the process's OpenMP runtime, else a pool of its own, which is made on first use, made
// anew in a forked child, and awake for a moment after each job.
#pragma once

#include <cstdint>

namespace attngen::host {

using Task = void (*)(void* context, std::int32_t task);

// Runs task(context, i) for every i in [0, tasks) on at most `threads` threads, the calling one included, and returns
// when all are done.  Any thread may call it at any time; whoever finds the pool taken works alone.
void parallel(int threads, std::int32_t tasks, Task task, void* context);

// Memory of the calling thread, aligned to 64 bytes, with room for `bytes`; its content is whatever was left there.
void* thread_scratch(std::int64_t bytes);

template <class Fn>
void parallel(int threads, std::int32_t tasks, const Fn& fn) {
  const Task call = [](void* context, std::int32_t task) { (*static_cast<const Fn*>(context))(task); };
  parallel(threads, tasks, call, const_cast<Fn*>(&fn));
}

}  // namespace attngen::host
