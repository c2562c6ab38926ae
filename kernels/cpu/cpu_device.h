// The host's cores as a Device: one thread that runs the submitted work in order, and its pool.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

namespace layercake::kernels {

// Thread rule: as Device says. The queue is as long as the caller has steps in flight. On
// destruction the work that runs is finished; work that has not begun is dropped and its `done`
// told Cancelled.
class CpuDevice final : public Device {
 public:
  // Throws std::system_error when a thread cannot be started (CreateCpuDevice catches it).
  CpuDevice(const CpuDeviceOptions& options, base::Executor& on_done);
  ~CpuDevice() override;

  std::string name() const override { return "cpu"; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override;
  void Submit(Work work, Done done) override;
  absl::Status CopyIn(const std::byte* host, Buffer device, size_t bytes) override;
  absl::Status CopyOut(Buffer device, std::byte* host, size_t bytes) override;

  // For CpuOps, inside submitted work.
  ThreadPool& pool() { return pool_; }

 private:
  struct Item {
    Work work;
    Done done;
  };

  void Loop();
  void Finish(Done done, absl::Status status);

  base::Executor& on_done_;
  ThreadPool pool_;
  // Standard ones: ThreadSanitizer does not see through the distribution's Abseil.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;  // guarded by mutex_, like the next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace layercake::kernels
