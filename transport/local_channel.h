// The `local` kind: both ends in one process, slots in plain memory. For tests, and for a chain
// that runs in one process.
//
// A LocalHub joins the two ends: every factory of one process gets the same hub. Each end has its
// own executor.
// Thread rule: LocalHub is thread-safe; a factory and its channels belong to their executor's
// thread.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "transport/channel.h"
#include "transport/offer.h"

namespace layercake::transport {

class LocalRing;  // what both ends of one channel share

class LocalHub {
 public:
  // A ring waits here from its receiver's start until a sender takes it or the receiver goes.
  void Add(const Secret& secret, std::shared_ptr<LocalRing> ring);
  void Remove(const Secret& secret);
  // Null when there is none.
  std::shared_ptr<LocalRing> Take(const Secret& secret);

 private:
  absl::Mutex mutex_;
  absl::btree_map<Secret, std::shared_ptr<LocalRing>> waiting_ ABSL_GUARDED_BY(mutex_);
};

class LocalChannelFactory final : public ChannelFactory {
 public:
  // `hub` outlives the factory and its channels.
  explicit LocalChannelFactory(LocalHub& hub) : hub_(hub) {}

  TransportKind kind() const override { return TransportKind::kLocal; }
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(const ChannelOptions& options,
                                                                  ChannelContext context) override;
  absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                         const ChannelOptions& options,
                                                         ChannelContext context) override;

 private:
  LocalHub& hub_;
};

}  // namespace layercake::transport
