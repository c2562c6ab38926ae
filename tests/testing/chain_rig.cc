#include "tests/testing/chain_rig.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/event_loop.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "coordinator/engine_impl.h"
#include "coordinator/served_model.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/memory_link.h"
#include "stage_worker/loading_thread.h"
#include "stage_worker/model_provider.h"
#include "stage_worker/stage_loader.h"
#include "stage_worker/worker.h"
#include "transport/local_channel.h"
#include "transport/pinned_host_channel.h"
#include "transport/ucx_channel.h"
#include "transport/ucx_worker.h"

namespace layercake::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(240);

// Collects the outcomes of one Run.
struct Batch {
  absl::Mutex mutex;
  std::vector<Outcome> outcomes ABSL_GUARDED_BY(mutex);
  size_t open ABSL_GUARDED_BY(mutex) = 0;
};

class BatchSink final : public coordinator::RequestSink {
 public:
  BatchSink(std::shared_ptr<Batch> batch, size_t index) : batch_(std::move(batch)), index_(index) {}
  void OnStarted(const v1::Started&) override {}
  void OnPromptLogprobs(const v1::PromptLogprobs& event) override {
    absl::MutexLock lock(&batch_->mutex);
    auto& all = batch_->outcomes[index_].prompt_logprobs;
    all.insert(all.end(), event.logprobs().begin(), event.logprobs().end());
  }
  void OnDelta(v1::Delta event) override {
    absl::MutexLock lock(&batch_->mutex);
    Outcome& outcome = batch_->outcomes[index_];
    outcome.tokens.insert(outcome.tokens.end(), event.token_ids().begin(), event.token_ids().end());
    outcome.logprobs.insert(outcome.logprobs.end(), event.logprobs().begin(),
                            event.logprobs().end());
    outcome.text += event.text();
  }
  void OnFinished(const v1::Finished& event) override {
    absl::MutexLock lock(&batch_->mutex);
    batch_->outcomes[index_].finished = event;
    --batch_->open;
  }
  void OnError(const absl::Status& status) override {
    absl::MutexLock lock(&batch_->mutex);
    batch_->outcomes[index_].error = status;
    --batch_->open;
  }
  size_t pending_bytes() const override { return 0; }

 private:
  const std::shared_ptr<Batch> batch_;
  const size_t index_;
};

// One stage worker without its process.
struct RigWorker {
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Ops> ops;
  std::vector<std::unique_ptr<transport::ChannelFactory>> factories;
  std::vector<transport::ChannelFactory*> factory_pointers;
  std::unique_ptr<stage_worker::ModelProvider> provider;
  std::unique_ptr<stage_worker::LoadingThread> loading;
  std::unique_ptr<stage_worker::StageLoaderFactory> stages;
  std::unique_ptr<stage_worker::Worker> worker;
};

class Rig final : public ChainRig {
 public:
  explicit Rig(RigOptions options) : options_(std::move(options)), random_(1) {}

  absl::Status Create() {
    LC_ASSIGN_OR_RETURN(loop_, base::EventLoop::Create(clock_));
    LC_ASSIGN_OR_RETURN(served_, coordinator::OpenServedModel(options_.chain));
    coordinator::EngineOptions engine = coordinator::MakeEngineOptions(options_.chain, *served_, 1);
    engine.max_pending_bytes = options_.max_pending_bytes;
    engine.reader_timeout = options_.reader_timeout;
    engine_ = std::make_unique<coordinator::EngineImpl>(
        std::move(engine), *served_->tokenizer, clock_, *loop_, *loop_, random_,
        coordinator::EngineImpl::Events{.on_changed = [] {},
                                        .on_ready =
                                            [this](bool ready) {
                                              if (ready) started_.Notify();
                                            },
                                        .on_stopped = [this](absl::Status s) { OnStopped(s); }});
    for (int stage = 0; stage < options_.chain.stages; ++stage) {
      LC_RETURN_IF_ERROR(AddWorker(stage));
    }
    thread_ = std::thread([this] {
      engine_->Start();
      for (auto& worker : workers_) worker->worker->Start();
      loop_->Run();
    });
    if (!started_.WaitForNotificationWithTimeout(kPatience)) {
      return absl::DeadlineExceededError("the chain did not start");
    }
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }

  ~Rig() override {
    if (!thread_.joinable()) return;
    std::ignore = loop_->Post([this] { engine_->Drain(absl::ZeroDuration()); });
    // Workers end by the Shutdown; the last one to be over stops the loop.
    thread_.join();
  }

  absl::StatusOr<std::vector<Outcome>> Run(
      std::vector<coordinator::PreparedRequest> requests) override {
    auto batch = std::make_shared<Batch>();
    {
      absl::MutexLock lock(&batch->mutex);
      batch->outcomes.resize(requests.size());
      batch->open = requests.size();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      engine_->Submit(std::move(requests[i]), std::make_shared<BatchSink>(batch, i));
    }
    absl::MutexLock lock(&batch->mutex);
    const auto all_ended = [&batch]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(batch->mutex) {
      return batch->open == 0;
    };
    if (!batch->mutex.AwaitWithTimeout(absl::Condition(&all_ended), kPatience)) {
      return absl::DeadlineExceededError(absl::StrCat(batch->open, " requests did not end"));
    }
    return batch->outcomes;
  }

  coordinator::Engine& engine() override { return *engine_; }

  v1::GetLoadsResponse Loads() override {
    v1::GetLoadsResponse loads;
    absl::Notification done;
    engine_->GetLoads([&](v1::GetLoadsResponse response) {
      loads = std::move(response);
      done.Notify();
    });
    done.WaitForNotificationWithTimeout(kPatience);
    return loads;
  }

  int64_t CopiedPreemptions() override {
    int64_t copied = 0;
    absl::Notification done;
    // The answer comes on the engine's thread.
    engine_->GetLoads([&](const v1::GetLoadsResponse&) {
      copied = engine_->copied_preemptions();
      done.Notify();
    });
    done.WaitForNotificationWithTimeout(kPatience);
    return copied;
  }

  v1::GetStatusResponse Status() override {
    v1::GetStatusResponse status;
    absl::Notification done;
    engine_->GetStatus([&](v1::GetStatusResponse response) {
      status = std::move(response);
      done.Notify();
    });
    done.WaitForNotificationWithTimeout(kPatience);
    return status;
  }

 private:
  absl::Status AddWorker(int stage) {
    auto worker = std::make_unique<RigWorker>();
    LC_ASSIGN_OR_RETURN(worker->device,
                        kernels::CreateCpuDevice({.threads = options_.threads}, *loop_));
    LC_ASSIGN_OR_RETURN(worker->ops, kernels::CreateCpuOps(*worker->device));
    stage_worker::WorkerOptions options;
    options.worker_id = absl::StrCat("rig-", stage);
    options.host_name = "rig";
    options.preferred_stage = stage;
    LC_RETURN_IF_ERROR(AddFactories(*worker, options.facts));
    worker->provider = std::make_unique<stage_worker::LocalFirstProvider>(std::string(), nullptr);
    LC_ASSIGN_OR_RETURN(worker->loading, stage_worker::LoadingThread::Create());
    worker->stages = std::make_unique<stage_worker::StageLoaderFactory>(
        stage_worker::StageLoaderContext{.clock = &clock_,
                                         .timers = loop_.get(),
                                         .step_thread = loop_.get(),
                                         .loading_thread = worker->loading.get(),
                                         .device = worker->device.get(),
                                         .ops = worker->ops.get(),
                                         .provider = worker->provider.get()});
    stage_worker::WorkerEnvironment environment;
    environment.clock = &clock_;
    environment.timers = loop_.get();
    environment.executor = loop_.get();
    environment.watcher = loop_.get();
    environment.device = worker->device.get();
    environment.stages = worker->stages.get();
    environment.factories = worker->factory_pointers;
    environment.dial = [this] {
      auto [down, up] = MakeMemoryLinks(*loop_);
      engine_->AddSession(std::move(down), "rig");
      return std::move(up);
    };
    ++living_;
    worker->worker = std::make_unique<stage_worker::Worker>(
        std::move(options), std::move(environment), [this](absl::Status) {
          if (--living_ == 0) loop_->Stop();
        });
    workers_.push_back(std::move(worker));
    return absl::OkStatus();
  }

  absl::Status AddFactories(RigWorker& worker, transport::EndpointFacts& facts) {
    LC_ASSIGN_OR_RETURN(facts.host, transport::ReadHostIdentity());
    const std::string& wanted = options_.chain.transport;
    if (wanted == "local") {
      worker.factories.push_back(std::make_unique<transport::LocalChannelFactory>(hub_));
    } else if (wanted == "pinned_host") {
      transport::PinnedHostOptions pinned;
      pinned.socket_folder = transport::DefaultSocketFolder();
      LC_ASSIGN_OR_RETURN(facts.socket_scope, transport::ReadSocketScope(pinned.socket_folder));
      worker.factories.push_back(
          std::make_unique<transport::PinnedHostChannelFactory>(std::move(pinned)));
    } else {
      if (ucx_ == nullptr) {
        LC_ASSIGN_OR_RETURN(ucx_, transport::UcxWorker::Create(clock_, {.tls = options_.ucx_tls}));
      }
      worker.factories.push_back(std::make_unique<transport::UcxChannelFactory>(*ucx_));
    }
    facts.has_ucx = wanted == "ucx";
    worker.factory_pointers.push_back(worker.factories.front().get());
    return absl::OkStatus();
  }

  void OnStopped(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    stopped_ = status;
    if (!started_.HasBeenNotified()) started_.Notify();
  }

  const RigOptions options_;
  base::SystemClock clock_;
  base::SeededRandom random_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<coordinator::ServedModel> served_;
  transport::LocalHub hub_;
  std::unique_ptr<transport::UcxWorker> ucx_;
  std::unique_ptr<coordinator::EngineImpl> engine_;
  std::vector<std::unique_ptr<RigWorker>> workers_;
  int living_ = 0;  // loop thread, once it runs
  absl::Notification started_;
  absl::Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChainRig>> ChainRig::Start(const RigOptions& options) {
  auto rig = std::make_unique<Rig>(options);
  LC_RETURN_IF_ERROR(rig->Create());
  return rig;
}

coordinator::PreparedRequest Greedy(std::vector<int32_t> prompt, int max_tokens, int top_logprobs) {
  coordinator::PreparedRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_end_of_generation = true;
  request.sampling.set_top_p(1);
  request.sampling.set_repetition_penalty(1);
  request.sampling.set_top_logprobs(top_logprobs);
  return request;
}

}  // namespace layercake::testing
