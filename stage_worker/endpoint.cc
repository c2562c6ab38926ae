#include "stage_worker/endpoint.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace layercake::stage_worker {

v1::HostIdentity ToProto(const transport::EndpointFacts& facts, const std::string& host_name) {
  v1::HostIdentity host;
  host.set_host_id(facts.host.host_id);
  host.set_boot_id(facts.host.boot_id);
  host.set_host_name(host_name);
  host.set_pid(facts.host.pid);
  host.set_start_time_ticks(facts.host.start_ticks);
  // The parts that decide together what this process can share with another one. None of them
  // holds a '|'.
  host.set_ipc_domain(absl::StrCat(facts.host.user_id, "|", facts.host.pid_namespace, "|",
                                   facts.host.ipc_namespace, "|", facts.socket_scope));
  return host;
}

absl::StatusOr<transport::EndpointFacts> FromProto(const v1::HostIdentity& host, bool has_ucx,
                                                   bool on_cuda) {
  transport::EndpointFacts facts;
  facts.has_ucx = has_ucx;
  facts.on_cuda = on_cuda;
  facts.host.host_id = host.host_id();
  facts.host.boot_id = host.boot_id();
  facts.host.pid = host.pid();
  facts.host.start_ticks = host.start_time_ticks();
  if (host.ipc_domain().empty()) return facts;
  const std::vector<std::string> parts = absl::StrSplit(host.ipc_domain(), '|');
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &facts.host.user_id)) {
    return absl::DataLossError(absl::StrCat("ipc_domain \"", host.ipc_domain(), "\" of host \"",
                                            host.host_name(), "\" is not \"uid|pid|ipc|socket\""));
  }
  facts.host.pid_namespace = parts[1];
  facts.host.ipc_namespace = parts[2];
  facts.socket_scope = parts[3];
  return facts;
}

std::string DescribePeer(int stage, const std::string& host_name) {
  return host_name.empty() ? absl::StrCat("stage ", stage)
                           : absl::StrCat("stage ", stage, " (host ", host_name, ")");
}

}  // namespace layercake::stage_worker
