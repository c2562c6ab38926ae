#include "stage_worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "proto/protocol_version.h"
#include "stage_worker/stage_loader.h"
#include "stage_worker/testing/fake_device.h"
#include "stage_worker/testing/manual_time.h"
#include "stage_worker/testing/tiny_stages.h"
#include "stage_worker/testing/worker_fakes.h"
#include "transport/local_channel.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::FakeDevice;
using stage_worker::testing::FakeLink;
using stage_worker::testing::ManualTime;
using stage_worker::testing::TestProvider;
using stage_worker::testing::TinyModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs loading tasks when the test says so.
class HeldExecutor final : public base::Executor {
 public:
  bool Post(base::Task task) override {
    tasks.push_back(std::move(task));
    return true;
  }
  void RunAll() {
    while (!tasks.empty()) {
      base::Task task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }
  std::deque<base::Task> tasks;
};

class NoWatcher final : public base::FdWatcher {
 public:
  absl::Status Watch(int, base::Task) override { return absl::OkStatus(); }
  void Unwatch(int) override {}
};

// One worker under the test's time.
class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    cpu_ = kernels::CreateCpuDevice({.threads = 1}, time_).value();
    ops_ = kernels::CreateCpuOps(*cpu_).value();
    device_ = std::make_unique<FakeDevice>(*cpu_, time_);
    stages_ = std::make_unique<StageLoaderFactory>(StageLoaderContext{.clock = &time_,
                                                                      .timers = &time_,
                                                                      .step_thread = &time_,
                                                                      .loading_thread = &loading_,
                                                                      .device = device_.get(),
                                                                      .ops = ops_.get(),
                                                                      .provider = &provider_});
    WorkerOptions options;
    options.worker_id = "w";
    options.coordinator = "127.0.0.1:1";
    options.placement = "cuda:0 is on NUMA node 1: threads on CPUs 32-63";
    options.copy_gigabytes_per_second = 4300;
    WorkerEnvironment environment;
    environment.clock = &time_;
    environment.timers = &time_;
    environment.executor = &time_;
    environment.watcher = &watcher_;
    environment.device = device_.get();
    environment.stages = stages_.get();
    environment.factories = factories_;
    environment.dial = [this] {
      ++dials_;
      return std::make_unique<FakeLink>(wire_);
    };
    worker_ = std::make_unique<Worker>(
        options, std::move(environment),
        [this](absl::Status status) { over_.push_back(std::move(status)); });
    worker_->Start();
  }

  void Tell(const v1::ToWorker& message) {
    wire_.callbacks.on_message(message);
    time_.RunPosted();
  }
  void Welcome() {
    v1::ToWorker message;
    message.mutable_welcome()->set_protocol_version(kProtocolVersion);
    message.mutable_welcome()->set_term(7);
    message.mutable_welcome()->set_heartbeat_seconds(1);
    message.mutable_welcome()->set_lease_seconds(5);
    Tell(message);
  }
  void Assign(const v1::Assignment& assignment) {
    v1::ToWorker message;
    *message.mutable_assignment() = assignment;
    Tell(message);
  }
  void Beat() {
    v1::ToWorker message;
    message.mutable_heartbeat()->set_number(++beats_);
    Tell(message);
  }
  // The next message of a kind that is not a heartbeat or progress.
  v1::FromWorker Next() {
    while (!wire_.sent.empty()) {
      v1::FromWorker message = wire_.sent.front();
      wire_.sent.pop_front();
      if (!message.has_heartbeat() && !message.has_load_progress()) return message;
    }
    return {};
  }
  // It failed, said so, and ends when the coordinator has closed.
  void ExpectFailure(absl::StatusCode code, const std::string& words) {
    v1::FromWorker last;
    for (v1::FromWorker m = Next(); m.message_case() != 0; m = Next()) last = m;
    ASSERT_TRUE(last.has_failure()) << last.ShortDebugString();
    EXPECT_EQ(last.failure().code(), static_cast<int>(code)) << last.failure().message();
    EXPECT_THAT(last.failure().message(), HasSubstr(words));
    EXPECT_TRUE(over_.empty());
    wire_.callbacks.on_closed(absl::UnavailableError("closed"));
    ASSERT_EQ(over_.size(), 1u);
    EXPECT_EQ(over_[0].code(), code);
  }

  const TinyModel model_{model::testing::TinyModelOptions()};
  ManualTime time_;
  NoWatcher watcher_;
  HeldExecutor loading_;
  TestProvider provider_{model_};
  transport::LocalHub hub_;
  transport::LocalChannelFactory local_{hub_};
  std::vector<transport::ChannelFactory*> factories_ = {&local_};
  std::unique_ptr<kernels::Device> cpu_;
  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<StageLoaderFactory> stages_;
  FakeLink::Wire wire_;
  int dials_ = 0;
  uint64_t beats_ = 0;
  std::vector<absl::Status> over_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, IntroducesItself) {
  const v1::FromWorker message = Next();
  ASSERT_TRUE(message.has_hello());
  EXPECT_EQ(message.hello().protocol_version(), kProtocolVersion);
  EXPECT_EQ(message.hello().worker_id(), "w");
  EXPECT_EQ(message.hello().device(), "fake");
  EXPECT_EQ(message.hello().placement(), "cuda:0 is on NUMA node 1: threads on CPUs 32-63");
  EXPECT_EQ(message.hello().role(), v1::WORKER_ROLE_STAGE);
  ASSERT_EQ(message.hello().transports_size(), 1);
  EXPECT_EQ(message.hello().transports(0), "local");
}

TEST_F(WorkerTest, RefusesACoordinatorOfAnotherVersion) {
  v1::ToWorker message;
  message.mutable_welcome()->set_protocol_version(kProtocolVersion + 41);
  message.mutable_welcome()->set_software_version("9.9");
  Tell(message);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(over_[0].message(), AllOf(HasSubstr("version 42"), HasSubstr("9.9"),
                                        HasSubstr("version 1"), HasSubstr(kSoftwareVersion)));
  EXPECT_TRUE(wire_.closed);
}

TEST_F(WorkerTest, EndsWhenItIsRefused) {
  v1::ToWorker message;
  message.mutable_refused()->set_reason("no stage is free");
  Tell(message);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(over_[0].message(), HasSubstr("no stage is free"));
}

TEST_F(WorkerTest, DialsAgainUntilItsDeadline) {
  for (int i = 0; i < 200 && over_.empty(); ++i) {
    if (wire_.callbacks.on_closed) {
      auto closed = std::move(wire_.callbacks.on_closed);
      wire_.callbacks.on_closed = nullptr;
      closed(absl::UnavailableError("connection refused"));
    }
    time_.Advance(absl::Milliseconds(250));
  }
  EXPECT_GT(dials_, 50);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(over_[0].message(),
              AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("30s"), HasSubstr("connection refused")));
}

TEST_F(WorkerTest, GivesUpOnACoordinatorThatNeverAnswers) {
  time_.Advance(absl::Seconds(31));
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WorkerTest, TakesMessagesInTheirOrderOnly) {
  Assign(model_.Assign(0, 1));
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WorkerTest, RefusesWhatMayNotComeNow) {
  v1::ToWorker plan;
  plan.mutable_plan()->set_step(1);
  Welcome();
  Tell(plan);
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "a plan");
}

TEST_F(WorkerTest, RefusesAnAssignmentOfAnotherTerm) {
  Welcome();
  v1::Assignment assignment = model_.Assign(0, 1);
  assignment.set_term(8);
  Assign(assignment);
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "term 8");
}

TEST_F(WorkerTest, RefusesAnAssignmentThatCannotBe) {
  Welcome();
  v1::Assignment assignment = model_.Assign(0, 1);
  assignment.set_max_rows(0);
  Assign(assignment);
  ExpectFailure(absl::StatusCode::kInvalidArgument, "max_rows");
}

TEST_F(WorkerTest, RefusesAnotherModel) {
  Welcome();
  v1::Assignment assignment = model_.Assign(0, 1);
  assignment.set_model_fingerprint(1);
  Assign(assignment);
  loading_.RunAll();
  time_.RunPosted();
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "another model");
}

TEST_F(WorkerTest, LoadsAndSaysThatItIsReady) {
  Welcome();
  Next();
  Assign(model_.Assign(0, 1));
  loading_.RunAll();
  time_.RunPosted();
  // Memory is made ready on the device; meanwhile the worker is alive.
  ASSERT_EQ(device_->queued(), 1u);
  wire_.sent.clear();
  for (int i = 0; i < 20; ++i) {
    Beat();
    time_.Advance(absl::Seconds(1));
  }
  EXPECT_GE(wire_.sent.size(), 19u);
  EXPECT_TRUE(over_.empty());
  ASSERT_TRUE(device_->RunOne());
  time_.RunPosted();
  const v1::FromWorker ready = Next();
  ASSERT_TRUE(ready.has_stage_ready()) << ready.ShortDebugString();
  EXPECT_EQ(ready.stage_ready().epoch(), 3u);
  EXPECT_GT(ready.stage_ready().weight_bytes(), 0u);
  EXPECT_GT(ready.stage_ready().kv_bytes(), 0u);
  EXPECT_GT(ready.stage_ready().buffer_bytes(), 0u);
  EXPECT_EQ(ready.stage_ready().copy_gigabytes_per_second(), 4300);
  // Four host blocks, 64 on the device.
  EXPECT_EQ(ready.stage_ready().host_kv_bytes(), ready.stage_ready().kv_bytes() / 16);
}

TEST_F(WorkerTest, OffersTheWayBackWhenItIsTheFirstOfSeveral) {
  EXPECT_THAT(Next().hello().capabilities(), ElementsAre(v1::CAPABILITY_AUTO_CONTINUE));
  Welcome();
  Assign(model_.Assign(0, 2));
  loading_.RunAll();
  time_.RunPosted();
  ASSERT_TRUE(device_->RunOne());
  time_.RunPosted();
  const v1::FromWorker message = Next();
  ASSERT_TRUE(message.has_channel_offer()) << message.ShortDebugString();
  EXPECT_EQ(message.channel_offer().receiver_stage(), 0);
  EXPECT_EQ(message.channel_offer().kinds_size(), 0);
  ASSERT_EQ(message.channel_offer().feedback_kinds_size(), 1);
  EXPECT_EQ(message.channel_offer().feedback_kinds(0).kind(), "local");
  // Its own offer is not one that it may connect to.
  v1::ToWorker connect;
  *connect.mutable_connect_downstream()->mutable_offer() = message.channel_offer();
  Tell(connect);
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "stage 0 came to stage 0");
}

TEST_F(WorkerTest, WaitsForTheDeviceBeforeItEnds) {
  Welcome();
  Assign(model_.Assign(0, 1));
  loading_.RunAll();
  time_.RunPosted();
  ASSERT_EQ(device_->queued(), 1u);
  worker_->RequestStop("SIGTERM");
  time_.Advance(absl::Seconds(5));
  EXPECT_TRUE(over_.empty());
  ASSERT_TRUE(device_->RunOne());
  time_.RunPosted();
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_TRUE(over_[0].ok()) << over_[0];
  EXPECT_FALSE(worker_->abandoned());
}

TEST_F(WorkerTest, LeavesADeviceThatDoesNotComeBack) {
  Welcome();
  Assign(model_.Assign(0, 1));
  loading_.RunAll();
  time_.RunPosted();
  worker_->RequestStop("SIGTERM");
  time_.Advance(absl::Seconds(11));
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(worker_->abandoned());
}

TEST_F(WorkerTest, GivesUpOnLoadingThatStandsStill) {
  Welcome();
  Assign(model_.Assign(0, 1));
  for (int i = 0; i < 31 && over_.empty(); ++i) {
    Beat();
    time_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(provider_.cancelled);
  EXPECT_TRUE(worker_->abandoned());
  ExpectFailure(absl::StatusCode::kDeadlineExceeded, "stood still");
  worker_.reset();
  loading_.RunAll();  // its answer finds nobody
  time_.RunPosted();
}

TEST_F(WorkerTest, BeatsAndEndsWhenTheCoordinatorFallsSilent) {
  Welcome();
  Next();
  for (int i = 0; i < 10; ++i) {
    Beat();
    time_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(over_.empty());
  int beats = 0;
  uint64_t last_heard = 0;
  for (const v1::FromWorker& message : wire_.sent) {
    if (!message.has_heartbeat()) continue;
    ++beats;
    last_heard = message.heartbeat().last_heard();
    EXPECT_THAT(message.heartbeat().waiting_for(), HasSubstr("assignment"));
  }
  EXPECT_GE(beats, 10);
  EXPECT_GE(last_heard, 9u);
  time_.Advance(absl::Seconds(6));
  ExpectFailure(absl::StatusCode::kUnavailable, "silent");
}

TEST_F(WorkerTest, ForgivesSilenceAfterItStoodStillItself) {
  Welcome();
  time_.Stall(absl::Seconds(60));
  EXPECT_TRUE(over_.empty());
  time_.Advance(absl::Seconds(4));
  EXPECT_TRUE(over_.empty());
}

TEST_F(WorkerTest, EndsInOrderWhenTold) {
  Welcome();
  v1::ToWorker message;
  message.mutable_shutdown()->set_reason("done");
  Next();
  Tell(message);
  EXPECT_TRUE(Next().has_goodbye());
  EXPECT_TRUE(over_.empty());
  wire_.callbacks.on_closed(absl::OkStatus());
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_TRUE(over_[0].ok()) << over_[0];
}

TEST_F(WorkerTest, EndsInOrderOnASignal) {
  Welcome();
  Next();
  worker_->RequestStop("SIGTERM");
  const v1::FromWorker goodbye = Next();
  ASSERT_TRUE(goodbye.has_goodbye());
  EXPECT_EQ(goodbye.goodbye().reason(), "SIGTERM");
  time_.Advance(absl::Seconds(1));
  ASSERT_EQ(over_.size(), 1u) << "nobody has to answer a goodbye";
  EXPECT_TRUE(over_[0].ok());
  EXPECT_TRUE(wire_.closed);
}

TEST_F(WorkerTest, EndsWithTheSession) {
  Welcome();
  wire_.callbacks.on_closed(absl::UnavailableError("connection reset"));
  time_.RunPosted();
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(over_[0].message(), HasSubstr("connection reset"));
}

}  // namespace
}  // namespace layercake::stage_worker
