// How much memory this process could take without swapping or being killed for it.
//
// Thread rule: a function without state, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layercake::base {

// Where Linux says it; other paths in tests.
struct MemoryFiles {
  std::string meminfo = "/proc/meminfo";
  // A container sees its own group at the root of the hierarchy (cgroup v2).
  std::string control_group = "/sys/fs/cgroup";
};

// The smaller of what the machine has (MemAvailable) and what the control group's limit leaves,
// counting files that were read and are not in use as free, as both would give them up. nullopt
// where neither says.
std::optional<uint64_t> AvailableMemoryBytes(const MemoryFiles& files = {});

}  // namespace layercake::base
