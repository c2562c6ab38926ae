#include "stage_worker/neighbour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/synchronization/notification.h"
#include "proto/testing/loop_thread.h"
#include "stage_worker/endpoint.h"
#include "transport/channel_rig.h"
#include "transport/local_channel.h"
#include "transport/pinned_host_channel.h"

namespace layercake::stage_worker {
namespace {

using ::testing::HasSubstr;

// Makes channels that never work.
class BrokenFactory final : public transport::ChannelFactory {
 public:
  BrokenFactory(transport::ChannelFactory& real) : real_(real) {}
  transport::TransportKind kind() const override { return real_.kind(); }
  absl::StatusOr<std::unique_ptr<transport::ChannelReceiver>> CreateReceiver(
      const transport::ChannelOptions& options, transport::ChannelContext context) override {
    return real_.CreateReceiver(options, std::move(context));
  }
  absl::StatusOr<std::unique_ptr<transport::ChannelSender>> Connect(
      absl::string_view, const transport::ChannelOptions&, transport::ChannelContext) override {
    return absl::UnavailableError("broken on purpose");
  }

 private:
  transport::ChannelFactory& real_;
};

class NeighbourTest : public ::testing::Test {
 protected:
  NeighbourTest() {
    facts_.host = transport::ReadHostIdentity().value();
    facts_.socket_scope = transport::ReadSocketScope(folder_.path()).value();
    facts_.has_ucx = false;
  }
  ~NeighbourTest() override {
    loop_.Run([this] {
      downstream_.reset();
      upstream_.reset();
    });
  }

  NeighbourContext Context(std::vector<transport::ChannelFactory*>& factories) {
    return {.clock = &loop_.loop().clock(),
            .timers = &loop_.loop(),
            .executor = &loop_.loop(),
            .watcher = &loop_.loop(),
            .factories = factories};
  }
  NeighbourOptions Options(int stage, const std::string& transport) {
    NeighbourOptions options;
    options.ring = {7, 3};
    options.geometry = {4, 4096, 2, 65536};
    options.stage = stage;
    options.peer_stage = 1 - stage;
    options.feedback = feedback_;
    options.facts = facts_;
    options.host = ToProto(facts_, "b");
    options.transport = transport;
    options.connect_timeout = absl::Seconds(5);
    return options;
  }
  NeighbourCallbacks Callbacks(absl::StatusOr<v1::ChannelReady>& to, absl::Notification& done) {
    NeighbourCallbacks callbacks;
    callbacks.on_ready = [&](const v1::ChannelReady& ready) {
      to = ready;
      done.Notify();
    };
    callbacks.on_channel = [] {};
    callbacks.on_failure = [&](absl::Status status) {
      to = status;
      done.Notify();
    };
    return callbacks;
  }

  // Offers with `receiving`, connects with `sending`; waits for the sender's end.
  void Connect(const std::string& transport) {
    loop_.Run([&] {
      auto upstream = UpstreamEnd::Create(Options(1, transport), Context(receiving_),
                                          Callbacks(received_, received_done_));
      ASSERT_TRUE(upstream.ok()) << upstream.status();
      upstream_ = *std::move(upstream);
      auto downstream = DownstreamEnd::Create(Options(0, "auto"), Context(sending_),
                                              upstream_->offer(), Callbacks(sent_, sent_done_));
      ASSERT_TRUE(downstream.ok()) << downstream.status();
      downstream_ = *std::move(downstream);
    });
    sent_done_.WaitForNotification();
  }

  transport::TemporaryFolder folder_;
  transport::LocalHub hub_;
  transport::LocalChannelFactory local_{hub_};
  transport::PinnedHostChannelFactory pinned_{
      {.socket_folder = folder_.path(), .register_host_memory = {}}};
  transport::FakePeerMemory sending_memory_{"GPU-a"};
  transport::FakePeerMemory receiving_memory_{"GPU-b"};
  transport::CudaIpcChannelFactory sending_cuda_{sending_memory_, folder_.path()};
  transport::CudaIpcChannelFactory receiving_cuda_{receiving_memory_, folder_.path()};
  BrokenFactory broken_local_{local_};
  BrokenFactory broken_pinned_{pinned_};
  std::vector<transport::ChannelFactory*> receiving_ = {&local_, &pinned_};
  std::vector<transport::ChannelFactory*> sending_ = {&local_, &pinned_};
  transport::EndpointFacts facts_;
  bool feedback_ = false;
  layercake::testing::LoopThread loop_;
  std::unique_ptr<UpstreamEnd> upstream_;
  std::unique_ptr<DownstreamEnd> downstream_;
  absl::StatusOr<v1::ChannelReady> received_ = absl::UnknownError("nothing yet");
  absl::StatusOr<v1::ChannelReady> sent_ = absl::UnknownError("nothing yet");
  absl::Notification received_done_;
  absl::Notification sent_done_;
};

TEST_F(NeighbourTest, TakesTheFirstKindThatWorks) {
  Connect("auto");
  received_done_.WaitForNotification();
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  ASSERT_TRUE(received_.ok()) << received_.status();
  EXPECT_EQ(sent_->kind(), "local");
  EXPECT_EQ(received_->kind(), "local");
  EXPECT_EQ(sent_->end(), v1::ChannelReady::END_SENDER);
  EXPECT_EQ(received_->end(), v1::ChannelReady::END_RECEIVER);
  EXPECT_EQ(sent_->epoch(), 3u);
  EXPECT_GT(sent_->latency_us(), 0);
  EXPECT_GT(sent_->gigabytes_per_second(), 0);
  loop_.Run([this] {
    EXPECT_EQ(downstream_->sender()->kind(), transport::TransportKind::kLocal);
    EXPECT_EQ(upstream_->receiver()->kind(), transport::TransportKind::kLocal);
    EXPECT_EQ(downstream_->WaitingFor(), "");
  });
}

TEST_F(NeighbourTest, GoesOnToTheNextKindWhenOneFails) {
  sending_ = {&broken_local_, &pinned_};
  Connect("auto");
  received_done_.WaitForNotification();
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  EXPECT_EQ(sent_->kind(), "pinned_host");
  EXPECT_THAT(sent_->reason(), HasSubstr("broken on purpose"));
  EXPECT_EQ(received_->kind(), "pinned_host");
}

TEST_F(NeighbourTest, UsesNothingElseThanTheKindThatWasAskedFor) {
  for (const std::string transport : {"pinned_host", "require:pinned_host"}) {
    sending_ = {&local_, &broken_pinned_};
    loop_.Run([&] {
      absl::StatusOr<v1::ChannelReady>& to = received_;
      auto upstream = UpstreamEnd::Create(Options(1, transport), Context(receiving_),
                                          Callbacks(to, received_done_));
      ASSERT_TRUE(upstream.ok());
      upstream_ = *std::move(upstream);
      EXPECT_EQ(upstream_->offer().kinds_size(), 1);
    });
    absl::Notification done;
    absl::StatusOr<v1::ChannelReady> result = absl::UnknownError("nothing yet");
    loop_.Run([&] {
      downstream_ = DownstreamEnd::Create(Options(0, "auto"), Context(sending_), upstream_->offer(),
                                          Callbacks(result, done))
                        .value();
    });
    done.WaitForNotification();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << transport;
    EXPECT_THAT(result.status().message(), HasSubstr("stage 1 (host b)"));
    loop_.Run([&] { downstream_.reset(); });
  }
}

TEST_F(NeighbourTest, SaysWhenEveryKindHasFailed) {
  sending_ = {&broken_local_, &broken_pinned_};
  Connect("auto");
  EXPECT_EQ(sent_.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(sent_.status().message(), HasSubstr("local: "));
  EXPECT_THAT(sent_.status().message(), HasSubstr("pinned_host: "));
}

TEST_F(NeighbourTest, RefusesOffersThatAreNotForIt) {
  loop_.Run([&] {
    upstream_ = UpstreamEnd::Create(Options(1, "auto"), Context(receiving_),
                                    Callbacks(received_, received_done_))
                    .value();
    struct Case {
      std::string name;
      std::function<void(v1::ChannelOffer&)> change;
    };
    const std::vector<Case> cases = {
        {"epoch", [](v1::ChannelOffer& o) { o.set_epoch(2); }},
        {"term", [](v1::ChannelOffer& o) { o.set_term(1); }},
        {"stage", [](v1::ChannelOffer& o) { o.set_receiver_stage(2); }},
        {"no kinds", [](v1::ChannelOffer& o) { o.clear_kinds(); }},
        {"unknown kinds",
         [](v1::ChannelOffer& o) {
           for (auto& kind : *o.mutable_kinds()) kind.set_kind("pigeon");
         }},
        {"transport", [](v1::ChannelOffer& o) { o.set_transport("pigeon"); }},
        {"host", [](v1::ChannelOffer& o) { o.mutable_host()->set_ipc_domain("x"); }},
    };
    for (const Case& test : cases) {
      v1::ChannelOffer offer = upstream_->offer();
      test.change(offer);
      EXPECT_FALSE(DownstreamEnd::Create(Options(0, "auto"), Context(sending_), offer,
                                         Callbacks(sent_, sent_done_))
                       .ok())
          << test.name;
    }
  });
}

class CudaNeighbours : public NeighbourTest {
 protected:
  CudaNeighbours() {
    facts_.on_cuda = true;
    receiving_ = {&receiving_cuda_, &pinned_};
    sending_ = {&sending_cuda_, &pinned_};
  }
};

TEST_F(CudaNeighbours, ShareDeviceMemoryWhenItsCopiesAreProved) {
  Connect("auto");
  received_done_.WaitForNotification();
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  EXPECT_EQ(sent_->kind(), "cuda_ipc");
  EXPECT_EQ(received_->kind(), "cuda_ipc");
  EXPECT_GT(sent_->gigabytes_per_second(), 0);
}

// CASES E4: the copies report success and bytes do not arrive.
TEST_F(CudaNeighbours, GoThroughHostMemoryWhenACopyLies) {
  sending_memory_.HarmCopy(3, transport::FakePeerMemory::CopyFault::kZero);
  Connect("auto");
  received_done_.WaitForNotification();
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  EXPECT_EQ(sent_->kind(), "pinned_host");
  EXPECT_THAT(sent_->reason(), HasSubstr("after cuda_ipc: "));
  EXPECT_EQ(received_->kind(), "pinned_host");
  EXPECT_EQ(receiving_memory_.blocks(), 0u);
}

TEST_F(CudaNeighbours, RefuseWhenDeviceMemoryIsRequiredAndACopyLies) {
  sending_memory_.HarmCopy(3, transport::FakePeerMemory::CopyFault::kTruncate);
  Connect("require:cuda_ipc");
  received_done_.WaitForNotification();
  EXPECT_FALSE(sent_.ok());
  EXPECT_TRUE(absl::IsDataLoss(received_.status())) << received_.status();
  EXPECT_THAT(received_.status().message(), HasSubstr("require:cuda_ipc"));
}

TEST_F(NeighbourTest, SaysWhatItHasInsteadOfARequiredKind) {
  loop_.Run([&] {
    const auto upstream = UpstreamEnd::Create(Options(1, "require:cuda_ipc"), Context(receiving_),
                                              Callbacks(received_, received_done_));
    EXPECT_TRUE(absl::IsFailedPrecondition(upstream.status())) << upstream.status();
    EXPECT_THAT(upstream.status().message(), HasSubstr("local, pinned_host"));
    EXPECT_THAT(upstream.status().message(), HasSubstr("needs a CUDA device"));
  });
}

TEST_F(CudaNeighbours, MeetInHostMemoryWhenOneIsOnACpu) {
  receiving_ = {&pinned_};
  Connect("auto");
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  EXPECT_EQ(sent_->kind(), "pinned_host");
}

TEST_F(CudaNeighbours, SendTokensThroughHostMemory) {
  feedback_ = true;
  Connect("auto");
  received_done_.WaitForNotification();
  ASSERT_TRUE(sent_.ok()) << sent_.status();
  EXPECT_EQ(sent_->kind(), "pinned_host");
  EXPECT_EQ(sent_->end(), v1::ChannelReady::END_FEEDBACK_SENDER);
  EXPECT_EQ(received_->end(), v1::ChannelReady::END_FEEDBACK_RECEIVER);
  EXPECT_EQ(upstream_->offer().kinds_size(), 0);
  EXPECT_EQ(upstream_->offer().feedback_kinds_size(), 1);
  EXPECT_GT(sent_->latency_us(), 0);
  EXPECT_EQ(sent_->gigabytes_per_second(), 0) << "of 64 bytes it would mean nothing";
}

TEST_F(NeighbourTest, TakesNoOfferOfActivationsForTheWayBack) {
  loop_.Run([&] {
    upstream_ = UpstreamEnd::Create(Options(1, "auto"), Context(receiving_),
                                    Callbacks(received_, received_done_))
                    .value();
    feedback_ = true;
    EXPECT_TRUE(absl::IsInvalidArgument(DownstreamEnd::Create(Options(0, "auto"), Context(sending_),
                                                              upstream_->offer(),
                                                              Callbacks(sent_, sent_done_))
                                            .status()));
  });
}

TEST(Endpoint, SurvivesTheWire) {
  transport::EndpointFacts facts;
  facts.host = {"id", "boot", "pid:[1]", "ipc:[2]", 1000, 77, 88};
  facts.socket_scope = "5:6";
  facts.has_ucx = true;
  const auto back = FromProto(ToProto(facts, "name"), true, false);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, facts);
}

}  // namespace
}  // namespace layercake::stage_worker
