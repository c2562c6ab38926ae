#include "proto/grpc_link.h"

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "layercake/v1/control.grpc.pb.h"
#include "proto/grpc_channel.h"
#include "proto/testing/loop_thread.h"

namespace layercake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoopThread;

constexpr absl::Duration kPatience = absl::Seconds(20);

// What one end's callbacks saw. Thread-safe.
class Log {
 public:
  template <class Link, class In>
  static typename Link::Callbacks CallbacksFor(Log* log, std::string (*text)(const In&)) {
    typename Link::Callbacks callbacks;
    callbacks.on_message = [log, text](const In& message) { log->Add(text(message)); };
    callbacks.on_closed = [log](const absl::Status& status) { log->AddClosed(status); };
    return callbacks;
  }

  void Add(std::string text) {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(closed_.empty()) << "a message after on_closed: " << text;
    messages_.push_back(std::move(text));
  }
  void AddClosed(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    closed_.push_back(status);
  }

  std::vector<std::string> WaitForMessages(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count] {
      mutex_.AssertHeld();
      return messages_.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience))
        << "got " << messages_.size() << " of " << count << " messages";
    return messages_;
  }
  absl::Status WaitForClosed() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this] {
      mutex_.AssertHeld();
      return !closed_.empty();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) {
      return absl::InternalError("the test waited in vain for on_closed");
    }
    EXPECT_EQ(closed_.size(), 1u);
    return closed_.front();
  }
  size_t closed_count() {
    absl::MutexLock lock(&mutex_);
    return closed_.size();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

std::string GoodbyeText(const v1::FromWorker& message) { return message.goodbye().reason(); }
std::string ShutdownText(const v1::ToWorker& message) { return message.shutdown().reason(); }

v1::FromWorker Goodbye(std::string reason) {
  v1::FromWorker message;
  message.mutable_goodbye()->set_reason(std::move(reason));
  return message;
}
v1::ToWorker Shutdown(std::string reason) {
  v1::ToWorker message;
  message.mutable_shutdown()->set_reason(std::move(reason));
  return message;
}

class TestControl final : public v1::Control::CallbackService {
 public:
  TestControl(base::Executor& executor, const GrpcLinkOptions& options)
      : executor_(executor), options_(options) {}

  grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>* Session(
      grpc::CallbackServerContext* context) override {
    AcceptedSession session = AcceptCoordinatorLink(
        context, executor_,
        [this] {
          absl::MutexLock lock(&mutex_);
          ++done_;
        },
        options_);
    absl::MutexLock lock(&mutex_);
    links_.push_back(std::move(session.link));
    return session.reactor;
  }

  std::unique_ptr<CoordinatorLink> WaitForLink() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this] {
      mutex_.AssertHeld();
      return !links_.empty();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) return nullptr;
    std::unique_ptr<CoordinatorLink> link = std::move(links_.front());
    links_.pop_front();
    return link;
  }
  bool WaitForDone(int count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count] {
      mutex_.AssertHeld();
      return done_ >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }

 private:
  base::Executor& executor_;
  const GrpcLinkOptions options_;
  absl::Mutex mutex_;
  std::deque<std::unique_ptr<CoordinatorLink>> links_ ABSL_GUARDED_BY(mutex_);
  int done_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GrpcLinkTest : public ::testing::Test {
 protected:
  void Listen(const GrpcLinkOptions& options = {}) {
    control_ = std::make_unique<TestControl>(coordinator_.loop(), options);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kMaxControlMessageBytes);
    builder.RegisterService(control_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::shared_ptr<grpc::Channel> Channel() {
    return MakeChannel({absl::StrCat("127.0.0.1:", port_), {}, kMaxControlMessageBytes}).value();
  }

  // Connects both ends; neither is started.
  void Connect(const GrpcLinkOptions& worker_options = {}) {
    dialer_ = std::make_unique<SessionDialer>(Channel());
    worker_.Run([&] { worker_link_ = dialer_->Connect(worker_.loop(), worker_options); });
    coordinator_link_ = control_->WaitForLink();
    ASSERT_NE(coordinator_link_, nullptr);
  }
  void StartWorker() {
    worker_.Run([&] {
      worker_link_->Start(Log::CallbacksFor<WorkerLink, v1::ToWorker>(&worker_log_, ShutdownText));
    });
  }
  void StartCoordinator() {
    coordinator_.Run([&] {
      coordinator_link_->Start(
          Log::CallbacksFor<CoordinatorLink, v1::FromWorker>(&coordinator_log_, GoodbyeText));
    });
  }

  void TearDown() override {
    coordinator_.Run([&] { coordinator_link_.reset(); });
    worker_.Run([&] { worker_link_.reset(); });
    dialer_.reset();
    if (server_ != nullptr) server_->Shutdown(gpr_time_from_seconds(10, GPR_TIMESPAN));
  }

  LoopThread coordinator_;
  LoopThread worker_;
  Log coordinator_log_;
  Log worker_log_;
  std::unique_ptr<TestControl> control_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::unique_ptr<SessionDialer> dialer_;
  std::unique_ptr<WorkerLink> worker_link_;
  std::unique_ptr<CoordinatorLink> coordinator_link_;
};

TEST_F(GrpcLinkTest, KeepsTheOrderOfManyMessagesBothWaysAtOnce) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  constexpr int kCount = 2000;
  std::vector<std::string> expected;
  for (int i = 0; i < kCount; ++i) {
    expected.push_back(absl::StrCat(i));
    worker_.Run([&] { ASSERT_TRUE(worker_link_->Send(Goodbye(expected.back())).ok()); });
    coordinator_.Run([&] { ASSERT_TRUE(coordinator_link_->Send(Shutdown(expected.back())).ok()); });
  }
  EXPECT_EQ(coordinator_log_.WaitForMessages(kCount), expected);
  EXPECT_EQ(worker_log_.WaitForMessages(kCount), expected);
}

TEST_F(GrpcLinkTest, DeliversWhatCameBeforeStart) {
  Listen();
  Connect();
  worker_.Run([&] {
    ASSERT_TRUE(worker_link_->Send(Goodbye("first")).ok());
    ASSERT_TRUE(worker_link_->Send(Goodbye("second")).ok());
    worker_link_->Close(absl::OkStatus());
  });
  StartCoordinator();
  EXPECT_THAT(coordinator_log_.WaitForMessages(2), ElementsAre("first", "second"));
  EXPECT_EQ(coordinator_log_.WaitForClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcLinkTest, TheWorkerSeesWhyTheCoordinatorClosed) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  coordinator_.Run([&] {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(coordinator_link_->Send(Shutdown("queued")).ok());
    coordinator_link_->Close(absl::FailedPreconditionError("an Assignment before the Welcome"));
    coordinator_link_->Close(absl::OkStatus());
    EXPECT_EQ(coordinator_link_->Send(Shutdown("late")).code(), absl::StatusCode::kUnavailable);
  });
  const absl::Status closed = worker_log_.WaitForClosed();
  EXPECT_EQ(closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(closed.message(), "an Assignment before the Welcome");
  EXPECT_EQ(worker_log_.WaitForMessages(100).size(), 100u);
  worker_.Run([&] {
    EXPECT_EQ(worker_link_->Send(Goodbye("late")).code(), absl::StatusCode::kUnavailable);
  });
  EXPECT_TRUE(control_->WaitForDone(1));
  EXPECT_EQ(coordinator_log_.closed_count(), 0u) << "on_closed after Close";
}

TEST_F(GrpcLinkTest, TheCoordinatorSeesWhyTheWorkerClosed) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  worker_.Run([&] {
    ASSERT_TRUE(worker_link_->Send(Goodbye("queued")).ok());
    worker_link_->Close(absl::DataLossError("short file"));
  });
  EXPECT_THAT(coordinator_log_.WaitForMessages(2), ElementsAre("queued", HasSubstr("short file")));
  EXPECT_EQ(coordinator_log_.WaitForClosed().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(control_->WaitForDone(1));
  EXPECT_EQ(worker_log_.closed_count(), 0u);
}

TEST_F(GrpcLinkTest, ADestroyedEndClosesTheOther) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  coordinator_.Run([&] { coordinator_link_.reset(); });
  EXPECT_EQ(worker_log_.WaitForClosed().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(control_->WaitForDone(1));
}

TEST_F(GrpcLinkTest, MayBeDestroyedInsideItsOwnCallback) {
  Listen();
  Connect();
  StartCoordinator();
  std::string seen;
  absl::Notification both_sent;  // else the second may meet an end that is gone
  absl::Notification gone;
  worker_.Run([&] {
    WorkerLink::Callbacks callbacks;
    callbacks.on_message = [&, keep = std::string("captured")](const v1::ToWorker& message) {
      EXPECT_TRUE(both_sent.WaitForNotificationWithTimeout(kPatience));
      seen += message.shutdown().reason();
      worker_link_.reset();
      seen += keep;
      gone.Notify();
    };
    callbacks.on_closed = [](const absl::Status&) { ADD_FAILURE() << "closed after destruction"; };
    worker_link_->Start(std::move(callbacks));
  });
  coordinator_.Run([&] {
    ASSERT_TRUE(coordinator_link_->Send(Shutdown("one ")).ok());
    ASSERT_TRUE(coordinator_link_->Send(Shutdown("two ")).ok());
    both_sent.Notify();
  });
  ASSERT_TRUE(gone.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(coordinator_log_.WaitForClosed().code(), absl::StatusCode::kUnavailable);
  worker_.Run([&] { EXPECT_EQ(seen, "one captured"); });
}

TEST_F(GrpcLinkTest, ACoordinatorThatIsNotThereClosesTheLink) {
  Listen();
  dialer_ = std::make_unique<SessionDialer>(Channel());
  server_->Shutdown(gpr_time_from_seconds(1, GPR_TIMESPAN));
  server_.reset();
  worker_.Run([&] {
    worker_link_ = dialer_->Connect(worker_.loop());
    worker_link_->Start(Log::CallbacksFor<WorkerLink, v1::ToWorker>(&worker_log_, ShutdownText));
  });
  EXPECT_EQ(worker_log_.WaitForClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcLinkTest, AServerThatDiesClosesTheWorkersEnd) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  server_->Shutdown(gpr_time_from_millis(0, GPR_TIMESPAN));
  // A cancelled call: whatever its code, never silence.
  EXPECT_FALSE(worker_log_.WaitForClosed().ok());
  EXPECT_EQ(coordinator_log_.WaitForClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcLinkTest, AFullQueueIsRefusedAndAClosedLinkLetsGoOfAPeerThatDoesNotRead) {
  GrpcLinkOptions options;
  options.max_send_messages = 50;
  options.close_flush = absl::Milliseconds(200);
  Listen(options);
  GrpcLinkOptions worker_options;
  worker_options.max_receive_messages = 4;
  Connect(worker_options);
  // The worker never starts, so its inbox fills, then the flow-control window, then our queue.
  const v1::ToWorker big = Shutdown(std::string(256 << 10, 'x'));
  absl::Status status;
  int sent = 0;
  coordinator_.Run([&] {
    for (; sent < 5000 && status.ok(); ++sent) status = coordinator_link_->Send(big);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status << " after " << sent;
  EXPECT_LT(sent, 5000);
  coordinator_.Run([&] { coordinator_link_->Close(absl::OkStatus()); });
  EXPECT_TRUE(control_->WaitForDone(1)) << "the call is held by a peer that does not read";
}

TEST_F(GrpcLinkTest, AReceiverThatStoodStillGoesOnWhereItStopped) {
  Listen();
  GrpcLinkOptions worker_options;
  worker_options.max_receive_messages = 4;
  Connect(worker_options);
  StartCoordinator();
  std::vector<std::string> expected;
  coordinator_.Run([&] {
    for (int i = 0; i < 1000; ++i) {
      expected.push_back(absl::StrCat(i));
      ASSERT_TRUE(coordinator_link_->Send(Shutdown(expected.back())).ok());
    }
  });
  StartWorker();
  EXPECT_EQ(worker_log_.WaitForMessages(1000), expected);
}

TEST_F(GrpcLinkTest, AMessageOverTheLimitIsRefusedBeforeItIsSent) {
  Listen();
  Connect();
  StartWorker();
  StartCoordinator();
  coordinator_.Run([&] {
    EXPECT_EQ(
        coordinator_link_->Send(Shutdown(std::string(kMaxControlMessageBytes + 1, 'x'))).code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(coordinator_link_->Send(Shutdown("small")).ok());
  });
  EXPECT_THAT(worker_log_.WaitForMessages(1), ElementsAre("small"));
}

TEST_F(GrpcLinkTest, TheDialersEndWaitsForLastWords) {
  Listen();
  Connect();
  StartCoordinator();
  worker_.Run([&] {
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(worker_link_->Send(Goodbye("word")).ok());
    worker_link_->Close(absl::CancelledError("the very last"));
    worker_link_.reset();
  });
  // The coordinator's call ends only after it has read everything.
  dialer_.reset();
  EXPECT_THAT(coordinator_log_.WaitForMessages(501).back(), HasSubstr("the very last"));
}

TEST_F(GrpcLinkTest, AMessageOfTenMebibytesPasses) {
  Listen();
  Connect();
  StartWorker();
  const std::string text(10 << 20, 'y');
  coordinator_.Run([&] { ASSERT_TRUE(coordinator_link_->Send(Shutdown(text)).ok()); });
  EXPECT_EQ(worker_log_.WaitForMessages(1).front().size(), text.size());
}

}  // namespace
}  // namespace layercake
