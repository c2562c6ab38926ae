#include "simulation/sim_worker.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/model_config.h"
#include "stage_worker/stage_limits.h"

namespace layercake::simulation {
namespace {

// Every worker of a simulation is one process as far as channels are concerned.
transport::EndpointFacts SimFacts() {
  transport::EndpointFacts facts;
  facts.host.host_id = "sim";
  facts.host.boot_id = "sim";
  facts.host.pid_namespace = "sim";
  facts.host.ipc_namespace = "sim";
  facts.host.pid = 1;
  facts.host.start_ticks = 1;
  facts.has_ucx = false;
  return facts;
}

// A layer for each stage.
model::ModelConfig SimModel(int stages) {
  model::ModelConfig config;
  config.n_layers = static_cast<uint32_t>(stages);
  config.hidden_size = kSimHidden;
  config.vocab_size = static_cast<uint32_t>(kSimVocabulary);
  return config;
}

// Shows what passes by on its way.
class ObservedLink final : public WorkerLink {
 public:
  ObservedLink(std::unique_ptr<WorkerLink> link, const SimWorkerContext& context)
      : link_(std::move(link)), on_heard_(context.on_heard), on_said_(context.on_said) {}

  void Start(Callbacks callbacks) override {
    on_message_ = std::move(callbacks.on_message);
    callbacks.on_message = [this](v1::ToWorker message) {
      on_heard_(message);
      on_message_(std::move(message));
    };
    link_->Start(std::move(callbacks));
  }
  absl::Status Send(const v1::FromWorker& message) override {
    on_said_(message);
    return link_->Send(message);
  }
  void Close(absl::Status reason) override { link_->Close(std::move(reason)); }

 private:
  const std::unique_ptr<WorkerLink> link_;
  const std::function<void(const v1::ToWorker&)> on_heard_;
  const std::function<void(const v1::FromWorker&)> on_said_;
  absl::AnyInvocable<void(v1::ToWorker)> on_message_;
};

// The weights come in two halves.
class SimStageMaker final : public stage_worker::StageMaker {
 public:
  SimStageMaker(const SimWorkerOptions& options, const SimWorkerContext& context, SimDevice& device,
                const v1::Assignment& assignment, Callbacks callbacks)
      : options_(options),
        clock_(*context.clock),
        timers_(*context.timers),
        device_(device),
        assignment_(assignment),
        callbacks_(std::move(callbacks)) {}
  ~SimStageMaker() override { Stop(); }

  absl::Status Start() override {
    After(options_.load_time / 2, [this] {
      After(options_.load_time / 2, [this] { Finish(); });
      callbacks_.on_progress(1, 2);
    });
    return absl::OkStatus();
  }
  void Stop() override {
    if (timer_ != base::TimerId::kNone) timers_.Cancel(std::exchange(timer_, base::TimerId::kNone));
  }
  bool fetching() const override { return false; }
  bool making_stage() const override { return false; }

 private:
  void After(absl::Duration time, base::Task then) {
    timer_ = timers_.At(clock_.Now() + time, [this, then = std::move(then)]() mutable {
      timer_ = base::TimerId::kNone;
      then();
    });
  }
  void Finish() {
    auto limits = stage_worker::LimitsForModel(assignment_, SimModel(assignment_.stage_count()));
    if (!limits.ok()) {
      callbacks_.on_done(limits.status());
      return;
    }
    stage_worker::MadeStage made;
    made.limits = *std::move(limits);
    const uint64_t block_bytes =
        sizeof(uint64_t) * static_cast<uint64_t>(made.limits.kv_block_tokens);
    made.host_kv_bytes = block_bytes * static_cast<uint64_t>(made.limits.host_kv_blocks);
    if (options_.cost.per_copy > 0) {
      made.host_copy_gigabytes_per_second =
          static_cast<double>(block_bytes) / options_.cost.per_copy / 1e9;
    }
    made.stage = std::make_unique<DigestStage>(device_, made.limits, options_.cost, options_.reads);
    callbacks_.on_done(std::move(made));
  }

  const SimWorkerOptions options_;
  const base::Clock& clock_;
  base::Timers& timers_;
  SimDevice& device_;
  const v1::Assignment assignment_;
  Callbacks callbacks_;
  base::TimerId timer_ = base::TimerId::kNone;
};

stage_worker::WorkerOptions MakeOptions(int stage) {
  stage_worker::WorkerOptions options;
  options.worker_id = absl::StrCat("sim-", stage);
  options.coordinator = "sim";
  options.facts = SimFacts();
  options.host_name = "sim";
  options.preferred_stage = stage;
  return options;
}

}  // namespace

std::unique_ptr<stage_worker::StageMaker> SimStageFactory::NewMaker(
    const v1::Assignment& assignment, stage_worker::StageMaker::Callbacks callbacks) {
  return std::make_unique<SimStageMaker>(options_, context_, device_, assignment,
                                         std::move(callbacks));
}

SimWorker::SimWorker(const SimWorkerOptions& options, const SimWorkerContext& context,
                     absl::AnyInvocable<void(absl::Status)> on_over)
    : device_(*context.clock, *context.timers),
      stages_(options, context, device_),
      channels_(*context.fabric),
      worker_(MakeOptions(options.stage),
              stage_worker::WorkerEnvironment{.clock = context.clock,
                                              .timers = context.timers,
                                              .executor = context.executor,
                                              .device = &device_,
                                              .stages = &stages_,
                                              .factories = {&channel_factory_, 1},
                                              .dial = [context]() -> std::unique_ptr<WorkerLink> {
                                                return std::make_unique<ObservedLink>(
                                                    context.dial(), context);
                                              }},
              std::move(on_over)) {}

}  // namespace layercake::simulation
