#include "cli/foreground.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <utility>

#include "base/posix_error.h"
#include "base/status_macros.h"

namespace layercake::cli {

absl::StatusOr<std::unique_ptr<Foreground>> Foreground::Create() {
  std::unique_ptr<Foreground> foreground(new Foreground());
  LC_ASSIGN_OR_RETURN(foreground->loop_, base::EventLoop::Create(foreground->clock_));
  LC_ASSIGN_OR_RETURN(foreground->processes_, base::PosixProcessHost::Create(*foreground->loop_));

  signal(SIGPIPE, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched, number);
  const int masked = pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  if (masked != 0) return base::PosixError("block signals", masked);
  foreground->signals_.Reset(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!foreground->signals_.valid()) return base::PosixError("create a signalfd", errno);
  Foreground* self = foreground.get();
  LC_RETURN_IF_ERROR(self->loop_->Watch(self->signals_.get(), [self] { self->ReadSignals(); }));
  return foreground;
}

Foreground::~Foreground() {
  if (signals_.valid()) loop_->Unwatch(signals_.get());
}

void Foreground::OnSignal(std::function<void(int)> on_signal) { on_signal_ = std::move(on_signal); }

void Foreground::ReadSignals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (on_signal_) on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace layercake::cli
