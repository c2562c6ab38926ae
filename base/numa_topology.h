// Which processors and which memory of this machine are near a PCI device.
//
// Reading sysfs and deciding are apart: ReadNumaFacts looks, ChooseNumaPlacement decides.
// Thread rule: functions without state, any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace layercake::base {

// Linux's own bound on processor numbers in an affinity mask (CPU_SETSIZE).
inline constexpr int kMaxCpus = 1024;

// "0-3,8" -> {0, 1, 2, 3, 8}; an empty text is no processor. InvalidArgument: no such list, or a
// number that is too large.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);
// The other way; `cpus` ascend.
std::string FormatCpuList(absl::Span<const int> cpus);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending; a node may have memory alone
};

struct NumaFacts {
  std::optional<int> device_node;  // nullopt: the machine does not say
  std::vector<NumaNode> nodes;     // those online, ascending; empty: the machine does not say
};

// `sysfs` is "/sys" but in tests. What is missing there or cannot be read is left out.
NumaFacts ReadNumaFacts(const std::string& sysfs, absl::string_view pci_bus_id);

struct NumaPlacement {
  int node = 0;
  std::vector<int> cpus;  // where threads may run; never empty
};

struct NumaChoice {
  std::optional<NumaPlacement> placement;
  // One line: "cuda:0 is on NUMA node 1: threads on CPUs 32-63", or why nothing is placed.
  std::string reason;
};

// `device` is for the reason. `allowed`: the processors that this process may use, ascending.
// Nothing is placed when the node is unknown, when there is one node only, or when the process may
// use no processor of the device's node.
NumaChoice ChooseNumaPlacement(absl::string_view device, const NumaFacts& facts,
                               absl::Span<const int> allowed);

}  // namespace layercake::base
