// The seam between the step loop and the hardware that computes: memory, and work in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"

namespace layercake::kernels {

enum class MemorySpace : uint8_t { kHost, kDevice };

// A view of contiguous memory that somebody else owns.
struct Buffer {
  std::byte* address = nullptr;
  size_t bytes = 0;
  MemorySpace space = MemorySpace::kHost;
};

// Owns one allocation on a Device. The Device outlives it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Buffer buffer() const = 0;
};

// One device as one stage worker sees it: one in-order stream of work, like a CUDA stream. Used
// from the step thread only.
class Device {
 public:
  // Runs in stream order. On a CPU it computes; on a GPU it enqueues kernels and returns.
  using Work = absl::AnyInvocable<absl::Status()>;
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~Device() = default;

  // For logs and plans: "cpu", "cuda:GPU-<uuid>".
  virtual std::string name() const = 0;

  // At least `bytes` bytes aligned to 256, zeroed. ResourceExhausted, with the sizes, when the
  // device has not that much.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) = 0;

  // Runs `work` after all work submitted before it, then calls `done` with its status through the
  // executor given at construction (never inside Submit). Never blocks.
  virtual void Submit(Work work, Done done) = 0;

  // Host to device and back, ordered with the work around it when called inside Work. On return
  // the host side may be reused, or holds the bytes. `bytes` fits both sides (callers check).
  virtual absl::Status CopyIn(const std::byte* host, Buffer device, size_t bytes) = 0;
  virtual absl::Status CopyOut(Buffer device, std::byte* host, size_t bytes) = 0;
  // Between memory of this device and memory of it or of a peer (peer_memory.h), in the order of
  // the work around it. Not waited for: Ops::Finish does.
  virtual absl::Status Copy(Buffer from, Buffer to, size_t bytes) = 0;
};

// A Device on the host's cores: one thread that runs submitted work in order, and a pool of
// `threads` (counting that one) that the operations divide themselves over. `on_done` delivers the
// completions and outlives the device.
struct CpuDeviceOptions {
  int threads = 1;
  // About how long a thread of the pool looks for work before it sleeps. Short, because workers
  // may share cores.
  int spin_us = 20;
};
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options,
                                                        base::Executor& on_done);

}  // namespace layercake::kernels
