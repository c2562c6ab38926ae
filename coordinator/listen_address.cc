#include "coordinator/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/posix_error.h"
#include "base/unique_fd.h"

namespace layercake::coordinator {
namespace {

absl::Status BadAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on \"", text, "\": ", why,
                   "; give a numeric address and a port, such as 127.0.0.1:50051 or [::1]:0"));
}

}  // namespace

std::string ListenAddress::ToString() const {
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(text, "it has no port");
  absl::string_view host = text.substr(0, colon);
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  ListenAddress address;
  const absl::string_view port = text.substr(colon + 1);
  // SimpleAtoi also takes signs and spaces.
  if (port.empty() || port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return BadAddress(text, "its port is not a number from 0 to 65535");
  }
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  in6_addr v6{};
  in_addr v4{};
  if (brackets && inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) {
    address.ipv6 = true;
    address.loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    // ::ffff:127.0.0.1 is loopback too.
    if (IN6_IS_ADDR_V4MAPPED(&v6)) address.loopback = v6.s6_addr[12] == 127;
    return address;
  }
  if (!brackets && inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    address.loopback = (ntohl(v4.s_addr) >> 24) == 127;
    return address;
  }
  return BadAddress(text, "its host is neither a numeric address nor localhost");
}

absl::Status TryBind(const ListenAddress& address) {
  const std::string attempt = absl::StrCat("listen on ", address.ToString());
  const base::UniqueFd socket_fd(
      socket(address.ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) return base::PosixError(attempt, errno);
  // As gRPC does: connections that linger from an earlier server are no hindrance.
  const int on = 1;
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage storage{};
  socklen_t length = 0;
  const auto port = htons(static_cast<uint16_t>(address.port));
  if (address.ipv6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = port;
    inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
    length = sizeof v6;
    std::memcpy(&storage, &v6, sizeof v6);
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = port;
    inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
    length = sizeof v4;
    std::memcpy(&storage, &v4, sizeof v4);
  }
  if (bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 ||
      listen(socket_fd.get(), 1) != 0) {
    if (errno == EADDRINUSE) {
      return absl::FailedPreconditionError(
          absl::StrCat(attempt, ": port ", address.port,
                       " is in use, perhaps by another coordinator; stop that one or choose "
                       "another port (0 finds a free one)"));
    }
    return base::PosixError(attempt, errno);
  }
  return absl::OkStatus();
}

}  // namespace layercake::coordinator
