#include "simulation/sim_process_host.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace layercake::simulation {

void SimProcessHost::Post(base::Task task) {
  const bool posted = executor_.Post([alive = alive_, task = std::move(task)]() mutable {
    if (*alive) task();
  });
  LC_CHECK(posted, "the simulation's executor is full");
}

absl::StatusOr<base::ProcessId> SimProcessHost::Spawn(base::SpawnOptions options, OnExit on_exit) {
  const auto id = static_cast<base::ProcessId>(next_id_++);
  Process& process = processes_[id];
  process.on_exit = std::move(on_exit);
  process.program = make_program_(
      options, [this, id](int code) { Post([this, id, code] { End({.id = id, .code = code}); }); });
  process.program->Start();
  return id;
}

absl::Status SimProcessHost::Kill(base::ProcessId id, int signal_number) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return absl::NotFoundError("the process has ended");
  if (signal_number == SIGTERM) {
    found->second.program->OnSigterm();
    return absl::OkStatus();
  }
  if (signal_number != SIGKILL) {
    return absl::UnimplementedError(absl::StrCat("signal ", signal_number, " is not simulated"));
  }
  Post([this, id] { End({.id = id, .signaled = true, .code = SIGKILL}); });
  return absl::OkStatus();
}

void SimProcessHost::End(base::ProcessExit exit) {
  const auto found = processes_.find(exit.id);
  if (found == processes_.end()) return;  // killed and ended by itself at once
  exit.pid = pid(exit.id);
  Process process = std::move(found->second);
  processes_.erase(found);
  process.program.reset();
  process.on_exit(exit);
}

int64_t SimProcessHost::pid(base::ProcessId id) const {
  return processes_.contains(id) ? static_cast<int64_t>(id) : 0;
}

SimProgram* SimProcessHost::program(base::ProcessId id) const {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : found->second.program.get();
}

}  // namespace layercake::simulation
