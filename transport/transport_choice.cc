#include "transport/transport_choice.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/posix_error.h"
#include "base/status_macros.h"

namespace layercake::transport {
namespace {

// Why the ends cannot meet at a Unix socket, as `kind` needs it; OK when they can.
absl::Status CheckSocket(TransportKind kind, const EndpointFacts& upstream,
                         const EndpointFacts& downstream) {
  const absl::string_view name = TransportKindName(kind);
  if (!SameHost(upstream.host, downstream.host)) {
    return absl::FailedPreconditionError(absl::StrCat(name, " needs both ends on one host"));
  }
  if (upstream.host.user_id != downstream.host.user_id) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " needs both ends to run as one user, not as ", upstream.host.user_id,
                     " and ", downstream.host.user_id));
  }
  if (upstream.socket_scope.empty() || upstream.socket_scope != downstream.socket_scope) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " needs a socket folder that both ends see (share one between containers)"));
  }
  return absl::OkStatus();
}

// Why `kind` cannot work between these ends; OK when it can.
absl::Status CheckPossible(TransportKind kind, const EndpointFacts& upstream,
                           const EndpointFacts& downstream) {
  switch (kind) {
    case TransportKind::kLocal:
      if (SameProcess(upstream.host, downstream.host)) return absl::OkStatus();
      return absl::FailedPreconditionError("local needs both ends in one process");
    case TransportKind::kPinnedHost:
      return CheckSocket(kind, upstream, downstream);
    case TransportKind::kUcx:
      if (upstream.has_ucx && downstream.has_ucx) return absl::OkStatus();
      return absl::FailedPreconditionError("ucx did not start on both ends");
    case TransportKind::kCudaIpc:
      if (!upstream.on_cuda || !downstream.on_cuda) {
        return absl::FailedPreconditionError("cuda_ipc needs both stages on CUDA devices");
      }
      LC_RETURN_IF_ERROR(CheckSocket(kind, upstream, downstream));
      if (upstream.host.pid_namespace != downstream.host.pid_namespace ||
          upstream.host.ipc_namespace != downstream.host.ipc_namespace) {
        return absl::FailedPreconditionError(
            "cuda_ipc needs both ends in one PID and one IPC namespace");
      }
      return absl::OkStatus();
  }
  return absl::InternalError("unknown kind of channel");
}

std::string Names(const std::vector<TransportKind>& kinds) {
  return absl::StrJoin(kinds, ", then ", [](std::string* out, TransportKind kind) {
    absl::StrAppend(out, TransportKindName(kind));
  });
}

}  // namespace

absl::StatusOr<TransportRequest> ParseTransportRequest(absl::string_view text) {
  TransportRequest request;
  if (text == "auto") return request;
  absl::string_view name = text;
  request.required = absl::ConsumePrefix(&name, "require:");
  const absl::StatusOr<TransportKind> kind = ParseTransportKind(name);
  if (!kind.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown transport \"", text,
                     "\"; say auto, local, pinned_host, ucx or cuda_ipc, or require: and one of "
                     "these"));
  }
  request.kind = *kind;
  return request;
}

absl::StatusOr<TransportChoice> ChooseTransport(const TransportRequest& request,
                                                const EndpointFacts& upstream,
                                                const EndpointFacts& downstream) {
  // The cheapest first.
  constexpr std::array<TransportKind, 4> kOrder = {TransportKind::kLocal, TransportKind::kCudaIpc,
                                                   TransportKind::kPinnedHost, TransportKind::kUcx};
  TransportChoice choice;
  std::vector<std::string> refusals;
  for (const TransportKind kind : kOrder) {
    const absl::Status possible = CheckPossible(kind, upstream, downstream);
    if (request.kind == kind && !possible.ok() && request.required) return possible;
    if (possible.ok()) {
      choice.kinds.push_back(kind);
    } else if (request.kind == kind || (!request.kind && kind != TransportKind::kLocal)) {
      refusals.emplace_back(possible.message());
    }
  }
  if (choice.kinds.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no channel can join the two stages: ", absl::StrJoin(refusals, "; ")));
  }
  const auto wanted = request.kind
                          ? std::find(choice.kinds.begin(), choice.kinds.end(), *request.kind)
                          : choice.kinds.end();
  if (wanted != choice.kinds.end()) {
    std::rotate(choice.kinds.begin(), wanted, wanted + 1);
    if (request.required) choice.kinds.resize(1);
  }
  const bool granted = wanted != choice.kinds.end() || !request.kind;
  choice.reason = absl::StrCat(
      Names(choice.kinds), ": ",
      request.kind ? absl::StrCat(TransportKindName(*request.kind),
                                  request.required ? " is required" : " was asked for")
                   : std::string(SameHost(upstream.host, downstream.host) ? "both ends on one host"
                                                                          : "ends on two hosts"));
  if (!refusals.empty()) {
    absl::StrAppend(&choice.reason, granted ? "; " : " but ", absl::StrJoin(refusals, "; "));
  }
  return choice;
}

absl::StatusOr<std::string> ReadSocketScope(const std::string& socket_folder) {
  struct stat found {};
  if (stat(socket_folder.c_str(), &found) != 0) {
    return base::PosixError(absl::StrCat("look at the socket folder ", socket_folder), errno);
  }
  return absl::StrCat(found.st_dev, ":", found.st_ino);
}

}  // namespace layercake::transport
