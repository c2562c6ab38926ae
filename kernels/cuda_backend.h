// The CUDA backend as the rest of the program sees it: no CUDA header, and the same functions in a
// build without CUDA, where they say so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace layercake::kernels {

struct CudaDeviceFacts {
  int index = 0;     // among the devices that this process may see (CUDA_VISIBLE_DEVICES)
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  std::string name;  // "NVIDIA H200"
  uint64_t total_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  std::string pci_bus_id;  // "0000:17:00.0"
};

// The devices, in CUDA's order. Touches no device: no context is made, no memory taken.
// Unimplemented without CUDA in the build; Unavailable, with the driver's reason, when there is no
// driver or no device.
absl::StatusOr<std::vector<CudaDeviceFacts>> ListCudaDevices();

// A device on one GPU. `on_done` delivers completions and outlives the device. Internal when CUDA
// refuses; FailedPrecondition when the GPU is older than the kernels.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceFacts& facts,
                                                         base::Executor& on_done);

struct CudaOpsOptions {
  // A row's results are the same bits in a step of any size: products take 16 rows at a time, and
  // every row goes through the attention of single rows, whose sums are cut by the row's position
  // alone. Steps of many rows take several times as long.
  bool deterministic = false;
};
// `device` comes from CreateCudaDevice and outlives the ops.
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(Device& device,
                                                   const CudaOpsOptions& options = {});

// Bytes that other processes leave free on a device. Makes a context for that, takes what is free
// beside it, and gives it back: for a process that uses no device otherwise.
absl::StatusOr<uint64_t> FreeBytesOnCard(const CudaDeviceFacts& facts);

// Bytes free on a device of CreateCudaDevice, as its driver counts them now.
absl::StatusOr<uint64_t> FreeCudaBytes(Device& device);

}  // namespace layercake::kernels
