#include "cli/foreground.h"

#include <signal.h>

#include <utility>

#include "base/status_macros.h"

namespace layercake::cli {

absl::StatusOr<std::unique_ptr<Foreground>> Foreground::Create() {
  std::unique_ptr<Foreground> foreground(new Foreground());
  LC_ASSIGN_OR_RETURN(foreground->loop_, base::EventLoop::Create(foreground->clock_));
  LC_ASSIGN_OR_RETURN(foreground->processes_, base::PosixProcessHost::Create(*foreground->loop_));

  signal(SIGPIPE, SIG_IGN);
  LC_ASSIGN_OR_RETURN(foreground->signals_, base::SignalWatch::Create({SIGINT, SIGTERM, SIGHUP}));
  Foreground* self = foreground.get();
  LC_RETURN_IF_ERROR(self->loop_->Watch(self->signals_->fd(), [self] { self->ReadSignals(); }));
  return foreground;
}

Foreground::~Foreground() {
  if (signals_ != nullptr) loop_->Unwatch(signals_->fd());
}

void Foreground::OnSignal(std::function<void(int)> on_signal) { on_signal_ = std::move(on_signal); }

void Foreground::ReadSignals() {
  for (const int number : signals_->Take()) {
    if (on_signal_) on_signal_(number);
  }
}

}  // namespace layercake::cli
