// Memory of a device that processes of one host share: one makes a block, others map it and copy
// into it without its help. Beside Device: nothing here waits for a stage's work or is waited for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "kernels/device.h"

namespace layercake::kernels {

// The means of one device of this process.
//
// A block that is freed while others map it goes when the last of them unmaps it; what they write
// until then goes nowhere else.
// Thread rule: one thread at a time. Outlives its blocks and registrations.
class PeerMemory {
 public:
  // A block that others may map by `handle`. The handle goes to processes that are trusted with
  // the block, and to nobody else.
  struct Exported {
    std::unique_ptr<DeviceMemory> memory;
    std::string handle;
  };

  virtual ~PeerMemory() = default;

  // "GPU-<uuid>".
  virtual std::string device() const = 0;

  // At least `bytes` bytes in an allocation of their own, zeroed. ResourceExhausted, with the
  // sizes, when the device has not that much; Internal or Unimplemented when it cannot share.
  virtual absl::StatusOr<Exported> Create(size_t bytes) = 0;

  // Maps the first `bytes` bytes of another process's block. `handle` came over a wire: it is
  // checked. InvalidArgument: it is none. Internal: the device or the driver refuses, as CUDA does
  // within one process.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Open(absl::string_view handle,
                                                             size_t bytes) = 0;

  // Copies that are done on return, for proving a path and for tests; a stage's work copies with
  // its Device. Copy goes from device memory to device memory, as that work does, and either side
  // may be another process's.
  virtual absl::Status CopyIn(const std::byte* host, Buffer block, size_t bytes) = 0;
  virtual absl::Status CopyOut(Buffer block, std::byte* host, size_t bytes) = 0;
  virtual absl::Status Copy(Buffer from, Buffer to, size_t bytes) = 0;

  // Pins host pages, so that copies between them and the device need no bounce; the task undoes
  // it, on whichever thread it runs. Internal when the driver or a limit of the process refuses.
  virtual absl::StatusOr<base::Task> PinHost(absl::Span<std::byte> pages) = 0;
};

}  // namespace layercake::kernels
