// The Unix socket over which the two ends of a pinned_host channel meet: a listener in a folder of
// its own, the handshake's messages, descriptors passed along.
//
// Thread rule: one thread at a time. Nothing blocks.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "transport/frame.h"
#include "transport/offer.h"

namespace layercake::transport {

// A listening socket in a fresh 0700 folder. The destructor removes both.
class SocketListener {
 public:
  // InvalidArgument: the path gets longer than a socket's may be. Else the Posix error.
  static absl::StatusOr<SocketListener> Create(const std::string& parent_folder);
  SocketListener() = default;
  SocketListener(SocketListener&& other) noexcept { *this = std::move(other); }
  SocketListener& operator=(SocketListener&& other) noexcept;
  ~SocketListener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // The next connection of the same user; an invalid descriptor when none waits. PermissionDenied:
  // another user knocked, and was turned away.
  absl::StatusOr<base::UniqueFd> Accept();

 private:
  base::UniqueFd fd_;
  std::string folder_;
  std::string path_;
};

// Unavailable: nobody listens at `path`. PermissionDenied: another user does.
absl::StatusOr<base::UniqueFd> ConnectSocket(const std::string& path);

// What the sender says first.
struct PinnedHello {
  RingId ring;
  Secret secret{};
};
std::string EncodePinnedHello(const PinnedHello& hello);
// DataLoss or FailedPrecondition (another version).
absl::StatusOr<PinnedHello> DecodePinnedHello(absl::string_view bytes);

// The receiver's answer: welcome, with the descriptors, or the reason why not.
struct PinnedAnswer {
  bool welcome = false;
  std::string reason;       // why not
  std::string device_ring;  // cuda_ipc, welcome: device_slots.h; fits a message
};
std::string EncodePinnedAnswer(const PinnedAnswer& answer);
absl::StatusOr<PinnedAnswer> DecodePinnedAnswer(absl::string_view bytes);

struct SocketMessage {
  std::string bytes;  // empty: the peer has closed
  std::vector<base::UniqueFd> descriptors;
};
absl::Status SendMessage(int socket, absl::string_view bytes, const std::vector<int>& descriptors);
// Of at most 1 KiB and 3 descriptors; more is DataLoss. nullopt: nothing there yet.
absl::StatusOr<std::optional<SocketMessage>> ReceiveMessage(int socket);

}  // namespace layercake::transport
