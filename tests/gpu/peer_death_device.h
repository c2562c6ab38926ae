// What one process of peer_death_benchmark can do with its CUDA device: each call answers what the
// runtime said and how long it took.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "tests/gpu/peer_death_answer.h"

namespace layercake::testing {

// "Own" is a block of this process that others may open, "the mapping" a block of another one.
//
// Thread rule: one thread. Nothing is given back: what is measured is what the kernel and the
// driver do with a process that has died.
class PeerDeathDevice {
 public:
  explicit PeerDeathDevice(int device) : device_(device) {}

  // A context, streams, and kernels that are loaded. First.
  Answer Start();

  Answer Allocate(size_t bytes);  // filled with 1; says its handle in hex
  Answer Free();
  Answer Map(const std::string& handle, size_t bytes);
  Answer Close();

  // From own memory over all of the mapping, and until it is done.
  Answer Copy();
  // A kernel stores into the first MiB of the mapping.
  Answer Store(uint32_t value);
  // The same again and again; `begun` runs when it has been launched.
  Answer StoreFor(double seconds, const std::function<void(const Answer&)>& begun);
  // Copies over the mapping that take about so long, and `value` over its beginning. Does not wait
  // for them; `begun` says their size and speed before the first.
  Answer Queue(size_t count, double seconds, uint32_t value,
               const std::function<void(const Answer&)>& begun);
  Answer Sync();
  // Does the mapping, or the own block, begin with it?
  Answer Read(uint32_t value);
  Answer Look(uint32_t value);
  Answer Await(uint32_t value, double seconds);  // until the own block does

  // Own kernels write what own copies read.
  Answer Own();
  Answer Trap();
  // Launches a kernel that goes round.
  Answer Spin(double seconds);
  // What each call takes while one spins; says which wait for it. Closes the mapping.
  Answer Calls();

  Answer Pin(size_t bytes);
  Answer Room();  // says how many bytes are free on the device
  Answer AwaitRoom(size_t bytes, double seconds);
  // Tries to allocate until it can, and frees again.
  Answer Take(size_t bytes, double seconds);

 private:
  Answer Timed(absl::FunctionRef<cudaError_t()> call) const;
  // Asks again and again until `met` says so; kWrong after `seconds`.
  Answer Until(double seconds, absl::FunctionRef<bool()> met) const;
  Answer Expect(const std::byte* at, uint32_t value);
  // The first word there, through pinned memory and a stream that nothing else uses.
  cudaError_t ReadWord(const void* at, uint32_t* word);
  cudaError_t CopyAll(size_t bytes);
  // One call beside a kernel of its own: "free 600.0 ms WAITS" when it took as long as that.
  std::string CallBesideSpin(const std::string& name, absl::FunctionRef<cudaError_t()> call);

  const int device_;
  const base::SystemClock clock_;
  cudaStream_t work_ = nullptr;   // copies and stores
  cudaStream_t other_ = nullptr;  // what is done beside it
  cudaStream_t spin_ = nullptr;
  uint32_t* word_ = nullptr;  // pinned
  uint32_t* stop_ = nullptr;  // mapped; ends a spinning kernel
  uint32_t* stop_there_ = nullptr;
  uint32_t* scratch_ = nullptr;  // one MiB, never shared
  std::byte* own_ = nullptr;
  size_t own_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

// Unavailable with CUDA's own words where it does not work.
absl::StatusOr<int> CountCudaDevices();

}  // namespace layercake::testing
