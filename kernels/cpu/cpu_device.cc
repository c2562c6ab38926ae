#include "kernels/cpu/cpu_device.h"

#include <cstring>
#include <new>
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

// Work is ours and throws nothing of its own; its scratch memory may run out.
absl::Status RunFenced(Device::Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host ran out of memory inside a step");
  }
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options, base::Executor& on_done)
    : on_done_(on_done), pool_(options.threads, options.spin_us), thread_([this] { Loop(); }) {}

CpuDevice::~CpuDevice() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CpuDevice::Allocate(size_t bytes) {
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(bytes, "a buffer");
  if (!memory.ok()) return memory.status();
  return std::make_unique<CpuMemory>(*std::move(memory), bytes);
}

void CpuDevice::Submit(Work work, Done done) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), std::move(done)});
  }
  changed_.notify_one();
}

absl::Status CpuDevice::CopyIn(const std::byte* host, Buffer device, size_t bytes) {
  if (bytes > 0) std::memcpy(device.address, host, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyOut(Buffer device, std::byte* host, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device.address, bytes);
  return absl::OkStatus();
}

void CpuDevice::Finish(Done done, absl::Status status) {
  // An executor that refuses has stopped; nobody waits for this completion any more.
  (void)on_done_.Post(
      [done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

void CpuDevice::Loop() {
  while (true) {
    Item item;
    bool run = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
      run = !stopping_;
    }
    absl::Status status = run ? RunFenced(item.work)
                              : absl::CancelledError("the device closed before this work began");
    item.work = nullptr;  // what it holds is freed before anyone hears that it is done
    Finish(std::move(item.done), std::move(status));
  }
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
