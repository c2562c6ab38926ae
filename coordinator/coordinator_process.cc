#include "coordinator/coordinator_process.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/event_loop.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "coordinator/control_service.h"
#include "coordinator/engine_impl.h"
#include "coordinator/inference_service.h"
#include "coordinator/request_preparer.h"
#include "coordinator/sampling_rules.h"
#include "coordinator/served_model.h"
#include "spdlog/spdlog.h"

namespace layercake::coordinator {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);
// Streams have had their last event by then; this is for the network to take it.
constexpr absl::Duration kServerGrace = absl::Seconds(2);

class Process final : public CoordinatorProcess {
 public:
  explicit Process(CoordinatorProcessOptions options)
      : options_(std::move(options)),
        engine_random_(base::EntropySeed()),
        request_random_(base::EntropySeed()) {}

  ~Process() override { servers_.reset(); }  // no call may reach what goes next

  absl::Status Create() {
    // The ports first: a second server on one fails before anything is read.
    LC_ASSIGN_OR_RETURN(servers_, GrpcServers::Start(options_.server, inference_, control_));
    for (const std::string& warning : servers_->warnings()) spdlog::warn("{}", warning);
    LC_ASSIGN_OR_RETURN(model_, OpenServedModel(options_));
    for (const std::string& warning : model_->warnings) spdlog::warn("{}", warning);
    LC_ASSIGN_OR_RETURN(loop_, base::EventLoop::Create(clock_));
    engine_ = std::make_unique<EngineImpl>(
        MakeEngineOptions(options_, *model_, base::EntropySeed() >> 1), *model_->tokenizer, clock_,
        *loop_, *loop_, engine_random_,
        EngineImpl::Events{.on_changed = [this] { Observe(); },
                           .on_ready = [this](bool ready) { servers_->SetServing(ready); },
                           .on_stopped =
                               [this](absl::Status status) {
                                 outcome_ = std::move(status);
                                 loop_->Stop();
                               }});
    RequestPreparerOptions preparer;
    preparer.context_tokens = model_->plan.context_tokens;
    preparer.max_output_tokens = options_.max_output_tokens;
    LC_ASSIGN_OR_RETURN(preparer.sampling_defaults, SamplingDefaults(model_->files->metadata()));
    preparer.model = DescribeModel(*model_);
    preparer_ = std::make_unique<RequestPreparer>(
        *model_->tokenizer, model_->chat_template ? &*model_->chat_template : nullptr, clock_,
        request_random_, std::move(preparer));
    return absl::OkStatus();
  }

  std::string client_address() const override { return servers_->client_address(); }
  std::string worker_address() const override { return servers_->worker_address(); }

  absl::Status Run(StatusObserver observer) override {
    observer_ = std::move(observer);
    engine_->Start();
    inference_.Serve(*engine_, *preparer_);
    control_.Serve(*engine_, *loop_, *model_->files);
    loop_->Run();
    servers_->Shutdown(kServerGrace);
    return outcome_;
  }

  void RequestShutdown() override {
    // Refused only when the loop has ended already.
    std::ignore = loop_->Post([this] { engine_->Drain(options_.shutdown_grace); });
  }

 private:
  // Progress comes often; people and terminals do not need all of it.
  void Observe() {
    if (!observer_) return;
    const base::Instant now = clock_.Now();
    const v1::GetStatusResponse status = engine_->Status();
    if (status.state() == observed_state_ && now - observed_at_ < kProgressInterval) return;
    observed_state_ = status.state();
    observed_at_ = now;
    observer_(status);
  }

  const CoordinatorProcessOptions options_;
  const base::SystemClock clock_;
  base::SeededRandom engine_random_;   // decision thread
  base::SeededRandom request_random_;  // under the preparer's lock
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<EngineImpl> engine_;
  std::unique_ptr<RequestPreparer> preparer_;
  InferenceService inference_;
  ControlService control_;
  std::unique_ptr<GrpcServers> servers_;
  StatusObserver observer_;
  v1::ChainState observed_state_ = v1::CHAIN_STATE_UNSPECIFIED;
  base::Instant observed_at_;
  absl::Status outcome_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CreateCoordinatorProcess(
    CoordinatorProcessOptions options) {
  auto process = std::make_unique<Process>(std::move(options));
  LC_RETURN_IF_ERROR(process->Create());
  return process;
}

}  // namespace layercake::coordinator
