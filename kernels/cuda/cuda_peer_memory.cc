#include "kernels/cuda_peer_memory.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/context.h"

namespace layercake::kernels {
namespace cuda {
namespace {

// Smaller allocations share a block of this size, and a handle opens the whole block.
constexpr size_t kOwnBlockBytes = size_t{2} << 20;

class ExportedBlock final : public DeviceMemory {
 public:
  ExportedBlock(DeviceArray array, size_t bytes) : array_(std::move(array)), bytes_(bytes) {}
  Buffer buffer() const override { return {array_.as<std::byte>(), bytes_, MemorySpace::kDevice}; }

 private:
  DeviceArray array_;
  size_t bytes_;
};

class MappedBlock final : public DeviceMemory {
 public:
  MappedBlock(void* address, size_t bytes, int device)
      : address_(address), bytes_(bytes), device_(device) {}
  ~MappedBlock() override {
    // The device may have been lost; there is nothing to do about it here.
    if (cudaSetDevice(device_) == cudaSuccess) static_cast<void>(cudaIpcCloseMemHandle(address_));
  }
  Buffer buffer() const override {
    return {static_cast<std::byte*>(address_), bytes_, MemorySpace::kDevice};
  }

 private:
  void* const address_;
  const size_t bytes_;
  const int device_;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Make(const CudaDeviceFacts& facts);
  ~CudaPeerMemory() override {
    if (cudaSetDevice(context_.device) != cudaSuccess) return;
    static_cast<void>(cudaStreamSynchronize(context_.stream));
    static_cast<void>(cudaStreamDestroy(context_.stream));
  }

  std::string device() const override { return device_; }
  absl::StatusOr<Exported> Create(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Open(absl::string_view handle,
                                                     size_t bytes) override;
  absl::Status CopyIn(const std::byte* host, Buffer block, size_t bytes) override {
    return Move(block.address, host, bytes, "to");
  }
  absl::Status CopyOut(Buffer block, std::byte* host, size_t bytes) override {
    return Move(host, block.address, bytes, "from");
  }
  absl::Status Copy(Buffer from, Buffer to, size_t bytes) override {
    return Move(to.address, from.address, bytes, "between blocks at");
  }
  absl::StatusOr<base::Task> PinHost(absl::Span<std::byte> pages) override;

 private:
  CudaPeerMemory() = default;
  absl::Status Select() const {
    return CudaStatus(cudaSetDevice(context_.device), absl::StrCat("select ", device_));
  }
  absl::Status Move(void* to, const void* from, size_t bytes, absl::string_view way);

  std::string device_;
  Context context_;  // a stream of its own: no copy waits for a step
};

absl::StatusOr<std::unique_ptr<PeerMemory>> CudaPeerMemory::Make(const CudaDeviceFacts& facts) {
  std::unique_ptr<CudaPeerMemory> memory(new CudaPeerMemory);
  memory->device_ = facts.uuid;
  memory->context_.device = facts.index;
  LC_RETURN_IF_ERROR(memory->Select());
  LC_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&memory->context_.stream, cudaStreamNonBlocking), "make a stream"));
  return memory;
}

absl::StatusOr<PeerMemory::Exported> CudaPeerMemory::Create(size_t bytes) {
  const size_t whole = (bytes + kOwnBlockBytes - 1) / kOwnBlockBytes * kOwnBlockBytes;
  LC_ASSIGN_OR_RETURN(
      DeviceArray array,
      DeviceArray::Allocate(context_, whole, absl::StrCat("a ring of slots on ", device_)));
  LC_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(context_.stream), "clear a ring of slots"));
  cudaIpcMemHandle_t handle = {};
  LC_RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, array.address()),
                                absl::StrCat("share device memory of ", device_)));
  Exported exported;
  exported.handle.assign(reinterpret_cast<const char*>(&handle), sizeof(handle));
  exported.memory = std::make_unique<ExportedBlock>(std::move(array), bytes);
  return exported;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaPeerMemory::Open(absl::string_view handle,
                                                                   size_t bytes) {
  cudaIpcMemHandle_t ipc = {};
  if (handle.size() != sizeof(ipc)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a handle of CUDA memory has ", sizeof(ipc), " bytes, not ", handle.size()));
  }
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  LC_RETURN_IF_ERROR(Select());
  void* address = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&address, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // not sticky: we go on without
  LC_RETURN_IF_ERROR(CudaStatus(
      error, absl::StrCat("open the CUDA memory handle of another process on ", device_)));
  return std::make_unique<MappedBlock>(address, bytes, context_.device);
}

absl::Status CudaPeerMemory::Move(void* to, const void* from, size_t bytes, absl::string_view way) {
  if (bytes == 0) return absl::OkStatus();
  LC_RETURN_IF_ERROR(Select());
  const std::string what = absl::StrCat("copy ", bytes, " bytes ", way, " ", device_);
  LC_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context_.stream), what));
  return CudaStatus(cudaStreamSynchronize(context_.stream), what);
}

absl::StatusOr<base::Task> CudaPeerMemory::PinHost(absl::Span<std::byte> pages) {
  LC_RETURN_IF_ERROR(Select());
  const cudaError_t error = cudaHostRegister(pages.data(), pages.size(), cudaHostRegisterPortable);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // not sticky: we go on without
  LC_RETURN_IF_ERROR(
      CudaStatus(error, absl::StrCat("pin ", pages.size(), " bytes of host memory for ", device_,
                                     " (a limit on locked memory may be too low: ulimit -l)")));
  return [address = pages.data(), device = context_.device] {
    if (cudaSetDevice(device) == cudaSuccess) static_cast<void>(cudaHostUnregister(address));
  };
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<PeerMemory>> CreateCudaPeerMemory(const CudaDeviceFacts& facts) {
  return cuda::CudaPeerMemory::Make(facts);
}

}  // namespace layercake::kernels
