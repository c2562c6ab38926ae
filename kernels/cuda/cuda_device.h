// One GPU as a Device: a stream, and one thread that runs submitted work, which enqueues on it.
//
// Work that has returned may still compute: CopyOut and Ops::Finish wait for the stream. Errors of
// kernels come out there and are sticky: from then on everything fails with Internal.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"
#include "kernels/work_thread.h"

namespace layercake::kernels::cuda {

// Thread rule: as Device says; everything else from the step thread before the first step, or
// inside work.
class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaDeviceFacts& facts,
                                                            base::Executor& on_done);
  ~CudaDevice() override;

  std::string name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override;
  void Submit(Work work, Done done) override;
  absl::Status CopyIn(const std::byte* host, Buffer device, size_t bytes) override;
  absl::Status CopyOut(Buffer device, std::byte* host, size_t bytes) override;
  absl::Status Copy(Buffer from, Buffer to, size_t bytes) override;

  const Context& context() const { return context_; }
  // Makes this device the calling thread's current one.
  absl::Status MakeCurrent() const;
  // Waits for everything enqueued.
  absl::Status Synchronize(absl::string_view what);
  // Whether a copy, or what NoteEnqueued spoke of, was enqueued since the last wait.
  bool pending() const { return pending_; }
  void NoteEnqueued() { pending_ = true; }
  absl::StatusOr<uint64_t> FreeBytes() const;

  // Called before every copy: enqueues what operations have put off. Null: nothing.
  void set_before_copy(absl::AnyInvocable<absl::Status()> flush) { flush_ = std::move(flush); }

 private:
  CudaDevice() = default;
  absl::Status BeforeCopy();

  std::string name_;
  Context context_;
  PinnedArray staging_;        // small copies go through it
  bool staging_read_ = false;  // a copy to the device may still read it
  bool pending_ = false;
  absl::AnyInvocable<absl::Status()> flush_;
  std::unique_ptr<WorkThread> thread_;
};

}  // namespace layercake::kernels::cuda
