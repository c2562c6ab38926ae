#include "kernels/cpu/cpu_device.h"

#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host_memory.h"

namespace layercake::kernels {
namespace {

class CpuMemory final : public DeviceMemory {
 public:
  CpuMemory(HostMemory memory, size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Buffer buffer() const override { return {memory_.address(), bytes_, MemorySpace::kHost}; }

 private:
  HostMemory memory_;
  size_t bytes_;
};

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options, base::Executor& on_done)
    : pool_(options.threads, options.spin_us), thread_(on_done) {}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CpuDevice::Allocate(size_t bytes) {
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(bytes, "a buffer");
  if (!memory.ok()) return memory.status();
  return std::make_unique<CpuMemory>(*std::move(memory), bytes);
}

void CpuDevice::Submit(Work work, Done done) { thread_.Submit(std::move(work), std::move(done)); }

absl::Status CpuDevice::CopyIn(const std::byte* host, Buffer device, size_t bytes) {
  if (bytes > 0) std::memcpy(device.address, host, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyOut(Buffer device, std::byte* host, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device.address, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::Copy(Buffer from, Buffer to, size_t bytes) {
  if (bytes > 0) std::memcpy(to.address, from.address, bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options,
                                                        base::Executor& on_done) {
  if (options.threads < 1 || options.threads > ThreadPool::kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a CPU device needs 1 to ", ThreadPool::kMaxThreads, " threads, got ", options.threads));
  }
  if (options.spin_us < 0 || options.spin_us > 10'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("a CPU device's spin time is 0 to 10000 us, got ", options.spin_us));
  }
  try {
    return std::make_unique<CpuDevice>(options, on_done);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "starting ", options.threads, " threads for the CPU device failed: ", error.what()));
  }
}

}  // namespace layercake::kernels
