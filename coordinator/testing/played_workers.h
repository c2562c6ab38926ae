// The workers of a chain, played: they connect, say that they are ready, pass the chain's test.
// From then on plans arrive at the first one and their results are for the last one to say.
//
// One thread, virtual time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/virtual_loop.h"
#include "coordinator/engine_impl.h"
#include "coordinator/testing/fake_link.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator::testing {

class PlayedWorkers {
 public:
  // Of an engine that has started, on `loop`. `offers`: they can take the token of an earlier step.
  PlayedWorkers(EngineImpl& engine, base::VirtualLoop& loop, int stages, bool offers) {
    for (int i = 0; i < stages; ++i) {
      auto worker = std::make_shared<FakeWorkerEnd>();
      engine.AddSession(std::make_unique<FakeLink>(worker), "here");
      loop.RunPosted();
      v1::FromWorker hello;
      hello.mutable_hello()->set_protocol_version(kProtocolVersion);
      hello.mutable_hello()->set_role(v1::WORKER_ROLE_STAGE);
      if (offers) hello.mutable_hello()->add_capabilities(v1::CAPABILITY_AUTO_CONTINUE);
      worker->Say(hello);
      workers_.push_back(std::move(worker));
    }
    SayReady(offers);
    first().received.clear();
    v1::FromWorker tested;
    v1::StepResult& result = *tested.mutable_step_result();
    result.set_term(1);
    result.set_epoch(1);
    result.set_step(1);
    result.add_results()->add_tokens();
    last().Say(tested);
    loop.RunPosted();
  }

  FakeWorkerEnd& first() const { return *workers_.front(); }
  FakeWorkerEnd& last() const { return *workers_.back(); }

 private:
  void SayReady(bool offers) {
    const size_t stages = workers_.size();
    for (size_t i = 0; i < stages; ++i) {
      if (i > 0) SayReady(*workers_[i], v1::ChannelReady::END_RECEIVER);
      if (i + 1 < stages) SayReady(*workers_[i], v1::ChannelReady::END_SENDER);
    }
    if (stages > 1 && offers) {
      SayReady(first(), v1::ChannelReady::END_FEEDBACK_RECEIVER);
      SayReady(last(), v1::ChannelReady::END_FEEDBACK_SENDER);
    }
    for (const auto& worker : workers_) {
      v1::FromWorker ready;
      ready.mutable_stage_ready()->set_term(1);
      ready.mutable_stage_ready()->set_epoch(1);
      worker->Say(ready);
    }
  }

  static void SayReady(FakeWorkerEnd& worker, v1::ChannelReady::End end) {
    v1::FromWorker ready;
    ready.mutable_channel_ready()->set_term(1);
    ready.mutable_channel_ready()->set_epoch(1);
    ready.mutable_channel_ready()->set_end(end);
    worker.Say(ready);
  }

  std::vector<std::shared_ptr<FakeWorkerEnd>> workers_;
};

}  // namespace layercake::coordinator::testing
