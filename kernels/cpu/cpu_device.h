// The host's cores as a Device: one thread that runs the submitted work in order, and its pool.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/work_thread.h"

namespace layercake::kernels {

// Thread rule: as Device says. WorkThread says what becomes of work on destruction.
class CpuDevice final : public Device {
 public:
  // Throws std::system_error when a thread cannot be started (CreateCpuDevice catches it).
  CpuDevice(const CpuDeviceOptions& options, base::Executor& on_done);

  std::string name() const override { return "cpu"; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override;
  void Submit(Work work, Done done) override;
  absl::Status CopyIn(const std::byte* host, Buffer device, size_t bytes) override;
  absl::Status CopyOut(Buffer device, std::byte* host, size_t bytes) override;
  absl::Status Copy(Buffer from, Buffer to, size_t bytes) override;

  // For CpuOps, inside submitted work.
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  WorkThread thread_;
};

}  // namespace layercake::kernels
