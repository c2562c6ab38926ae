#include "transport/pinned_host_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kMagic = 0x3150434c;  // "LCP1"
constexpr uint16_t kVersion = 1;
constexpr size_t kPrefixBytes = 8;  // magic u32, version u16, code u16
constexpr size_t kHelloBytes = kPrefixBytes + 8 + 4 + 16;
constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxDescriptors = 3;
constexpr uint16_t kCodeHello = 1;
constexpr uint16_t kCodeWelcome = 2;
constexpr uint16_t kCodeRefused = 3;
// Strangers of the same user may knock; the true sender must still find room.
constexpr int kBacklog = 8;

absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a socket cannot have the path \"", path, "\" of ", path.size(),
                     " bytes (absolute, at most ", sizeof(address.sun_path) - 1,
                     "); choose a shorter socket folder"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status CheckPeerUser(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return base::PosixError("ask who is at the other end of a socket", errno);
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the other end of a channel's socket is user ",
                                                  peer.uid, ", this process is user ", geteuid(),
                                                  "; run every worker of a host as one user"));
}

std::string Prefix(uint16_t code) {
  std::string text(kPrefixBytes, '\0');
  auto* const at = reinterpret_cast<std::byte*>(text.data());
  StoreLittleEndian(at, kMagic);
  StoreLittleEndian(at + 4, kVersion);
  StoreLittleEndian(at + 6, code);
  return text;
}

absl::StatusOr<uint16_t> DecodePrefix(absl::string_view bytes) {
  const auto* const at = reinterpret_cast<const std::byte*>(bytes.data());
  if (bytes.size() < kPrefixBytes || LoadLittleEndian<uint32_t>(at) != kMagic) {
    return absl::DataLossError("refuse the handshake of a pinned_host channel: it is not one");
  }
  const auto version = LoadLittleEndian<uint16_t>(at + 4);
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer's pinned_host handshake has version ", version, ", this worker's ",
                     kVersion, "; run the same release"));
  }
  return LoadLittleEndian<uint16_t>(at + 6);
}

}  // namespace

absl::StatusOr<SocketListener> SocketListener::Create(const std::string& parent_folder) {
  SocketListener listener;
  std::string folder = absl::StrCat(parent_folder, "/layercake-XXXXXX");
  LC_RETURN_IF_ERROR(SocketAddress(absl::StrCat(folder, "/ring")).status());
  if (mkdtemp(folder.data()) == nullptr) {  // 0700
    return base::PosixError(
        absl::StrCat("make a socket folder in ", parent_folder, " (is it there and writable?)"),
        errno);
  }
  listener.folder_ = folder;
  listener.path_ = absl::StrCat(folder, "/ring");
  LC_ASSIGN_OR_RETURN(const sockaddr_un address, SocketAddress(listener.path_));
  listener.fd_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd_.valid()) return base::PosixError("make a Unix socket", errno);
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.fd(), kBacklog) != 0) {
    return base::PosixError(absl::StrCat("listen at ", listener.path_), errno);
  }
  return listener;
}

SocketListener& SocketListener::operator=(SocketListener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  std::swap(path_, other.path_);
  return *this;
}

SocketListener::~SocketListener() {
  if (!path_.empty()) unlink(path_.c_str());
  if (!folder_.empty()) rmdir(folder_.c_str());
}

absl::StatusOr<base::UniqueFd> SocketListener::Accept() {
  base::UniqueFd connection(accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid()) {
    const int error = errno;
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return base::UniqueFd();
    return base::PosixError("accept a connection to a channel", error);
  }
  LC_RETURN_IF_ERROR(CheckPeerUser(connection.get()));
  return connection;
}

absl::StatusOr<base::UniqueFd> ConnectSocket(const std::string& path) {
  LC_ASSIGN_OR_RETURN(const sockaddr_un address, SocketAddress(path));
  base::UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.valid()) return base::PosixError("make a Unix socket", errno);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
      0) {
    const absl::Status error = base::PosixError(absl::StrCat("connect to ", path), errno);
    return absl::UnavailableError(error.message());
  }
  LC_RETURN_IF_ERROR(CheckPeerUser(connection.get()));
  return connection;
}

std::string EncodePinnedHello(const PinnedHello& hello) {
  std::string text = Prefix(kCodeHello);
  text.resize(kHelloBytes);
  auto* const at = reinterpret_cast<std::byte*>(text.data()) + kPrefixBytes;
  StoreLittleEndian(at, hello.ring.term);
  StoreLittleEndian(at + 8, hello.ring.epoch);
  std::memcpy(at + 12, hello.secret.data(), hello.secret.size());
  return text;
}

absl::StatusOr<PinnedHello> DecodePinnedHello(absl::string_view bytes) {
  LC_ASSIGN_OR_RETURN(const uint16_t code, DecodePrefix(bytes));
  if (code != kCodeHello || bytes.size() != kHelloBytes) {
    return absl::DataLossError(absl::StrCat("refuse the greeting of a pinned_host channel: code ",
                                            code, " of ", bytes.size(), " bytes"));
  }
  const auto* const at = reinterpret_cast<const std::byte*>(bytes.data()) + kPrefixBytes;
  PinnedHello hello;
  hello.ring.term = LoadLittleEndian<uint64_t>(at);
  hello.ring.epoch = LoadLittleEndian<uint32_t>(at + 8);
  std::memcpy(hello.secret.data(), at + 12, hello.secret.size());
  return hello;
}

std::string EncodePinnedAnswer(const PinnedAnswer& answer) {
  if (answer.welcome) return absl::StrCat(Prefix(kCodeWelcome), answer.device_ring);
  return absl::StrCat(Prefix(kCodeRefused),
                      absl::string_view(answer.reason).substr(0, kMaxMessageBytes - kPrefixBytes));
}

absl::StatusOr<PinnedAnswer> DecodePinnedAnswer(absl::string_view bytes) {
  LC_ASSIGN_OR_RETURN(const uint16_t code, DecodePrefix(bytes));
  if (code != kCodeWelcome && code != kCodeRefused) {
    return absl::DataLossError(
        absl::StrCat("refuse the answer of a pinned_host channel: unknown code ", code));
  }
  PinnedAnswer answer{.welcome = code == kCodeWelcome, .reason = {}, .device_ring = {}};
  (answer.welcome ? answer.device_ring : answer.reason) = std::string(bytes.substr(kPrefixBytes));
  return answer;
}

absl::Status SendMessage(int socket, absl::string_view bytes, const std::vector<int>& descriptors) {
  iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t descriptor_bytes = descriptors.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptor_bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptor_bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptor_bytes);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return base::PosixError("send the handshake of a pinned_host channel", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SocketMessage>> ReceiveMessage(int socket) {
  std::array<char, kMaxMessageBytes> buffer;
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0) {
    const int error = errno;
    if (error == EAGAIN || error == EINTR) return std::nullopt;
    if (error == ECONNRESET) return SocketMessage{};
    return base::PosixError("receive the handshake of a pinned_host channel", error);
  }
  SocketMessage received;
  received.bytes.assign(buffer.data(), static_cast<size_t>(bytes));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      received.descriptors.emplace_back(fd);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::DataLossError("refuse the handshake of a pinned_host channel: it is too long");
  }
  return received;
}

}  // namespace layercake::transport
