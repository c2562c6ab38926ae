// Several workers with real channels between them.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "proto/protocol_version.h"
#include "proto/testing/loop_thread.h"
#include "stage_worker/loading_thread.h"
#include "stage_worker/stage_loader.h"
#include "stage_worker/testing/tiny_stages.h"
#include "stage_worker/testing/worker_fakes.h"
#include "stage_worker/worker.h"
#include "transport/local_channel.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::BeginOf;
using stage_worker::testing::FakeLink;
using stage_worker::testing::RowsOf;
using stage_worker::testing::TestProvider;
using stage_worker::testing::TinyModel;

// Whole workers with local channels, on one loop, led by a coordinator in a few lines.
class WorkerChain {
 public:
  WorkerChain(const TinyModel& model, int stages) : model_(model), provider_(model) {
    loading_ = LoadingThread::Create().value();
    for (int i = 0; i < stages; ++i) nodes_.emplace_back();
    loop_.Run([this] { MakeWorkers(); });
    serving_.WaitForNotification();
  }
  ~WorkerChain() {
    loop_.Run([this] {
      for (Node& node : nodes_) {
        v1::ToWorker message;
        message.mutable_shutdown()->set_reason("test over");
        node.wire.callbacks.on_message(message);
      }
    });
    over_.WaitForNotification();
    loop_.Run([this] {
      for (Node& node : nodes_) {
        EXPECT_TRUE(node.status.ok()) << node.status;
        node.worker.reset();
      }
    });
    for (Node& node : nodes_) {
      node.ops.reset();
      node.device.reset();
    }
  }

  // Sends plans to stage 0 and gives the results when all have come.
  std::vector<v1::StepResult> Run(const std::vector<v1::MicroBatchPlan>& plans) {
    absl::Notification all;
    loop_.Run([&] {
      results_.clear();
      wanted_ = plans.size();
      all_results_ = &all;
      for (const v1::MicroBatchPlan& plan : plans) {
        v1::ToWorker message;
        *message.mutable_plan() = plan;
        nodes_.front().wire.callbacks.on_message(message);
      }
    });
    all.WaitForNotification();
    return results_;
  }

 private:
  struct Node {
    FakeLink::Wire wire;
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<kernels::Ops> ops;
    std::unique_ptr<StageLoaderFactory> stages;
    std::unique_ptr<Worker> worker;
    absl::Status status = absl::UnknownError("runs");
    bool over = false;
    bool ready = false;
  };

  void MakeWorkers() {
    for (Node& node : nodes_) {
      node.device = kernels::CreateCpuDevice({.threads = 1}, loop_.loop()).value();
      node.ops = kernels::CreateCpuOps(*node.device).value();
      node.stages =
          std::make_unique<StageLoaderFactory>(StageLoaderContext{.clock = &loop_.loop().clock(),
                                                                  .timers = &loop_.loop(),
                                                                  .step_thread = &loop_.loop(),
                                                                  .loading_thread = loading_.get(),
                                                                  .device = node.device.get(),
                                                                  .ops = node.ops.get(),
                                                                  .provider = &provider_});
      WorkerOptions options;
      options.facts.host.boot_id = "this";
      options.facts.host.pid = 1;
      WorkerEnvironment environment;
      environment.clock = &loop_.loop().clock();
      environment.timers = &loop_.loop();
      environment.executor = &loop_.loop();
      environment.watcher = &loop_.loop();
      environment.device = node.device.get();
      environment.stages = node.stages.get();
      environment.factories = factories_;
      node.wire.on_sent = [this, &node] { Post([this, &node] { OnSent(node); }); };
      environment.dial = [&node] { return std::make_unique<FakeLink>(node.wire); };
      node.worker = std::make_unique<Worker>(options, std::move(environment),
                                             [this, &node](absl::Status status) {
                                               node.status = std::move(status);
                                               node.over = true;
                                               for (Node& other : nodes_) {
                                                 if (!other.over) return;
                                               }
                                               over_.Notify();
                                             });
      node.worker->Start();
    }
  }
  void Post(base::Task task) { ASSERT_TRUE(loop_.loop().Post(std::move(task))); }

  void OnSent(Node& node) {
    while (!node.wire.sent.empty()) {
      const v1::FromWorker message = node.wire.sent.front();
      node.wire.sent.pop_front();
      Handle(node, message);
    }
  }
  void Handle(Node& node, const v1::FromWorker& message) {
    int stage = 0;
    for (Node& other : nodes_) {
      if (&other == &node) break;
      ++stage;
    }
    v1::ToWorker answer;
    if (message.has_hello()) {
      answer.mutable_welcome()->set_protocol_version(kProtocolVersion);
      answer.mutable_welcome()->set_term(7);
      answer.mutable_welcome()->set_heartbeat_seconds(1);
      answer.mutable_welcome()->set_lease_seconds(3600);
      node.wire.callbacks.on_message(answer);
      *answer.mutable_assignment() = model_.Assign(stage, static_cast<int>(nodes_.size()));
      node.wire.callbacks.on_message(answer);
    } else if (message.has_channel_offer()) {
      *answer.mutable_connect_downstream()->mutable_offer() = message.channel_offer();
      // A ring: what the first stage offers is the way back from the last one.
      const int to = stage == 0 ? static_cast<int>(nodes_.size()) - 1 : stage - 1;
      std::next(nodes_.begin(), to)->wire.callbacks.on_message(answer);
    } else if (message.has_stage_ready()) {
      node.ready = true;
      for (const Node& other : nodes_) {
        if (!other.ready) return;
      }
      serving_.Notify();
    } else if (message.has_step_result()) {
      results_.push_back(message.step_result());
      if (results_.size() == wanted_) all_results_->Notify();
    } else if (message.has_failure()) {
      ADD_FAILURE() << message.failure().message();
    } else if (message.has_goodbye()) {
      node.wire.callbacks.on_closed(absl::OkStatus());
    }
  }

  const TinyModel& model_;
  TestProvider provider_;
  transport::LocalHub hub_;
  transport::LocalChannelFactory local_{hub_};
  std::vector<transport::ChannelFactory*> factories_ = {&local_};
  absl::Notification serving_;
  absl::Notification over_;
  std::list<Node> nodes_;
  std::vector<v1::StepResult> results_;
  size_t wanted_ = 0;
  absl::Notification* all_results_ = nullptr;
  layercake::testing::LoopThread loop_;
  std::unique_ptr<LoadingThread> loading_;
};

TEST(WorkerChainTest, AnswersTheSameThroughOneOrSeveralWorkers) {
  const TinyModel model((model::testing::TinyModelOptions()));
  std::vector<v1::MicroBatchPlan> plans;
  for (uint64_t step = 1; step <= 4; ++step) {
    v1::MicroBatchPlan plan;
    plan.set_term(7);
    plan.set_epoch(3);
    plan.set_step(step);
    *plan.add_begins() = BeginOf(step, 3);
    *plan.add_rows() = RowsOf(step, {3, static_cast<int>(step), 9}, 0, 3, true);
    plan.mutable_rows(0)->add_blocks(static_cast<uint32_t>(step));
    plan.mutable_rows(0)->set_score_tokens(true);
    plan.add_ends(step);
    plans.push_back(plan);
  }
  std::vector<std::string> expected;
  for (const int stages : {1, 2, 4}) {
    WorkerChain chain(model, stages);
    std::vector<std::string> answers;
    for (const v1::StepResult& result : chain.Run(plans)) {
      EXPECT_EQ(result.step(), answers.size() + 1);
      answers.push_back(result.SerializeAsString());
    }
    if (expected.empty()) expected = answers;
    EXPECT_EQ(answers, expected) << stages << " stages";
  }
}

// A prompt and three tokens more: all planned at once, or each when its token is known.
TEST(WorkerChainTest, AnswersTheSameWhenPlansRunAheadOfTheirTokens) {
  const TinyModel model((model::testing::TinyModelOptions()));
  std::vector<std::string> expected;
  for (const int stages : {0, 1, 2, 4}) {  // 0: one stage that is told every token
    WorkerChain chain(model, std::max(1, stages));
    std::vector<v1::MicroBatchPlan> plans;
    std::vector<v1::StepResult> results;
    for (uint64_t step = 1; step <= 4; ++step) {
      v1::MicroBatchPlan plan;
      plan.set_term(7);
      plan.set_epoch(3);
      plan.set_step(step);
      if (step == 1) {
        *plan.add_begins() = BeginOf(1, 3);
        plan.mutable_begins(0)->mutable_sampling()->set_frequency_penalty(1);
        *plan.add_rows() = RowsOf(1, {3, 5, 9}, 0, 3, true);
      } else {
        const bool told = stages == 0;
        const int32_t token = told ? results.back().results(0).tokens(0).token() : 0;
        *plan.add_rows() = RowsOf(1, {token}, 0, 1, true);
        plan.mutable_rows(0)->set_kv_position(static_cast<uint32_t>(step) + 1);
        plan.mutable_rows(0)->set_token_of_step(told ? 0 : step - 1);
      }
      for (const uint32_t block : {6u, 2u}) plan.mutable_rows(0)->add_blocks(block);
      plans.push_back(plan);
      if (stages == 0) results.push_back(chain.Run({plan}).front());
    }
    if (stages > 0) results = chain.Run(plans);
    std::vector<std::string> answers;
    for (const v1::StepResult& result : results) answers.push_back(result.SerializeAsString());
    if (expected.empty()) expected = answers;
    EXPECT_EQ(answers, expected) << stages << " stages";
  }
}

}  // namespace
}  // namespace layercake::stage_worker
