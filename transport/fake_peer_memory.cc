#include "transport/fake_peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"

namespace layercake::transport {
namespace {

constexpr size_t kBlockBytes = 16;

absl::Status Moved(ssize_t moved, size_t bytes) {
  if (moved == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return base::PosixError(absl::StrCat("copy ", bytes, " bytes of fake device memory"), errno);
}

}  // namespace

class FakePeerMemory::Block final : public kernels::DeviceMemory {
 public:
  Block(FakePeerMemory& owner, base::UniqueFd fd, std::byte* base, size_t bytes)
      : owner_(owner), fd_(std::move(fd)), base_(base), bytes_(bytes) {}
  ~Block() override {
    owner_.Forget(base_);
    munmap(base_, bytes_);
  }
  kernels::Buffer buffer() const override { return {base_, bytes_, kernels::MemorySpace::kDevice}; }

 private:
  FakePeerMemory& owner_;
  const base::UniqueFd fd_;
  std::byte* const base_;
  const size_t bytes_;
};

absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> FakePeerMemory::Map(base::UniqueFd fd,
                                                                           size_t bytes) {
  // An address range that nobody may touch.
  void* const base =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return base::PosixError("reserve addresses", errno);
  auto* const address = static_cast<std::byte*>(base);
  {
    absl::MutexLock lock(&mutex_);
    mappings_[address] = {.fd = fd.get(), .bytes = bytes};
  }
  return std::make_unique<Block>(*this, std::move(fd), address, bytes);
}

absl::StatusOr<kernels::PeerMemory::Exported> FakePeerMemory::Create(size_t bytes) {
  base::UniqueFd fd(memfd_create("layercake-fake-device", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return base::PosixError("make fake device memory", errno);
  }
  std::string handle = absl::StrCat("/proc/", getpid(), "/fd/", fd.get());
  LC_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceMemory> memory, Map(std::move(fd), bytes));
  return Exported{.memory = std::move(memory), .handle = std::move(handle)};
}

absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> FakePeerMemory::Open(
    absl::string_view handle, size_t bytes) {
  if (!absl::StartsWith(handle, "/proc/")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", handle, "\" is no handle"));
  }
  base::UniqueFd fd(open(std::string(handle).c_str(), O_RDWR | O_CLOEXEC));
  struct stat found {};
  if (!fd.valid() || fstat(fd.get(), &found) != 0 || found.st_size < static_cast<off_t>(bytes)) {
    return absl::InternalError(absl::StrCat("the fake driver does not know ", handle));
  }
  return Map(std::move(fd), bytes);
}

void FakePeerMemory::Forget(const std::byte* base) {
  absl::MutexLock lock(&mutex_);
  mappings_.erase(base);
}

absl::StatusOr<std::pair<int, off_t>> FakePeerMemory::Find(kernels::Buffer block,
                                                           size_t bytes) const {
  absl::MutexLock lock(&mutex_);
  auto it = mappings_.upper_bound(block.address);
  if (block.space == kernels::MemorySpace::kDevice && it != mappings_.begin()) {
    --it;
    const auto offset = static_cast<size_t>(block.address - it->first);
    if (offset <= it->second.bytes && bytes <= it->second.bytes - offset) {
      return std::pair(it->second.fd, static_cast<off_t>(offset));
    }
  }
  return absl::InvalidArgumentError("a copy outside of every block");
}

absl::Status FakePeerMemory::CopyIn(const std::byte* host, kernels::Buffer block, size_t bytes) {
  LC_ASSIGN_OR_RETURN(const auto to, Find(block, bytes));
  return Moved(pwrite(to.first, host, bytes, to.second), bytes);
}

absl::Status FakePeerMemory::CopyOut(kernels::Buffer block, std::byte* host, size_t bytes) {
  LC_ASSIGN_OR_RETURN(const auto from, Find(block, bytes));
  return Moved(pread(from.first, host, bytes, from.second), bytes);
}

absl::Status FakePeerMemory::Copy(kernels::Buffer from, kernels::Buffer to, size_t bytes) {
  std::vector<std::byte> moved(bytes);
  LC_RETURN_IF_ERROR(CopyOut(from, moved.data(), bytes));
  bool harmed = false;
  CopyFault fault = CopyFault::kZero;
  {
    absl::MutexLock lock(&mutex_);
    harmed = copies_++ == harmed_;
    fault = fault_;
  }
  if (harmed && bytes >= 2 * kBlockBytes) {
    const auto block = moved.begin() + static_cast<ptrdiff_t>(bytes / 2);
    if (fault == CopyFault::kZero) std::fill_n(block, kBlockBytes, std::byte{});
    if (fault == CopyFault::kRepeat) std::copy_n(block - kBlockBytes, kBlockBytes, block);
    if (fault == CopyFault::kTruncate) moved.resize(bytes - kBlockBytes);
  }
  return CopyIn(moved.data(), to, moved.size());
}

absl::StatusOr<base::Task> FakePeerMemory::PinHost(absl::Span<std::byte> pages) {
  absl::MutexLock lock(&mutex_);
  pinned_bytes_ += pages.size();
  return [this, bytes = pages.size()] {
    absl::MutexLock undo_lock(&mutex_);
    pinned_bytes_ -= bytes;
  };
}

void FakePeerMemory::HarmCopy(int index, CopyFault fault) {
  absl::MutexLock lock(&mutex_);
  harmed_ = index;
  fault_ = fault;
}

int FakePeerMemory::copies() const {
  absl::MutexLock lock(&mutex_);
  return copies_;
}

size_t FakePeerMemory::pinned_bytes() const {
  absl::MutexLock lock(&mutex_);
  return pinned_bytes_;
}

size_t FakePeerMemory::blocks() const {
  absl::MutexLock lock(&mutex_);
  return mappings_.size();
}

}  // namespace layercake::transport
