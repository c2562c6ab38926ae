#include "tests/gpu/peer_death_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "tests/gpu/bounded_process.h"
#include "tests/gpu/peer_death_kernels.h"

namespace layercake::testing {
namespace {

constexpr size_t kWords = size_t{1} << 18;  // of one MiB
constexpr absl::Duration kAskAgain = absl::Milliseconds(2);
// What a call is measured beside: it waits for the kernel when it takes most of this.
constexpr double kSpinSeconds = 0.6;
constexpr double kWaitsFrom = 0.8 * 1e3 * kSpinSeconds;

uint64_t ToNanoseconds(double seconds) { return static_cast<uint64_t>(1e9 * seconds); }

Answer Fine(std::string words = {}) {
  return {.came = true, .code = 0, .milliseconds = 0, .words = std::move(words)};
}

Answer Wrong(std::string words) {
  return {.came = true, .code = kWrong, .milliseconds = 0, .words = std::move(words)};
}

// The first error of several calls.
cudaError_t FirstError(std::initializer_list<std::function<cudaError_t()>> calls) {
  for (const auto& call : calls) {
    if (const cudaError_t error = call(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

uint32_t* Words(std::byte* block) { return reinterpret_cast<uint32_t*>(block); }

}  // namespace

Answer PeerDeathDevice::Timed(absl::FunctionRef<cudaError_t()> call) const {
  const base::Instant began = clock_.Now();
  const cudaError_t error = call();
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return {.came = true,
          .code = static_cast<int>(error),
          .milliseconds = absl::ToDoubleMilliseconds(clock_.Now() - began),
          .words = error == cudaSuccess ? "" : cudaGetErrorString(error)};
}

Answer PeerDeathDevice::Until(double seconds, absl::FunctionRef<bool()> met) const {
  const base::Instant began = clock_.Now();
  bool done = met();
  while (!done && clock_.Now() - began < absl::Seconds(seconds)) {
    PauseFor(kAskAgain, clock_);
    done = met();
  }
  Answer answer = done ? Fine() : Wrong(absl::StrFormat("not within %.1f s", seconds));
  answer.milliseconds = absl::ToDoubleMilliseconds(clock_.Now() - began);
  return answer;
}

Answer PeerDeathDevice::Start() {
  return Timed([this] {
    return FirstError({
        [&] { return cudaSetDevice(device_); },
        [&] { return cudaStreamCreateWithFlags(&work_, cudaStreamNonBlocking); },
        [&] { return cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking); },
        [&] { return cudaStreamCreateWithFlags(&spin_, cudaStreamNonBlocking); },
        [&] { return cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof(*word_), 0); },
        [&] {
          return cudaHostAlloc(reinterpret_cast<void**>(&stop_), sizeof(*stop_),
                               cudaHostAllocMapped);
        },
        [&] {
          *stop_ = 0;
          return cudaHostGetDevicePointer(reinterpret_cast<void**>(&stop_there_), stop_, 0);
        },
        [&] { return cudaMalloc(reinterpret_cast<void**>(&scratch_), 4 * kWords); },
        // Kernels are loaded now, not beside something that is measured.
        [&] { return LaunchFill(scratch_, kWords, 0, work_); },
        [&] { return LaunchSpin(stop_there_, 1, spin_); },
        [&] { return cudaDeviceSynchronize(); },
    });
  });
}

cudaError_t PeerDeathDevice::ReadWord(const void* at, uint32_t* word) {
  const cudaError_t error = FirstError({
      [&] { return cudaMemcpyAsync(word_, at, sizeof(*word_), cudaMemcpyDefault, other_); },
      [&] { return cudaStreamSynchronize(other_); },
  });
  *word = *word_;
  return error;
}

Answer PeerDeathDevice::Expect(const std::byte* at, uint32_t value) {
  uint32_t word = 0;
  Answer answer = Timed([&] { return ReadWord(at, &word); });
  if (answer.code == 0 && word != value) return Wrong(absl::StrCat(word, " for ", value));
  return answer;
}

Answer PeerDeathDevice::Allocate(size_t bytes) {
  own_bytes_ = bytes;
  cudaIpcMemHandle_t handle = {};
  Answer answer = Timed([&] {
    return FirstError({
        [&] { return cudaMalloc(reinterpret_cast<void**>(&own_), bytes); },
        [&] { return LaunchFill(Words(own_), bytes / 4, 1, work_); },
        [&] { return cudaStreamSynchronize(work_); },
        [&] { return cudaIpcGetMemHandle(&handle, own_); },
    });
  });
  if (answer.code == 0) {
    answer.words = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(&handle), sizeof(handle)));
  }
  return answer;
}

Answer PeerDeathDevice::Map(const std::string& handle, size_t bytes) {
  cudaIpcMemHandle_t ipc = {};
  const std::string from = absl::HexStringToBytes(handle);
  if (from.size() != sizeof(ipc)) return Wrong("no handle");
  std::memcpy(&ipc, from.data(), sizeof(ipc));
  mapped_bytes_ = bytes;
  return Timed([&] {
    return cudaIpcOpenMemHandle(reinterpret_cast<void**>(&mapped_), ipc,
                                cudaIpcMemLazyEnablePeerAccess);
  });
}

Answer PeerDeathDevice::Free() {
  return Timed([this] { return cudaFree(own_); });
}

Answer PeerDeathDevice::Close() {
  return Timed([this] { return cudaIpcCloseMemHandle(mapped_); });
}

cudaError_t PeerDeathDevice::CopyAll(size_t bytes) {
  return FirstError({
      [&] { return cudaMemcpyAsync(mapped_, own_, bytes, cudaMemcpyDefault, work_); },
      [&] { return cudaStreamSynchronize(work_); },
  });
}

Answer PeerDeathDevice::Copy() {
  return Timed([this] { return CopyAll(std::min(own_bytes_, mapped_bytes_)); });
}

Answer PeerDeathDevice::Store(uint32_t value) {
  return Timed([&] {
    return FirstError({
        [&] { return LaunchFill(Words(mapped_), kWords, value, work_); },
        [&] { return cudaStreamSynchronize(work_); },
    });
  });
}

Answer PeerDeathDevice::StoreFor(double seconds, const std::function<void(const Answer&)>& begun) {
  const Answer launched = Timed(
      [&] { return LaunchFillFor(Words(mapped_), kWords, 3, ToNanoseconds(seconds), work_); });
  if (launched.code != 0) return launched;
  begun(launched);
  return Sync();
}

Answer PeerDeathDevice::Queue(size_t count, double seconds, uint32_t value,
                              const std::function<void(const Answer&)>& begun) {
  const size_t most = std::min(own_bytes_, mapped_bytes_);
  Answer whole = Copy();  // the first one sets things up
  if (whole.code == 0) whole = Copy();
  if (whole.code != 0) return whole;
  const double share =
      std::min(1.0, seconds / static_cast<double>(count) / (whole.milliseconds / 1e3));
  const size_t bytes = std::max<size_t>(4, static_cast<size_t>(share * static_cast<double>(most)));
  const double rate = static_cast<double>(most) / whole.milliseconds / 1e6;
  begun(Fine(absl::StrFormat("%.1f MB each, %.0f GB/s", static_cast<double>(bytes) / 1e6, rate)));
  return Timed([&] {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && error == cudaSuccess; ++i) {
      error = cudaMemcpyAsync(mapped_, own_, bytes, cudaMemcpyDefault, work_);
    }
    return error == cudaSuccess ? LaunchFill(Words(mapped_), 1, value, work_) : error;
  });
}

Answer PeerDeathDevice::Sync() {
  return Timed([this] { return cudaStreamSynchronize(work_); });
}

Answer PeerDeathDevice::Read(uint32_t value) { return Expect(mapped_, value); }

Answer PeerDeathDevice::Look(uint32_t value) { return Expect(own_, value); }

Answer PeerDeathDevice::Await(uint32_t value, double seconds) {
  return Until(seconds, [&] {
    uint32_t word = 0;
    return ReadWord(own_, &word) == cudaSuccess && word == value;
  });
}

Answer PeerDeathDevice::Own() {
  std::vector<uint32_t> back(kWords);
  const Answer answer = Timed([&] {
    return FirstError({
        [&] { return LaunchFill(scratch_, kWords, 77, other_); },
        [&] {
          return cudaMemcpyAsync(back.data(), scratch_, 4 * kWords, cudaMemcpyDefault, other_);
        },
        [&] { return cudaStreamSynchronize(other_); },
    });
  });
  const bool right =
      std::all_of(back.begin(), back.end(), [](uint32_t word) { return word == 77; });
  return answer.code == 0 && !right ? Wrong("other values than were written") : answer;
}

Answer PeerDeathDevice::Trap() {
  return Timed([this] {
    return FirstError({
        [&] { return LaunchTrap(work_); },
        [&] { return cudaStreamSynchronize(work_); },
    });
  });
}

Answer PeerDeathDevice::Pin(size_t bytes) {
  void* pages = nullptr;
  return Timed([&] { return cudaHostAlloc(&pages, bytes, 0); });
}

Answer PeerDeathDevice::Spin(double seconds) {
  return Timed([&] { return LaunchSpin(stop_there_, ToNanoseconds(seconds), spin_); });
}

Answer PeerDeathDevice::Room() {
  size_t free = 0;
  size_t all = 0;
  Answer answer = Timed([&] { return cudaMemGetInfo(&free, &all); });
  if (answer.code == 0) answer.words = absl::StrCat(free);
  return answer;
}

Answer PeerDeathDevice::AwaitRoom(size_t bytes, double seconds) {
  return Until(seconds, [&] {
    size_t free = 0;
    size_t all = 0;
    return cudaMemGetInfo(&free, &all) == cudaSuccess && free >= bytes;
  });
}

Answer PeerDeathDevice::Take(size_t bytes, double seconds) {
  return Until(seconds, [&] {
    void* address = nullptr;
    const Answer got = Timed([&] { return cudaMalloc(&address, bytes); });
    if (got.code == 0) static_cast<void>(cudaFree(address));
    return got.code == 0;
  });
}

std::string PeerDeathDevice::CallBesideSpin(const std::string& name,
                                            absl::FunctionRef<cudaError_t()> call) {
  const Answer spun = Spin(kSpinSeconds);
  if (spun.code != 0) return absl::StrCat("spin ", Describe(spun));
  const Answer answer = Timed(call);
  *static_cast<volatile uint32_t*>(stop_) = 1;
  const cudaError_t ended = cudaStreamSynchronize(spin_);
  *static_cast<volatile uint32_t*>(stop_) = 0;
  std::string line = absl::StrFormat("%s %.1f ms", name, answer.milliseconds);
  if (answer.milliseconds >= kWaitsFrom) absl::StrAppend(&line, " WAITS");
  if (answer.code != 0) absl::StrAppend(&line, " ", Describe(answer));
  if (ended != cudaSuccess) absl::StrAppend(&line, " then ", cudaGetErrorString(ended));
  return line;
}

Answer PeerDeathDevice::Calls() {
  constexpr size_t kBlock = size_t{64} << 20;
  void* device = nullptr;
  void* from_pool = nullptr;
  void* host = nullptr;
  size_t free = 0;
  size_t all = 0;
  std::vector<std::byte> pages(kBlock);
  cudaIpcMemHandle_t handle = {};
  cudaEvent_t event = nullptr;
  static_cast<void>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::vector<std::string> lines;
  const auto call = [&](const std::string& name, absl::FunctionRef<cudaError_t()> what) {
    lines.push_back(CallBesideSpin(name, what));
  };
  call("event query", [&] {
    static_cast<void>(cudaEventRecord(event, spin_));
    const cudaError_t error = cudaEventQuery(event);
    return error == cudaErrorNotReady ? cudaSuccess : error;
  });
  call("memory info", [&] { return cudaMemGetInfo(&free, &all); });
  call("copy on another stream", [&] {
    uint32_t word = 0;
    return ReadWord(scratch_, &word);
  });
  call("copy into the mapping", [&] {
    return FirstError(
        {[&] { return cudaMemcpyAsync(mapped_, scratch_, 4, cudaMemcpyDefault, work_); },
         [&] { return cudaStreamSynchronize(work_); }});
  });
  call("malloc", [&] { return cudaMalloc(&device, kBlock); });
  call("mallocAsync", [&] { return cudaMallocAsync(&from_pool, kBlock, other_); });
  call("freeAsync", [&] { return cudaFreeAsync(from_pool, other_); });
  call("host malloc", [&] { return cudaHostAlloc(&host, kBlock, 0); });
  call("host register", [&] { return cudaHostRegister(pages.data(), pages.size(), 0); });
  call("IPC handle", [&] { return cudaIpcGetMemHandle(&handle, device); });
  call("IPC close", [&] { return cudaIpcCloseMemHandle(mapped_); });
  call("host unregister", [&] { return cudaHostUnregister(pages.data()); });
  call("host free", [&] { return cudaFreeHost(host); });
  call("free", [&] { return cudaFree(device); });
  static_cast<void>(cudaEventDestroy(event));
  return Fine(absl::StrJoin(lines, ", "));
}

absl::StatusOr<int> CountCudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  return absl::UnavailableError(absl::StrCat("CUDA does not work here: error ",
                                             static_cast<int>(error), " (",
                                             cudaGetErrorString(error), ")"));
}

}  // namespace layercake::testing
