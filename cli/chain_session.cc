#include "cli/chain_session.h"

#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/exit_code.h"
#include "cli/foreground.h"
#include "cli/load_progress.h"
#include "cli/local_chain.h"
#include "cli/model_path.h"

namespace layercake::cli {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "layercake: " << status.message() << "\n";
  return ExitCodeOf(status);
}

// One run of a command: a chain (or somebody else's server), the work on it, the way out.
class Session {
 public:
  Session(Foreground& foreground, const Environment& environment, ChainWork work)
      : foreground_(foreground),
        progress_(std::cerr, WantsDecoration(environment, isatty(STDERR_FILENO) == 1)),
        work_(std::move(work)) {
    foreground_.OnSignal([this](int signal_number) { OnSignal(signal_number); });
  }

  absl::Status StartChain(const ChainOptions& options) {
    LC_ASSIGN_OR_RETURN(const std::string worker, FindWorkerBinary());
    LC_ASSIGN_OR_RETURN(
        chain_,
        LocalChain::Start(options, worker, foreground_.loop(), foreground_.processes(),
                          {.on_status = [this](const v1::GetStatusResponse& s) { OnStatus(s); },
                           .on_ended = [this](const absl::Status& s) { OnChainEnded(s); }}));
    return absl::OkStatus();
  }

  absl::Status StartWork(const std::string& server, const TlsFiles& tls) {
    LC_ASSIGN_OR_RETURN(client_, InferenceClient::Create(server, tls));
    worker_thread_ = std::thread([this] {
      const int code = work_.run(*client_);
      // Refused only after the loop has ended, when nobody waits for the work any more.
      (void)foreground_.loop().Post([this, code] { OnWorkDone(code); });
    });
    return absl::OkStatus();
  }

  void OnServing(std::function<void(const std::string&)> on_serving) {
    on_serving_ = std::move(on_serving);
  }

  int Run() {
    foreground_.loop().Run();
    if (worker_thread_.joinable()) {
      StopWork();
      worker_thread_.join();
    }
    if (interrupted_) return kExitInterrupted;
    return exit_code_;
  }

 private:
  void OnSignal(int signal_number) {
    if (signal_number == SIGINT && !interrupted_ && !ending_ && worker_thread_.joinable() &&
        work_.interrupt && work_.interrupt()) {
      return;
    }
    interrupted_ = interrupted_ || signal_number == SIGINT;
    if (chain_ != nullptr) {
      if (ending_) {
        std::cerr << "layercake: ending at once\n";
      } else {
        std::cerr << "layercake: ending; once more ends at once\n";
      }
    }
    StopWork();
    End();
  }

  void StopWork() {
    if (client_ != nullptr) client_->CancelAll();
    if (work_.stop) work_.stop();
  }

  void End() {
    ending_ = true;
    if (chain_ != nullptr) {
      chain_->RequestShutdown();
    } else {
      foreground_.loop().Stop();
    }
  }

  void OnStatus(const v1::GetStatusResponse& status) {
    if (!ending_) progress_.Show(status);
    if (status.state() != v1::CHAIN_STATE_SERVING || serving_ || ending_) return;
    serving_ = true;
    if (on_serving_) on_serving_(chain_->client_address());
    if (!work_.run) return;
    const absl::Status started = StartWork(chain_->client_address(), {});
    if (!started.ok()) {
      exit_code_ = Fail(started);
      End();
    }
  }

  void OnWorkDone(int code) {
    exit_code_ = code;
    if (!ending_) End();
  }

  void OnChainEnded(const absl::Status& status) {
    if (!status.ok()) exit_code_ = Fail(status);
    ending_ = true;
    foreground_.loop().Stop();
  }

  Foreground& foreground_;
  LoadProgress progress_;
  ChainWork work_;
  std::function<void(const std::string&)> on_serving_;
  std::unique_ptr<LocalChain> chain_;
  std::unique_ptr<InferenceClient> client_;
  std::thread worker_thread_;
  bool serving_ = false;
  bool ending_ = false;
  bool interrupted_ = false;
  int exit_code_ = kExitOk;
};

}  // namespace

absl::StatusOr<ChainSessionOptions> MakeChainSession(const ServerFlags& server,
                                                     const ChainFlags& chain,
                                                     const std::string& model,
                                                     const Environment& environment,
                                                     int* exit_code) {
  ChainSessionOptions session;
  if (!server.server.empty()) {
    session.server = WithDefaultPort(server.server, kDefaultClientPort);
    session.tls = server.tls;
    return session;
  }
  *exit_code = kExitUsage;
  if (model.empty()) {
    return absl::InvalidArgumentError("name a MODEL, or a running server with --server");
  }
  *exit_code = kExitFailed;
  LC_ASSIGN_OR_RETURN(std::string path, ResolveModelPath(model, environment));
  *exit_code = kExitUsage;
  LC_ASSIGN_OR_RETURN(session.chain, MakeChainOptions(chain, std::move(path), UsableCores()));
  return session;
}

int RunOnChain(const ChainSessionOptions& options, const Environment& environment, ChainWork work) {
  auto foreground = Foreground::Create();
  if (!foreground.ok()) return Fail(foreground.status());
  Session session(**foreground, environment, std::move(work));
  const absl::Status started = options.server.empty()
                                   ? session.StartChain(options.chain)
                                   : session.StartWork(options.server, options.tls);
  return started.ok() ? session.Run() : Fail(started);
}

int ServeChain(const ChainOptions& options, const Environment& environment,
               std::function<void(const std::string&)> on_serving) {
  auto foreground = Foreground::Create();
  if (!foreground.ok()) return Fail(foreground.status());
  Session session(**foreground, environment, {});
  session.OnServing(std::move(on_serving));
  const absl::Status started = session.StartChain(options);
  return started.ok() ? session.Run() : Fail(started);
}

}  // namespace layercake::cli
