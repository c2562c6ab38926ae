// The other process of a channel between devices, for tests and measurements: handles of device
// memory can be opened by another process alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/cuda_backend.h"
#include "transport/channel_rig.h"
#include "transport/rows_mover.h"
#include "transport/ucx_worker.h"

namespace layercake::testing {

// Means for channels of `kind` on one device: "cuda_ipc", "pinned_host" or "ucx", the slots of the
// last two pinned. `ucx` runs over whatever UCX has here, as a worker's does by default.
//
// Thread rule: one thread at a time.
class DeviceChannels {
 public:
  // `clock` outlives it. InvalidArgument: no such kind. Unavailable or InvalidArgument: UCX does
  // not run here. Else what the device said.
  static absl::StatusOr<std::unique_ptr<DeviceChannels>> Create(
      const kernels::CudaDeviceFacts& device, const std::string& kind, const std::string& folder,
      const base::Clock& clock);

  kernels::PeerMemory& memory() { return *memory_; }
  transport::ChannelFactory& factory() { return *factory_; }

  // From a block of this device into a slot and off, and from a slot into a block: what a step does
  // with the rows of its activation. ResourceExhausted: no slot is free.
  absl::Status SendRows(transport::ChannelSender& sender, kernels::Buffer from, uint32_t bytes);
  absl::Status Receive(const transport::ReceivedFrame& frame, kernels::Buffer to);

 private:
  // What is pinned of a ucx channel stays so until the worker lets go of it.
  std::unique_ptr<kernels::PeerMemory> memory_;
  std::unique_ptr<transport::UcxWorker> ucx_;  // null of the other kinds
  std::unique_ptr<transport::ChannelFactory> factory_;
};

inline constexpr transport::Lane kRows = transport::Lane::kActivation;

// One slot more than a ping-pong needs; `term` tells rings apart.
transport::ChannelOptions DeviceChannelOptions(uint32_t slot_bytes, uint64_t term);

// Of the channel that answers one of `there`.
transport::ChannelOptions BackOptions(transport::ChannelOptions there);

// A channel in and a channel out on the loop of one end, as a stage has them.
struct TwoWays {
  absl::Status OpenIn(transport::ChannelFactory& factory, const transport::ChannelOptions& options,
                      transport::ChannelEnd& end);
  // Waits for the connection.
  absl::Status ConnectOut(transport::ChannelFactory& factory,
                          const transport::ChannelOptions& options, const std::string& to,
                          transport::ChannelEnd& end);
  void Close(transport::ChannelEnd& end);

  std::string offer;  // of `in`
  std::unique_ptr<transport::ChannelReceiver> in;
  std::unique_ptr<transport::ChannelSender> out;
};

// Copies of rows in parts, by a stage's kind of device.
absl::StatusOr<std::unique_ptr<transport::MovingEnd>> MoveInParts(
    const kernels::CudaDeviceFacts& device, uint32_t bytes, transport::ChannelEnd& end);

// The last of the devices for the peer, the first for the test: two where there are two.
kernels::CudaDeviceFacts PeerDevice(const std::vector<kernels::CudaDeviceFacts>& devices);

// Serves commands on standard input until it ends; arguments: kind, folder.
//   "receive BYTES TERM": makes a receiver with slots of so many bytes, prints its offer in hex,
//     then "proved" after the probe or what it said, then "STEP BYTES CRC" of every frame; ends
//     with what the channel said at its end.
//   "answer BYTES TERM ROUNDS OFFER": makes a receiver and prints its offer; connects to OFFER, of
//     term + 1; sends back what comes, over the device's memory. Prints "done"; ends with a line.
//   "parts BYTES TERM ROUNDS OFFER": the same in parts, the copies work of the device.
int RunChannelPeer(const std::string& kind, const std::string& folder);

}  // namespace layercake::testing
