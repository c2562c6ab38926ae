// Who a process is: on which host, since which boot, in which namespaces, started when. A process
// is never known by its pid alone, which is reused and differs between PID namespaces.
//
// Thread rule: values and pure functions; ReadHostIdentity reads /proc and /etc.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace layercake::transport {

struct HostIdentity {
  std::string host_id;        // /etc/machine-id, else the host's name
  std::string boot_id;        // random per boot of the kernel, the same in all its containers
  std::string pid_namespace;  // "pid:[4026531836]"
  std::string ipc_namespace;  // "ipc:[4026531839]"
  uint32_t user_id = 0;
  int64_t pid = 0;
  uint64_t start_ticks = 0;  // clock ticks after boot
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

// NotFound or Unavailable, naming the file, when /proc is not there.
absl::StatusOr<HostIdentity> ReadHostIdentity();

// The boot id decides: machine ids are copied with disk images, and containers have their own.
bool SameHost(const HostIdentity& a, const HostIdentity& b);
bool SameProcess(const HostIdentity& a, const HostIdentity& b);

// Field 22 of /proc/<pid>/stat. DataLoss when the line has another shape; the program's name in it
// may hold blanks and parentheses.
absl::StatusOr<uint64_t> ParseStartTicks(absl::string_view stat_line);

}  // namespace layercake::transport
