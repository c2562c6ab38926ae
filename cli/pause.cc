#include "cli/pause.h"

#include <memory>

#include "base/event_loop.h"
#include "base/status_macros.h"

namespace layercake::cli {

absl::Status Pause(const base::Clock& clock, absl::Duration duration) {
  LC_ASSIGN_OR_RETURN(const std::unique_ptr<base::EventLoop> loop, base::EventLoop::Create(clock));
  loop->At(clock.Now() + duration, [&loop] { loop->Stop(); });
  loop->Run();
  return absl::OkStatus();
}

}  // namespace layercake::cli
