#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/available_memory.h"
#include "base/checked_math.h"

namespace layercake::kernels {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// Below this the question to the kernel costs more than a wrong answer.
constexpr size_t kAskFirst = size_t{16} << 20;

}  // namespace

absl::StatusOr<HostMemory> HostMemory::Allocate(size_t bytes, absl::string_view purpose) {
  const std::optional<uint64_t> rounded = base::CheckedAlignUp(bytes == 0 ? 1 : bytes, kPage);
  if (!rounded) {
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes, " bytes is more than any machine has"));
  }
  const size_t size = *rounded;
  if (size >= kAskFirst) {
    const std::optional<uint64_t> available = base::AvailableMemoryBytes();
    if (available && size > *available) {
      return absl::ResourceExhaustedError(
          absl::StrCat(purpose, " needs ", size, " bytes of host memory, ", *available,
                       " are available; free some, or ask for less"));
    }
  }
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": mapping ", size, " bytes failed: ", std::strerror(errno)));
  }
  // Advice only: fewer TLB misses where the machine grants it.
  if (size >= kHugePage) madvise(address, size, MADV_HUGEPAGE);
  auto* first = static_cast<volatile std::byte*>(address);
  for (size_t offset = 0; offset < size; offset += kPage) first[offset] = std::byte{0};
  return HostMemory(static_cast<std::byte*>(address), size);
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostMemory::~HostMemory() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

}  // namespace layercake::kernels
