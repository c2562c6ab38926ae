#include "cli/environment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

extern char** environ;

namespace layercake::cli {

Environment::Environment(std::map<std::string, std::string> variables)
    : variables_(std::move(variables)) {}

Environment Environment::FromProcess() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::Get(absl::string_view name) const {
  const auto found = variables_.find(std::string(name));
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::string Environment::GetOr(absl::string_view name, absl::string_view fallback) const {
  const std::optional<std::string> value = Get(name);
  return value ? *value : std::string(fallback);
}

std::string VariableOfFlag(absl::string_view flag) {
  const absl::string_view bare = absl::StripPrefix(flag, "--");
  return absl::StrCat("LAYERCAKE_", absl::AsciiStrToUpper(absl::StrReplaceAll(bare, {{"-", "_"}})));
}

bool IsInjectedByKubernetes(absl::string_view variable) {
  const std::string words = absl::StrCat(variable, "_");
  return absl::StartsWith(words, "LAYERCAKE_") &&
         (absl::StrContains(words, "_PORT_") || absl::StrContains(words, "_SERVICE_"));
}

absl::StatusOr<bool> ParseOnOff(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* on : {"1", "true", "on", "yes"}) {
    if (lower == on) return true;
  }
  for (const char* off : {"0", "false", "off", "no"}) {
    if (lower == off) return false;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is neither on (1, true, yes) nor off (0, false, no)"));
}

std::string CacheFolder(const Environment& environment) {
  const std::string xdg = environment.GetOr("XDG_CACHE_HOME", "");
  if (absl::StartsWith(xdg, "/")) return xdg;
  const std::string home = environment.GetOr("HOME", "");
  return home.empty() ? "" : absl::StrCat(home, "/.cache");
}

std::string HuggingFaceHubFolder(const Environment& environment) {
  if (const auto hub = environment.Get("HF_HUB_CACHE")) return *hub;
  if (const auto home = environment.Get("HF_HOME")) return absl::StrCat(*home, "/hub");
  const std::string cache = CacheFolder(environment);
  return cache.empty() ? "" : absl::StrCat(cache, "/huggingface/hub");
}

bool WantsDecoration(const Environment& environment, bool is_terminal) {
  return is_terminal && !environment.Get("NO_COLOR") && environment.GetOr("TERM", "dumb") != "dumb";
}

std::string LeaderAddress(const Environment& environment) {
  const auto leader = environment.Get("LWS_LEADER_ADDRESS");
  return leader ? WithDefaultPort(*leader, kDefaultWorkerPort) : "";
}

std::string WithDefaultPort(absl::string_view address, int port) {
  const std::string text(address);
  const auto colons = std::count(text.begin(), text.end(), ':');
  if (absl::StartsWith(text, "[")) {
    return absl::StrContains(text, "]:") ? text : absl::StrCat(text, ":", port);
  }
  if (colons > 1) return absl::StrCat("[", text, "]:", port);  // a bare IPv6 address
  return colons == 1 ? text : absl::StrCat(text, ":", port);
}

}  // namespace layercake::cli
