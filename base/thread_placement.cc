#include "base/thread_placement.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"

namespace layercake::base {

static_assert(kMaxCpus == CPU_SETSIZE);

absl::StatusOr<std::vector<int>> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return PosixError("read the CPUs that this thread may use", errno);
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

absl::StatusOr<double> UsableCpus(const std::string& control_group) {
  LC_ASSIGN_OR_RETURN(const std::vector<int> allowed, AllowedCpus());
  const auto cpus = static_cast<double>(allowed.size());
  // Microseconds of each period; "max" for the first says that there is no quota.
  std::ifstream file(control_group + "/cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return cpus;
  return std::min(cpus, quota / period);
}

absl::Status RunOnCpus(absl::Span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return PosixError(absl::StrCat("run on CPUs ", FormatCpuList(cpus)), errno);
}

absl::Status PreferMemoryOfNode(int node) {
  constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, kMaxCpus / kWordBits> mask{};
  const auto bit = static_cast<size_t>(node);
  mask[bit / kWordBits] = 1ul << (bit % kWordBits);
  // The kernel counts one bit less than it is told.
  if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kMaxCpus + 1) == 0) {
    return absl::OkStatus();
  }
  return PosixError(absl::StrCat("prefer memory of NUMA node ", node), errno);
}

}  // namespace layercake::base
