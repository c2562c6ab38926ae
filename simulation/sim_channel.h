// A channel in virtual time. Bytes leave the sender's slot and reach the receiver's when the hop is
// over, not before: so a late write, by a sender that nobody waits for any more, can be expressed.
//
// One thread: the simulation's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "transport/channel.h"

namespace layercake::simulation {

struct SimRing;  // what both ends of a channel share

// What the factories of one simulation share.
struct SimFabric {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  absl::Duration hop;  // from commit to arrival, and of a credit on its way back
  // A wire carries one frame after the other. The bytes of an activation's rows take this long
  // each, beside the hop; those of plans and sections, which are as long as real ones, count as
  // nothing.
  absl::Duration per_row_byte = absl::ZeroDuration();
  std::map<std::string, std::shared_ptr<SimRing>> waiting;  // by offer
  int offers = 0;
};

class SimChannelFactory final : public transport::ChannelFactory {
 public:
  // `fabric` outlives the factory and its channels.
  explicit SimChannelFactory(SimFabric& fabric) : fabric_(fabric) {}

  transport::TransportKind kind() const override { return transport::TransportKind::kLocal; }
  absl::StatusOr<std::unique_ptr<transport::ChannelReceiver>> CreateReceiver(
      const transport::ChannelOptions& options, transport::ChannelContext context) override;
  absl::StatusOr<std::unique_ptr<transport::ChannelSender>> Connect(
      absl::string_view offer, const transport::ChannelOptions& options,
      transport::ChannelContext context) override;

 private:
  SimFabric& fabric_;
};

}  // namespace layercake::simulation
