#include "kernels/cuda/cuda_device.h"

#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_facts.h"

namespace layercake::kernels {
namespace cuda {
namespace {

// Copies up to this size are staged: the driver's own way for unpinned memory has a higher start-up
// cost, and asking whether memory is pinned costs about as much as copying this.
constexpr size_t kStagingBytes = size_t{256} << 10;

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(DeviceArray array, size_t bytes) : array_(std::move(array)), bytes_(bytes) {}
  Buffer buffer() const override { return {array_.as<std::byte>(), bytes_, MemorySpace::kDevice}; }

 private:
  DeviceArray array_;
  size_t bytes_;
};

std::string UuidText(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

absl::StatusOr<Context> MakeContext(const CudaDeviceFacts& facts) {
  Context context;
  const cudaError_t error = DescribeDevice(facts.index, &context);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    static_cast<void>(cudaGetLastError());
    return absl::FailedPreconditionError(
        absl::StrCat("this build has no code for ", facts.name, " (compute capability ",
                     facts.compute_major, ".", facts.compute_minor,
                     "); build with LAYERCAKE_CUDA_ARCHITECTURES=", facts.compute_major,
                     facts.compute_minor, " or without that option, for all that are known"));
  }
  LC_RETURN_IF_ERROR(
      CudaStatus(error, absl::StrCat("open cuda:", facts.index, " (", facts.name, ")")));
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaDeviceFacts& facts,
                                                               base::Executor& on_done) {
  if (facts.compute_major < 8) {
    return absl::FailedPreconditionError(absl::StrCat(facts.name, " has compute capability ",
                                                      facts.compute_major, ".", facts.compute_minor,
                                                      "; the kernels need 8.0 or newer"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  device->name_ = absl::StrCat("cuda:", facts.uuid);
  LC_ASSIGN_OR_RETURN(device->context_, MakeContext(facts));
  LC_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&device->context_.stream, cudaStreamNonBlocking), "make a stream"));
  LC_ASSIGN_OR_RETURN(device->staging_,
                      PinnedArray::Allocate(device->context_, kStagingBytes, "the copy buffer"));
  try {
    device->thread_ = std::make_unique<WorkThread>(on_done);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("starting the thread of ", device->name_, " failed: ", error.what()));
  }
  return device;
}

CudaDevice::~CudaDevice() {
  thread_.reset();
  if (context_.stream == nullptr || !MakeCurrent().ok()) return;
  static_cast<void>(cudaStreamSynchronize(context_.stream));
  static_cast<void>(cudaStreamDestroy(context_.stream));
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(context_.device), absl::StrCat("select ", name_));
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDevice::Allocate(size_t bytes) {
  LC_ASSIGN_OR_RETURN(DeviceArray array,
                      DeviceArray::Allocate(context_, bytes, absl::StrCat("a buffer on ", name_)));
  return std::make_unique<CudaMemory>(std::move(array), bytes);
}

void CudaDevice::Submit(Work work, Done done) {
  thread_->Submit(
      [this, work = std::move(work)]() mutable -> absl::Status {
        LC_RETURN_IF_ERROR(MakeCurrent());
        absl::Status status = work();
        work = nullptr;
        return status;
      },
      std::move(done));
}

absl::Status CudaDevice::BeforeCopy() {
  LC_RETURN_IF_ERROR(MakeCurrent());
  return flush_ != nullptr ? flush_() : absl::OkStatus();
}

absl::Status CudaDevice::Synchronize(absl::string_view what) {
  LC_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(context_.stream), absl::StrCat(name_, ": ", what)));
  staging_read_ = false;
  pending_ = false;
  return absl::OkStatus();
}

absl::Status CudaDevice::CopyIn(const std::byte* host, Buffer device, size_t bytes) {
  LC_RETURN_IF_ERROR(BeforeCopy());
  if (bytes == 0) return absl::OkStatus();
  const bool staged = bytes <= kStagingBytes;
  if (staged) {
    if (staging_read_) LC_RETURN_IF_ERROR(Synchronize("copy to the device"));
    staging_read_ = true;
    std::memcpy(staging_.as<std::byte>(), host, bytes);
    host = staging_.as<std::byte>();
  }
  pending_ = true;
  LC_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(device.address, host, bytes, cudaMemcpyHostToDevice, context_.stream),
      absl::StrCat(name_, ": copy ", bytes, " bytes to the device")));
  return staged ? absl::OkStatus() : Synchronize("copy to the device");
}

absl::Status CudaDevice::CopyOut(Buffer device, std::byte* host, size_t bytes) {
  LC_RETURN_IF_ERROR(BeforeCopy());
  if (bytes == 0) return absl::OkStatus();
  const bool staged = bytes <= kStagingBytes;
  std::byte* to = staged ? staging_.as<std::byte>() : host;
  LC_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, device.address, bytes, cudaMemcpyDeviceToHost, context_.stream),
      absl::StrCat(name_, ": copy ", bytes, " bytes from the device")));
  LC_RETURN_IF_ERROR(Synchronize("copy from the device"));
  if (staged) std::memcpy(host, to, bytes);
  return absl::OkStatus();
}

absl::Status CudaDevice::Copy(Buffer from, Buffer to, size_t bytes) {
  LC_RETURN_IF_ERROR(BeforeCopy());
  if (bytes == 0) return absl::OkStatus();
  pending_ = true;
  return CudaStatus(
      cudaMemcpyAsync(to.address, from.address, bytes, cudaMemcpyDefault, context_.stream),
      absl::StrCat(name_, ": copy ", bytes, " bytes on the device or to a peer"));
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() const {
  LC_RETURN_IF_ERROR(MakeCurrent());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  LC_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "ask for memory"));
  return free_bytes;
}

}  // namespace cuda

absl::StatusOr<std::vector<CudaDeviceFacts>> ListCudaDevices() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return absl::UnavailableError(
        absl::StrCat("no CUDA device can be used: ", cudaGetErrorString(error),
                     "; check that the NVIDIA driver runs (nvidia-smi) and CUDA_VISIBLE_DEVICES"));
  }
  if (count == 0) return absl::UnavailableError("no CUDA device can be used: there is none");
  std::vector<CudaDeviceFacts> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties = {};
    LC_RETURN_IF_ERROR(cuda::CudaStatus(cudaGetDeviceProperties(&properties, index),
                                        absl::StrCat("read the properties of cuda:", index)));
    char bus_id[32] = {};
    LC_RETURN_IF_ERROR(cuda::CudaStatus(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), index),
                                        absl::StrCat("read the bus id of cuda:", index)));
    devices.push_back({.index = index,
                       .uuid = cuda::UuidText(properties.uuid),
                       .name = properties.name,
                       .total_bytes = properties.totalGlobalMem,
                       .compute_major = properties.major,
                       .compute_minor = properties.minor,
                       .pci_bus_id = bus_id});
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceFacts& facts,
                                                         base::Executor& on_done) {
  return cuda::CudaDevice::Create(facts, on_done);
}

absl::StatusOr<uint64_t> FreeBytesOnCard(const CudaDeviceFacts& facts) {
  const std::string what = absl::StrCat("ask cuda:", facts.index, " for its free memory");
  LC_RETURN_IF_ERROR(cuda::CudaStatus(cudaSetDevice(facts.index), what));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  const cudaError_t asked = cudaMemGetInfo(&free_bytes, &total_bytes);
  // The context goes in any case: stages want its memory.
  const cudaError_t reset = cudaDeviceReset();
  LC_RETURN_IF_ERROR(cuda::CudaStatus(asked, what));
  LC_RETURN_IF_ERROR(cuda::CudaStatus(reset, what));
  return free_bytes;
}

absl::StatusOr<uint64_t> FreeCudaBytes(Device& device) {
  auto* cuda_device = dynamic_cast<cuda::CudaDevice*>(&device);
  if (cuda_device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(device.name(), " is no CUDA device"));
  }
  return cuda_device->FreeBytes();
}

}  // namespace layercake::kernels
