// Child processes that are objects of the simulation: started, killed and heard of like real ones.
//
// One thread: the simulation's.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "base/executor.h"
#include "base/process_host.h"

namespace layercake::simulation {

// What runs in a process. Destroyed when the process has ended, however it did.
class SimProgram {
 public:
  virtual ~SimProgram() = default;
  virtual void Start() = 0;
  virtual void OnSigterm() = 0;
};

class SimProcessHost final : public base::ProcessHost {
 public:
  // Makes the program of a command line. It calls `exit` with its code when it is over.
  using MakeProgram = std::function<std::unique_ptr<SimProgram>(
      const base::SpawnOptions& options, absl::AnyInvocable<void(int code)> exit)>;

  // `executor` outlives the host.
  SimProcessHost(base::Executor& executor, MakeProgram make_program)
      : executor_(executor), make_program_(std::move(make_program)) {}
  // Programs end where they stand; nobody hears of it.
  ~SimProcessHost() override { *alive_ = false; }

  absl::StatusOr<base::ProcessId> Spawn(base::SpawnOptions options, OnExit on_exit) override;
  // SIGKILL ends the program at once, SIGTERM is its own affair; the others are not simulated.
  absl::Status Kill(base::ProcessId id, int signal_number) override;
  int64_t pid(base::ProcessId id) const override;
  // Null when the process has ended.
  SimProgram* program(base::ProcessId id) const;

 private:
  struct Process {
    std::unique_ptr<SimProgram> program;
    OnExit on_exit;
  };
  void Post(base::Task task);
  void End(base::ProcessExit exit);

  base::Executor& executor_;
  const MakeProgram make_program_;
  std::map<base::ProcessId, Process> processes_;
  uint64_t next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace layercake::simulation
