// What both ends of a channel in shared memory hold once they are connected: doorbells, the socket
// that tells the peer's end, and the first failure, which stays.
//
// Thread rule: the channel's executor's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/fd_watcher.h"
#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/ready_signal.h"

namespace layercake::transport {

// Descriptors under watch, all of which end with this object.
class Watches {
 public:
  explicit Watches(base::FdWatcher& watcher) : watcher_(watcher) {}
  ~Watches();
  absl::Status Add(int fd, base::Task on_readable);
  void Remove(int fd);

 private:
  base::FdWatcher& watcher_;
  std::vector<int> fds_;
};

class SharedRingLink {
 public:
  SharedRingLink(TransportKind kind, std::string peer, ChannelContext context);
  ~SharedRingLink() { signal_->Cancel(); }

  // From here on `own_bell` runs on_ready, and the end of `socket` is the peer's.
  absl::Status Start(base::UniqueFd socket, base::UniqueFd own_bell, base::UniqueFd peer_bell);
  void RingPeer();

  const absl::Status& Fail(absl::Status status) {
    if (failure_.ok()) failure_ = std::move(status);
    return failure_;
  }
  const absl::Status& FailPeerGone();
  const absl::Status& failure() const { return failure_; }

  TransportKind kind() const { return kind_; }
  std::string kind_name() const { return std::string(TransportKindName(kind_)); }
  const std::string& peer() const { return peer_; }
  const std::shared_ptr<ReadySignal>& signal() const { return signal_; }
  Watches& watches() { return watches_; }

 private:
  void OnDoorbell();
  void OnSocket();
  void RunReady();

  const TransportKind kind_;
  const std::string peer_;
  const std::shared_ptr<ReadySignal> signal_;
  absl::Status failure_;
  base::UniqueFd socket_;
  base::UniqueFd own_bell_;
  base::UniqueFd peer_bell_;
  Watches watches_;  // before the descriptors go
};

}  // namespace layercake::transport
