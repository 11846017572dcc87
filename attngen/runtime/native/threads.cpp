#include "threads.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace attngen::host {
namespace {

// How long a thread looks for the next job before it sleeps: longer than the gap between two layers of a decode step.
constexpr std::chrono::microseconds kSpin{50};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for `ready` without sleeping; false when it took too long.
template <class Ready>
bool spin_until(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

class Pool {
 public:
  // False when another thread has the pool.
  bool try_run(int threads, std::int32_t tasks, Task task, void* context) {
    std::unique_lock<std::mutex> lock(launch_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    grow(threads - 1);
    task_ = task;
    context_ = context;
    tasks_ = tasks;
    done_.store(0, std::memory_order_relaxed);
    helpers_.store(threads - 1, std::memory_order_relaxed);
    const std::uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(epoch << 32 | static_cast<std::uint32_t>(tasks));
    if (sleepers_.load() > 0) {
      std::lock_guard<std::mutex> guard(sleep_);
      wake_.notify_all();
    }
    work(epoch);
    wait_until_done();
    return true;
  }

 private:
  void grow(int wanted) {
    if (size_ >= wanted) return;
    // NOTE: signals belong to the threads of the program, not to these.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; size_ < wanted; ++size_) std::thread(&Pool::serve, this, size_).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: those that there are do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void serve(int index) {
    for (std::uint64_t seen = 0;;) {
      const auto changed = [&] { return ticket_.load() >> 32 != seen; };
      if (!spin_until(changed)) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, changed);
        sleepers_.fetch_sub(1);
      }
      seen = ticket_.load() >> 32;
      if (index < helpers_.load(std::memory_order_relaxed)) work(seen);
    }
  }

  // Takes tasks of job `epoch` until none is left.  The ticket holds the job's number and the tasks not yet taken, so
  // a thread that comes late can't take one of the next job by mistake.
  void work(std::uint64_t epoch) {
    std::uint64_t ticket = ticket_.load();
    while (ticket >> 32 == epoch && static_cast<std::uint32_t>(ticket) > 0) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1)) continue;
      // The job can't end before this task does, so its fields stay as they are.
      const std::int32_t tasks = tasks_;
      task_(context_, tasks - static_cast<std::int32_t>(static_cast<std::uint32_t>(ticket)));
      if (done_.fetch_add(1) + 1 == tasks) {
        std::lock_guard<std::mutex> guard(finish_);
        finished_.notify_one();
      }
      ticket = ticket_.load();
    }
  }

  void wait_until_done() {
    const auto done = [&] { return done_.load() == tasks_; };
    if (spin_until(done)) return;
    std::unique_lock<std::mutex> lock(finish_);
    finished_.wait(lock, done);
  }

  std::mutex launch_;  // held by whoever runs a job
  int size_ = 0;
  Task task_ = nullptr;
  void* context_ = nullptr;
  std::int32_t tasks_ = 0;
  std::atomic<int> helpers_{0};
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int32_t> done_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::mutex sleep_, finish_;
  std::condition_variable wake_, finished_;
};

struct Owner {
  pid_t process;
  Pool pool;
};

// NOTE: pools are never destroyed: their threads may outlive main, and a forked child has a pool without threads.
Pool& pool() {
  static std::atomic<Owner*> current{nullptr};
  Owner* owner = current.load(std::memory_order_acquire);
  const pid_t process = getpid();
  while (owner == nullptr || owner->process != process) {
    auto* fresh = new Owner{process, {}};
    if (current.compare_exchange_strong(owner, fresh)) return fresh->pool;
    delete fresh;
  }
  return owner->pool;
}

// The threads of the OpenMP runtime that the process has loaded, torch's as a rule.  Sharing them matters: they stay awake
// for a while after torch's own work, and a second pool would find the processors taken.
class Team {
 public:
  // False where there is no such runtime, or where a fork has left its threads behind.
  static bool try_run(int threads, std::int32_t tasks, Task task, void* context) {
    static const auto start = reinterpret_cast<Start>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    if (start == nullptr || getpid() != kLoader) return false;
    Team team{tasks, task, context};
    start(&Team::work, &team, static_cast<unsigned>(threads), 0);
    return true;
  }

 private:
  using Start = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const pid_t kLoader;

  Team(std::int32_t tasks, Task task, void* context) : tasks_(tasks), task_(task), context_(context) {}

  static void work(void* self) {
    auto& team = *static_cast<Team*>(self);
    for (std::int32_t i; (i = team.next_.fetch_add(1, std::memory_order_relaxed)) < team.tasks_;)
      team.task_(team.context_, i);
  }

  const std::int32_t tasks_;
  const Task task_;
  void* const context_;
  std::atomic<std::int32_t> next_{0};
};

const pid_t Team::kLoader = getpid();

struct Scratch {
  void* memory = nullptr;
  std::int64_t bytes = 0;
  ~Scratch() { std::free(memory); }
};

}  // namespace

void parallel(int threads, std::int32_t tasks, Task task, void* context) {
  if (threads > tasks) threads = tasks;
  if (threads > 1 && Team::try_run(threads, tasks, task, context)) return;
  if (threads > 1 && pool().try_run(threads, tasks, task, context)) return;
  for (std::int32_t i = 0; i < tasks; ++i) task(context, i);
}

void* thread_scratch(std::int64_t bytes) {
  thread_local Scratch scratch;
  if (scratch.bytes < bytes) {
    std::free(scratch.memory);
    scratch.bytes = (bytes + 63) / 64 * 64;
    scratch.memory = std::aligned_alloc(64, static_cast<std::size_t>(scratch.bytes));
    if (scratch.memory == nullptr) {
      scratch.bytes = 0;
      throw std::bad_alloc();
    }
  }
  return scratch.memory;
}

}  // namespace attngen::host
