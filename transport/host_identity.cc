#include "transport/host_identity.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/posix_error.h"
#include "base/status_macros.h"

namespace layercake::transport {
namespace {

absl::StatusOr<std::string> ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    return absl::NotFoundError(absl::StrCat("read ", path, " to tell this host: it is not there"));
  }
  return std::string(absl::StripAsciiWhitespace(line));
}

absl::StatusOr<std::string> ReadLink(const std::string& path) {
  std::array<char, 256> target;
  const ssize_t bytes = readlink(path.c_str(), target.data(), target.size());
  if (bytes < 0) return base::PosixError(absl::StrCat("read the link ", path), errno);
  return std::string(target.data(), static_cast<size_t>(bytes));
}

std::string HostId() {
  const absl::StatusOr<std::string> machine_id = ReadLine("/etc/machine-id");
  if (machine_id.ok() && !machine_id->empty()) return *machine_id;
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "";
}

}  // namespace

absl::StatusOr<HostIdentity> ReadHostIdentity() {
  HostIdentity identity;
  identity.host_id = HostId();
  LC_ASSIGN_OR_RETURN(identity.boot_id, ReadLine("/proc/sys/kernel/random/boot_id"));
  LC_ASSIGN_OR_RETURN(identity.pid_namespace, ReadLink("/proc/self/ns/pid"));
  LC_ASSIGN_OR_RETURN(identity.ipc_namespace, ReadLink("/proc/self/ns/ipc"));
  LC_ASSIGN_OR_RETURN(const std::string stat, ReadLine("/proc/self/stat"));
  LC_ASSIGN_OR_RETURN(identity.start_ticks, ParseStartTicks(stat));
  identity.user_id = geteuid();
  identity.pid = getpid();
  return identity;
}

bool SameHost(const HostIdentity& a, const HostIdentity& b) {
  return !a.boot_id.empty() && a.boot_id == b.boot_id;
}

bool SameProcess(const HostIdentity& a, const HostIdentity& b) {
  return SameHost(a, b) && a.pid_namespace == b.pid_namespace && a.pid == b.pid &&
         a.start_ticks == b.start_ticks;
}

absl::StatusOr<uint64_t> ParseStartTicks(absl::string_view stat_line) {
  // "pid (name) state ppid ...": the name ends at the last parenthesis.
  const size_t name_end = stat_line.rfind(')');
  constexpr size_t kStartTime = 22 - 3;  // fields count from 1, and two come before the state
  if (name_end != absl::string_view::npos) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(stat_line.substr(name_end + 1), ' ', absl::SkipEmpty());
    uint64_t ticks = 0;
    if (fields.size() > kStartTime && absl::SimpleAtoi(fields[kStartTime], &ticks)) return ticks;
  }
  return absl::DataLossError(
      absl::StrCat("a /proc/<pid>/stat line has another shape: \"", stat_line.substr(0, 80), "\""));
}

}  // namespace layercake::transport
