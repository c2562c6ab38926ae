// Where the calling thread runs and where its new memory lies. Threads that it starts afterwards
// inherit both.
//
// Thread rule: each function speaks of the calling thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/numa_topology.h"

namespace layercake::base {

// Ascending.
absl::StatusOr<std::vector<int>> AllowedCpus();

// How many CPUs' time there is for this process: those of AllowedCpus, or fewer where its control
// group has a quota. `control_group`: a folder of cgroup v2; a container sees its own at the root.
absl::StatusOr<double> UsableCpus(const std::string& control_group = "/sys/fs/cgroup");

// Binds the thread to `cpus` (below kMaxCpus). InvalidArgument: the process may use none of them.
absl::Status RunOnCpus(absl::Span<const int> cpus);

// Prefers memory of `node` (below kMaxCpus); when it is full, others serve. A container may forbid
// this: PermissionDenied or Unimplemented. Pages that a bound thread touches first are near anyway.
absl::Status PreferMemoryOfNode(int node);

}  // namespace layercake::base
