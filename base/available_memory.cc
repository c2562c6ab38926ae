#include "base/available_memory.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/string_view.h"

namespace layercake::base {
namespace {

// The number behind `key`, or the file's first one for an empty key. "max" is none.
std::optional<uint64_t> NumberIn(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  while (!key.empty() && word != key) {
    if (!(file >> word)) return std::nullopt;
  }
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<uint64_t> LeftByControlGroup(const std::string& folder) {
  const auto limit = NumberIn(folder + "/memory.max", "");
  const auto used = NumberIn(folder + "/memory.current", "");
  if (!limit || !used) return std::nullopt;
  const uint64_t idle_files = NumberIn(folder + "/memory.stat", "inactive_file").value_or(0);
  const uint64_t held = *used - std::min(*used, idle_files);
  return *limit - std::min(*limit, held);
}

}  // namespace

std::optional<uint64_t> AvailableMemoryBytes(const MemoryFiles& files) {
  std::optional<uint64_t> available = NumberIn(files.meminfo, "MemAvailable:");
  if (available) *available *= 1024;  // it is written in KiB
  const std::optional<uint64_t> group = LeftByControlGroup(files.control_group);
  if (!available || !group) return available ? available : group;
  return std::min(*available, *group);
}

}  // namespace layercake::base
