// The chain of stage workers as the coordinator sees it: who they are, how far they are, whether
// they live, and the way of plans down and results back.
//
//   waiting for workers -> loading -> connecting -> testing -> serving -> (failed | draining)
//
// Every state has a deadline. Until recovery exists, the first fault ends the chain: on_failed says
// whose fault it was and why, and every worker is told to end.
// Thread rule: the decision thread only. Callbacks may not destroy the chain.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "coordinator/chain_plan.h"
#include "coordinator/warm_up.h"
#include "layercake/v1/inference.pb.h"
#include "proto/link.h"

namespace layercake::coordinator {

struct ChainOptions {
  ChainPlan plan;
  uint64_t term = 1;
  int32_t test_token = 0;                         // what the prompts before serving are made of
  absl::Duration warm_up = absl::ZeroDuration();  // for those behind the test of the chain (WarmUp)
  absl::Duration heartbeat = absl::Seconds(1);
  absl::Duration lease = absl::Seconds(5);           // silence that ends a worker's session
  absl::Duration hello_timeout = absl::Seconds(10);  // from a session's start to its Hello
  absl::Duration worker_wait = absl::Seconds(120);
  absl::Duration load_silence = absl::Seconds(30);
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration step_timeout = absl::Seconds(60);
  // Who misses a neighbour may be heard before that neighbour's own session ends: the kernel closes
  // what a killed process had one by one, with its device's memory between.
  absl::Duration others_speak = absl::Seconds(1);
};

class Chain {
 public:
  struct Events {
    absl::AnyInvocable<void()> on_serving;
    absl::AnyInvocable<void(v1::StepResult)> on_step_result;  // in the order of the plans
    // What a serving stage says of itself with each heartbeat.
    absl::AnyInvocable<void(int stage, const v1::StageCounters&)> on_stage_counters = nullptr;
    // A stage has loaded: what it takes and what it measured.
    absl::AnyInvocable<void(int stage, const v1::StageReady&)> on_stage_ready = nullptr;
    absl::AnyInvocable<void(absl::Status)> on_failed;  // once
    absl::AnyInvocable<void()> on_changed;             // state or progress
  };

  Chain(ChainOptions options, const base::Clock& clock, base::Timers& timers,
        base::Executor& executor, Events events);
  ~Chain();
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  void Start();
  void AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer);

  // Sends the plan to stage 0 with the next step number, which is returned. FailedPrecondition
  // unless serving.
  absl::StatusOr<uint64_t> SendPlan(v1::MicroBatchPlan plan);

  // Serving ends: tells every worker to finish within `grace` and closes the sessions.
  void Shutdown(const std::string& reason, absl::Duration grace);

  // The chain cannot go on, by somebody else's finding (a result that makes no sense).
  void Fail(absl::Status status);

  v1::ChainState state() const { return state_; }
  const absl::Status& failure() const { return failure_; }
  int plans_in_flight() const { return static_cast<int>(in_flight_.size()); }
  // Every stage has its worker, and each of them said in its Hello that it can do this.
  bool all_offer(v1::Capability capability) const;
  void FillStatus(v1::GetStatusResponse& response) const;

 private:
  struct Worker {
    std::unique_ptr<CoordinatorLink> link;
    std::string peer;
    std::optional<v1::Hello> hello;
    int stage = -1;
    base::Instant opened;
    base::Instant last_heard;
    base::Instant last_progress;  // while loading
    uint64_t heard_number = 0;    // of its heartbeats
    v1::Heartbeat heartbeat;
    base::Instant heartbeat_at;
    v1::LoadProgress progress;
    std::optional<v1::StageReady> ready;
    std::optional<v1::ChannelReady> receiver;  // of its upstream channel
    std::optional<v1::ChannelReady> sender;    // of its upstream channel, seen from the other end
    // Stage 0: the two ends of the way back from the last stage.
    std::optional<v1::ChannelReady> feedback_receiver;
    std::optional<v1::ChannelReady> feedback_sender;
    bool misses_another = false;  // its last words: a channel of its has ended

    bool loaded() const {
      return progress.total_bytes() > 0 && progress.loaded_bytes() == progress.total_bytes();
    }
  };
  struct InFlight {
    uint64_t step = 0;
    base::Instant sent;
  };
  using SessionId = uint64_t;

  void OnMessage(SessionId id, v1::FromWorker message);
  void OnClosed(SessionId id, const absl::Status& reason);
  void OnHello(SessionId id, Worker& worker, v1::Hello hello);
  absl::Status OnAssignedMessage(Worker& worker, v1::FromWorker& message);
  absl::Status OnChannelOffer(Worker& worker, v1::ChannelOffer offer);
  absl::Status OnChannelReady(Worker& worker, const v1::ChannelReady& ready);
  absl::Status OnStepResult(const Worker& worker, v1::StepResult result);
  // Fails the chain with `status`, what `worker` said of a neighbour, unless another stage's end
  // explains it first.
  void OnMissing(Worker& worker, absl::Status status);
  absl::Status CheckEpoch(uint64_t term, uint32_t epoch) const;
  // Sampled tokens go from the last stage to the first by a channel of their own.
  bool has_feedback() const;
  // A channel that is not up: "the channel from stage 0 to stage 1 (...)"; empty when all are.
  std::string MissingChannel() const;
  // The stage for this worker, or why it gets none.
  absl::StatusOr<int> ChooseStage(const v1::Hello& hello) const;

  void Refuse(SessionId id, const absl::Status& reason);
  void Assign();
  void AdvanceStartup();
  // A prompt of warm_up_.rows().
  absl::Status SendTest();
  // What came back of it; serving begins, or the next one goes.
  absl::Status OnTestResult(const v1::StepResult& result, base::Instant sent);
  void SetState(v1::ChainState state);
  void DropLink(Worker& worker, const absl::Status& reason);

  void Tick();
  void CheckSessions(base::Instant now);
  void CheckDeadlines(base::Instant now);
  void CheckLoading(base::Instant now);
  absl::Status StuckStep(const InFlight& step, base::Instant now) const;

  Worker* StageWorkerOf(int stage);
  const Worker* StageWorkerOf(int stage) const;
  std::string Describe(const Worker& worker) const;
  std::string MissingStages() const;
  int stage_count() const { return static_cast<int>(options_.plan.stages.size()); }
  absl::StatusOr<uint64_t> Transmit(v1::MicroBatchPlan plan);

  const ChainOptions options_;
  const base::Clock& clock_;
  base::Timers& timers_;
  base::Executor& executor_;
  Events events_;

  v1::ChainState state_ = v1::CHAIN_STATE_UNSPECIFIED;
  absl::Status failure_;
  uint32_t epoch_ = 1;
  std::map<SessionId, Worker> workers_;
  SessionId next_session_ = 1;
  // Closed links, destroyed from a task of their own: a link may be on the stack when it closes.
  std::shared_ptr<std::vector<std::unique_ptr<CoordinatorLink>>> closed_links_;

  WarmUp warm_up_;
  uint64_t next_step_ = 1;
  std::deque<InFlight> in_flight_;
  base::Instant state_since_;
  base::Instant last_tick_;
  base::Instant judge_after_;  // nobody's lease is judged before, after a stall of our own
  uint64_t heartbeat_number_ = 0;
  base::TimerId tick_ = base::TimerId::kNone;
  base::TimerId missing_ = base::TimerId::kNone;  // OnMissing waits for the others
};

}  // namespace layercake::coordinator
