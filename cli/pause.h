// A wait of the thread that calls it, for commands that ask something again and again.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace layercake::cli {

// Any thread. Fails when the machine has no descriptors left, and has not waited then.
absl::Status Pause(const base::Clock& clock, absl::Duration duration);

}  // namespace layercake::cli
