#include "cli/local_chain.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "cli/exit_code.h"

namespace layercake::cli {
namespace {

// A coordinator whose worker died sees the closed Session itself and ends its requests with the
// reason; beyond this it is told to.
constexpr absl::Duration kCoordinatorNotices = absl::Seconds(2);
// Exits of workers that made the coordinator fail may arrive after its own end: a killed worker's
// device memory is given back first (0.4 s for 30 GB). The others end by themselves meanwhile.
constexpr absl::Duration kExitsArrive = absl::Seconds(1);
// For workers that were told to end by the coordinator; then SIGTERM, then SIGKILL.
constexpr absl::Duration kWorkersEndByThemselves = absl::Seconds(3);
constexpr absl::Duration kWorkersObey = absl::Milliseconds(1500);
// Beyond its own grace, for a coordinator that was told to end.
constexpr absl::Duration kCoordinatorObeys = absl::Seconds(10);
// For the kernel to end a killed worker: the driver gives back its device's memory meanwhile.
constexpr absl::Duration kKilledWorkersGo = absl::Seconds(30);

[[noreturn]] void EndProcess(const std::string& reason) {
  std::fputs(absl::StrCat("layercake: ", reason, "; ending without it\n").c_str(), stderr);
  std::_Exit(kExitFailed);
}

}  // namespace

absl::StatusOr<std::string> FindWorkerBinary() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return base::PosixError("read the link /proc/self/exe", errno);
  const std::string self(path.data(), static_cast<size_t>(size));
  const std::string worker = absl::StrCat(self.substr(0, self.rfind('/')), "/layercake-worker");
  if (access(worker.c_str(), X_OK) != 0) {
    return base::PosixError(absl::StrCat("find ", worker, ", which must lie beside ", self), errno);
  }
  return worker;
}

absl::StatusOr<std::unique_ptr<LocalChain>> LocalChain::Start(const ChainOptions& options,
                                                              const std::string& worker_binary,
                                                              base::EventLoop& loop,
                                                              base::ProcessHost& processes,
                                                              Callbacks callbacks) {
  std::unique_ptr<LocalChain> chain(new LocalChain(loop, processes, std::move(callbacks)));
  chain->shutdown_grace_ = options.coordinator.shutdown_grace;
  LC_ASSIGN_OR_RETURN(chain->coordinator_,
                      coordinator::CreateCoordinatorProcess(options.coordinator));
  // A failure here leaves children to the ProcessHost's destructor, which kills them.
  LC_RETURN_IF_ERROR(chain->StartWorkers(options, worker_binary));
  chain->StartCoordinatorThread();
  return chain;
}

LocalChain::LocalChain(base::EventLoop& loop, base::ProcessHost& processes, Callbacks callbacks)
    : loop_(loop), processes_(processes), callbacks_(std::move(callbacks)) {}

LocalChain::~LocalChain() {
  LC_CHECK(finished_ || !coordinator_thread_.joinable(), "a chain was dropped before it had ended");
}

absl::Status LocalChain::StartWorkers(const ChainOptions& options,
                                      const std::string& worker_binary) {
  for (size_t i = 0; i < options.devices.size(); ++i) {
    base::SpawnOptions spawn;
    spawn.argv = {worker_binary,
                  "--coordinator",
                  coordinator_->worker_address(),
                  "--stage",
                  absl::StrCat(i),
                  "--device",
                  options.devices[i],
                  "--threads",
                  absl::StrCat(options.threads),
                  "--log-level",
                  options.log_level,
                  "--parent-pipe-fd",
                  absl::StrCat(base::kParentPipeFd)};
    if (options.deterministic) spawn.argv.push_back("--deterministic");
    LC_ASSIGN_OR_RETURN(
        const base::ProcessId process,
        processes_.Spawn(std::move(spawn),
                         [this, i](const base::ProcessExit& exit) { OnWorkerExit(i, exit); }));
    workers_.push_back({.stage = static_cast<int>(i), .process = process});
  }
  return absl::OkStatus();
}

void LocalChain::StartCoordinatorThread() {
  coordinator_thread_ = std::thread([this] {
    absl::Status status = coordinator_->Run([this](const v1::GetStatusResponse& chain_status) {
      // A full queue costs a frame of the progress bar, no more.
      (void)loop_.Post([this, chain_status] {
        if (!finished_ && callbacks_.on_status) callbacks_.on_status(chain_status);
      });
    });
    LC_CHECK(loop_.Post([this, status] { OnCoordinatorEnded(status); }),
             "the event loop ended before the chain");
  });
}

void LocalChain::RequestShutdown() {
  if (finished_) return;
  coordinator_->RequestShutdown();
  if (shutdown_requested_) {
    StopWorkers(/*at_once=*/true);
    return;
  }
  shutdown_requested_ = true;
  EndCoordinatorBy(After(shutdown_grace_ + kCoordinatorObeys));
}

void LocalChain::OnWorkerExit(size_t index, const base::ProcessExit& exit) {
  workers_[index].ended = true;
  // Workers that the coordinator told to end do so with exit code 0.
  const bool bad = exit.signaled || exit.code != 0;
  if (!stopping_workers_ && failure_.ok() && (bad || !shutdown_requested_)) {
    const std::string message =
        absl::StrCat("stage ", index, " (pid ", exit.pid, ") ended: ", base::DescribeExit(exit));
    failure_ = absl::UnavailableError(message);
    crashed_ = bad;
    if (!coordinator_ended_) {
      shutdown_requested_ = true;  // what ends from here on is the consequence
      loop_.At(After(kCoordinatorNotices), [this] {
        if (coordinator_ended_) return;
        coordinator_->RequestShutdown();
        coordinator_->RequestShutdown();
        EndCoordinatorBy(After(kCoordinatorObeys));
      });
    }
  }
  FinishWhenAllGone();
}

void LocalChain::OnCoordinatorEnded(absl::Status status) {
  coordinator_ended_ = true;
  coordinator_thread_.join();
  coordinator_status_ = std::move(status);
  const bool failed = !coordinator_status_.ok() || !failure_.ok();
  loop_.At(After(failed ? kExitsArrive : kWorkersEndByThemselves),
           [this] { StopWorkers(/*at_once=*/false); });
  FinishWhenAllGone();
}

// A coordinator that does not end by then is stuck, and so would be the join of its thread: the
// process ends without it, once its children are gone.
void LocalChain::EndCoordinatorBy(base::Instant when) {
  loop_.At(when, [this] {
    if (coordinator_ended_) return;
    coordinator_stuck_ = true;
    StopWorkers(/*at_once=*/true);
    FinishWhenAllGone();
  });
}

void LocalChain::StopWorkers(bool at_once) {
  if (finished_) return;
  stopping_workers_ = true;
  SignalWorkers(at_once ? SIGKILL : SIGTERM);
  if (!at_once) {
    loop_.At(After(kWorkersObey), [this] { StopWorkers(/*at_once=*/true); });
    return;
  }
  loop_.At(After(kKilledWorkersGo), [this] {
    for (const Worker& worker : workers_) {
      if (worker.ended) continue;
      EndProcess(absl::StrCat("stage ", worker.stage, " (pid ", processes_.pid(worker.process),
                              ") is still there ", absl::FormatDuration(kKilledWorkersGo),
                              " after it was killed"));
    }
  });
}

void LocalChain::SignalWorkers(int signal_number) {
  for (const Worker& worker : workers_) {
    // NotFound: it has just ended, and its exit is on its way here.
    if (!worker.ended) processes_.Kill(worker.process, signal_number).IgnoreError();
  }
}

void LocalChain::FinishWhenAllGone() {
  const bool workers_gone =
      std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ended; });
  if (workers_gone && coordinator_stuck_ && !coordinator_ended_) {
    EndProcess("the coordinator did not end within its deadline");
  }
  if (!workers_gone || !coordinator_ended_ || finished_) return;
  finished_ = true;
  // A worker's crash is the reason, what the coordinator says of it the consequence. A worker that
  // ended in order was told to, and the coordinator knows why.
  const bool coordinator_knows = !coordinator_status_.ok() && !crashed_;
  callbacks_.on_ended(failure_.ok() || coordinator_knows ? coordinator_status_ : failure_);
}

}  // namespace layercake::cli
