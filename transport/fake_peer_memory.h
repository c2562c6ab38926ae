// A device without a device: blocks are shared memory that this process can reach by the copies of
// PeerMemory alone, so that a test finds whoever touches device memory from the host. Handles work
// within a process and between two of one user. For tests.
//
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "kernels/peer_memory.h"

namespace layercake::transport {

class FakePeerMemory final : public kernels::PeerMemory {
 public:
  // What happens to a block of 16 bytes of a Copy that reports success (CASES E4).
  enum class CopyFault { kZero, kRepeat, kTruncate };

  explicit FakePeerMemory(std::string device = "GPU-fake") : device_(std::move(device)) {}

  std::string device() const override { return device_; }
  absl::StatusOr<Exported> Create(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Open(absl::string_view handle,
                                                              size_t bytes) override;
  absl::Status CopyIn(const std::byte* host, kernels::Buffer block, size_t bytes) override;
  absl::Status CopyOut(kernels::Buffer block, std::byte* host, size_t bytes) override;
  absl::Status Copy(kernels::Buffer from, kernels::Buffer to, size_t bytes) override;
  absl::StatusOr<base::Task> PinHost(absl::Span<std::byte> pages) override;

  // The `index`-th Copy from the start, counted from 0, goes wrong.
  void HarmCopy(int index, CopyFault fault);
  int copies() const;
  size_t blocks() const;
  size_t pinned_bytes() const;

 private:
  class Block;
  struct Mapping {
    int fd = -1;
    size_t bytes = 0;
  };
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Map(base::UniqueFd fd, size_t bytes);
  void Forget(const std::byte* base);
  // The file and offset of `bytes` bytes at `block`; InvalidArgument when they lie in no block.
  absl::StatusOr<std::pair<int, off_t>> Find(kernels::Buffer block, size_t bytes) const;

  const std::string device_;
  mutable absl::Mutex mutex_;
  std::map<const std::byte*, Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
  size_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int copies_ ABSL_GUARDED_BY(mutex_) = 0;
  int harmed_ ABSL_GUARDED_BY(mutex_) = -1;
  CopyFault fault_ ABSL_GUARDED_BY(mutex_) = CopyFault::kZero;
};

}  // namespace layercake::transport
