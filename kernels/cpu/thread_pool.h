// The cores of one CPU device: a few threads that share out the chunks of one loop at a time.
//
// Thread rule: Run from one thread at a time (the device thread), which works along. Threads take
// chunks from a counter, so a helper that the kernel has not scheduled costs nothing: the caller
// waits only for chunks that somebody has begun. That matters when several workers share the
// cores. Chunks write disjoint results, so who runs which changes no bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace layercake::kernels {

class ThreadPool {
 public:
  // chunk in [0, chunks), thread in [0, threads()): for per-thread scratch.
  using Body = absl::FunctionRef<void(int64_t chunk, int thread)>;

  static constexpr int kMaxThreads = 512;

  // `threads` counts the caller of Run. A thread without work looks for some for about `spin_us`
  // microseconds before it sleeps. Throws std::system_error when a thread cannot be started.
  ThreadPool(int threads, int spin_us);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body once for every chunk and returns when all are done.
  void Run(int64_t chunks, Body body);

 private:
  void RunBatch(int64_t first, uint64_t chunks, const Body& body);
  bool RunOneChunk(int thread);
  void HelperLoop(int thread);
  void StopHelpers();

  const int threads_;
  const int spin_rounds_;

  // Which loop and which chunk is next, in one word, so that a helper that arrives late either
  // takes a chunk of the loop that runs now or none: generation << 40 | chunks << 20 | next.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};  // chunks of this loop that are done
  alignas(64) std::atomic<uint32_t> wake_{0};      // counts loops; helpers sleep on it
  std::atomic<bool> stopping_{false};
  // Written before ticket_ is published, read after a chunk was claimed from it.
  const Body* body_ = nullptr;
  int64_t first_ = 0;
  uint64_t generation_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace layercake::kernels
