// A channel factory that does harm by seed: the faulty twin that the conformance suite, and later
// the simulator, put over any real kind.
//
// Faults of a frame (drop, repeat, flip, truncate, zero a block) strike between its checksum and
// its publication, so that the receiving end must find them. Of a device slot they strike the
// sections; harm to its rows is for a faulty PeerMemory to do. Delays hold a frame back at the
// receiver, withheld credits hold back releases; both end after some calls, and on_ready runs then.
// A close ends the sender as a crash of its process would. Thread rule: as the wrapped channels'.
// The inner factory outlives it, it outlives its channels.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/random.h"
#include "transport/channel.h"

namespace layercake::transport {

// Chances from 0 to 1, per frame (close: per commit).
struct FaultRates {
  double drop = 0;
  double repeat = 0;
  double flip_payload = 0;
  double flip_header = 0;
  double truncate = 0;
  double zero_block = 0;
  double delay = 0;
  double withhold_credit = 0;
  double close = 0;
};

// What was done so far, over all channels of one factory.
struct FaultCounts {
  uint64_t frames = 0;  // that senders committed
  uint64_t dropped = 0;
  uint64_t repeated = 0;
  uint64_t corrupted = 0;  // flipped, truncated, zeroed
  uint64_t delayed = 0;
  uint64_t withheld = 0;
  uint64_t closed = 0;
  // frames per lane before the first one dropped, repeated or corrupted; frames of a lane without
  // such a fault count to the end.
  std::array<uint64_t, kLaneCount> good_prefix{};
  std::array<bool, kLaneCount> spoilt{};
};

class FaultyChannelFactory final : public ChannelFactory {
 public:
  FaultyChannelFactory(ChannelFactory& inner, const FaultRates& rates, uint64_t seed);
  ~FaultyChannelFactory() override;

  TransportKind kind() const override { return inner_.kind(); }
  kernels::PeerMemory* peer_memory() const override { return inner_.peer_memory(); }
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(const ChannelOptions& options,
                                                                  ChannelContext context) override;
  absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                         const ChannelOptions& options,
                                                         ChannelContext context) override;
  // Of the end that used this factory.
  const FaultCounts& counts() const;

 private:
  class Faults;

  ChannelFactory& inner_;
  std::unique_ptr<Faults> faults_;
};

}  // namespace layercake::transport
