#include "kernels/cpu/thread_pool.h"

#include <algorithm>

namespace layercake::kernels {
namespace {

constexpr int kFieldBits = 20;
constexpr uint64_t kFieldMask = (uint64_t{1} << kFieldBits) - 1;
// Room in the `next` field for one claim in vain per thread.
constexpr int64_t kMaxBatch = static_cast<int64_t>(kFieldMask) - 2 * ThreadPool::kMaxThreads;
// One pause takes some 40 to 140 cycles, depending on the core.
constexpr int kPausesPerMicrosecond = 40;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

bool HasChunk(uint64_t ticket) {
  return (ticket & kFieldMask) < ((ticket >> kFieldBits) & kFieldMask);
}

}  // namespace

ThreadPool::ThreadPool(int threads, int spin_us)
    : threads_(threads), spin_rounds_(std::max(0, spin_us) * kPausesPerMicrosecond) {
  helpers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      helpers_.emplace_back([this, thread] { HelperLoop(thread); });
    }
  } catch (...) {
    StopHelpers();
    throw;
  }
}

ThreadPool::~ThreadPool() { StopHelpers(); }

void ThreadPool::StopHelpers() {
  stopping_.store(true, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_seq_cst);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int64_t chunks, Body body) {
  if (threads_ == 1 || chunks == 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
    return;
  }
  for (int64_t first = 0; first < chunks; first += kMaxBatch) {
    RunBatch(first, static_cast<uint64_t>(std::min(kMaxBatch, chunks - first)), body);
  }
}

void ThreadPool::RunBatch(int64_t first, uint64_t chunks, const Body& body) {
  body_ = &body;
  first_ = first;
  finished_.store(0, std::memory_order_relaxed);
  ++generation_;
  ticket_.store((generation_ << (2 * kFieldBits)) | (chunks << kFieldBits),
                std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_seq_cst);
  wake_.notify_all();

  while (RunOneChunk(0)) {
  }
  const auto all = static_cast<uint32_t>(chunks);
  for (int round = 0; round < spin_rounds_; ++round) {
    if (finished_.load(std::memory_order_acquire) == all) return;
    Pause();
  }
  for (uint32_t done = finished_.load(std::memory_order_acquire); done != all;
       done = finished_.load(std::memory_order_acquire)) {
    finished_.wait(done, std::memory_order_acquire);
  }
}

bool ThreadPool::RunOneChunk(int thread) {
  if (!HasChunk(ticket_.load(std::memory_order_acquire))) return false;
  const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  if (!HasChunk(ticket)) return false;
  // From here to the count below the loop cannot end, so body_ and first_ stand still.
  (*body_)(first_ + static_cast<int64_t>(ticket & kFieldMask), thread);
  const auto all = static_cast<uint32_t>((ticket >> kFieldBits) & kFieldMask);
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == all && thread != 0) {
    finished_.notify_one();
  }
  return true;
}

void ThreadPool::HelperLoop(int thread) {
  while (true) {
    const uint32_t seen = wake_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    if (RunOneChunk(thread)) continue;
    bool found = false;
    for (int round = 0; round < spin_rounds_ && !found; ++round) {
      Pause();
      found = wake_.load(std::memory_order_acquire) != seen;
    }
    if (!found) wake_.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace layercake::kernels
