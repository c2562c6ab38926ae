// What the process's environment says, and which of it Layercake listens to.
//
// Every flag has a variable: --max-tokens is LAYERCAKE_MAX_TOKENS. Kubernetes injects variables for
// every Service of a namespace (a Service called "layercake" makes LAYERCAKE_PORT=tcp://10.0.0.1:80
// and LAYERCAKE_SERVICE_HOST): such names are never read, and no flag may have one.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace layercake::cli {

// A snapshot. Immutable; any thread may read.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables);
  static Environment FromProcess();

  // Empty variables count as unset, as everywhere in the XDG rules.
  std::optional<std::string> Get(absl::string_view name) const;
  std::string GetOr(absl::string_view name, absl::string_view fallback) const;

 private:
  std::map<std::string, std::string> variables_;
};

// "--max-tokens" -> "LAYERCAKE_MAX_TOKENS".
std::string VariableOfFlag(absl::string_view flag);

// True for LAYERCAKE_PORT, LAYERCAKE_X_PORT, LAYERCAKE_PORT_80_TCP, LAYERCAKE_SERVICE_HOST, ...
bool IsInjectedByKubernetes(absl::string_view variable);

// "1", "true", "on", "yes" and "0", "false", "off", "no", in any case. InvalidArgument otherwise.
absl::StatusOr<bool> ParseOnOff(absl::string_view text);

// ${XDG_CACHE_HOME:-$HOME/.cache}; relative values are ignored, as the XDG rules want. Empty when
// neither is set.
std::string CacheFolder(const Environment& environment);
// The Hugging Face hub's cache: HF_HUB_CACHE, else HF_HOME/hub, else CacheFolder/huggingface/hub.
std::string HuggingFaceHubFolder(const Environment& environment);

// Whether bars and cursor movement may be used on a descriptor: it is a terminal, TERM is not
// "dumb", and NO_COLOR is unset.
bool WantsDecoration(const Environment& environment, bool is_terminal);

inline constexpr int kDefaultClientPort = 9180;
inline constexpr int kDefaultWorkerPort = 9181;

// Where a worker finds its coordinator when neither flag nor LAYERCAKE_COORDINATOR says it: the
// leader of a Kubernetes LeaderWorkerSet (LWS_LEADER_ADDRESS, with the default port when it has
// none). Empty when there is none.
std::string LeaderAddress(const Environment& environment);

// "host" -> "host:port"; "[::1]" and "::1" -> "[::1]:port"; an address with a port stays.
std::string WithDefaultPort(absl::string_view address, int port);

}  // namespace layercake::cli
