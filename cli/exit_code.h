// What the programs' exit codes mean. Scripts rely on them.
#pragma once

#include "absl/status/status.h"

namespace layercake::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDoctorFinding = 3;
inline constexpr int kExitDoesNotFit = 4;
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

// Of a program that ended with `status`, once its command line was understood.
inline int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  return absl::IsResourceExhausted(status) ? kExitDoesNotFit : kExitFailed;
}

}  // namespace layercake::cli
