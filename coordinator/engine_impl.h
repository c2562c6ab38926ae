// The decisions between requests and chain: what is known of each request, which plan goes out
// next, what a result means for its client.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/random.h"
#include "coordinator/chain.h"
#include "coordinator/engine.h"
#include "coordinator/request_state.h"
#include "coordinator/scheduler.h"

namespace layercake::coordinator {

struct EngineOptions {
  ChainOptions chain;
  SchedulerOptions scheduler;
  std::string model_name;
  // A client that has not taken this many bytes is paused; after reader_timeout it is dropped.
  size_t max_pending_bytes = 1 << 20;
  absl::Duration reader_timeout = absl::Seconds(30);
};

// Public methods of Engine: any thread. The rest: the decision thread, that is `executor`'s.
// Everything referred to outlives the engine; the executor has stopped when the engine goes.
class EngineImpl final : public Engine {
 public:
  struct Events {
    absl::AnyInvocable<void()> on_changed;              // state or loading progress
    absl::AnyInvocable<void(bool)> on_ready;            // requests are taken, or no longer
    absl::AnyInvocable<void(absl::Status)> on_stopped;  // drained (OK), or the chain failed
  };

  EngineImpl(EngineOptions options, const model::Tokenizer& tokenizer, const base::Clock& clock,
             base::Executor& executor, base::Timers& timers, base::Random& random, Events events);
  ~EngineImpl() override;

  void Start();
  // No new requests; running ones get `grace`, then end with an error; then the chain is shut down
  // and on_stopped runs. A second call ends them at once.
  void Drain(absl::Duration grace);
  v1::GetStatusResponse Status() const;
  // How often a sequence out of blocks was copied to host memory (coordinator/host_blocks.h).
  int64_t copied_preemptions() const { return scheduler_.copied_preemptions(); }

  void Submit(PreparedRequest request, std::shared_ptr<RequestSink> sink) override;
  void Drop(std::shared_ptr<RequestSink> sink) override;
  void Abort(std::vector<std::string> request_ids) override;
  void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) override;
  void GetLoads(absl::AnyInvocable<void(v1::GetLoadsResponse)> done) override;
  void AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer) override;

 private:
  // Whose a sequence is.
  struct Owner {
    RequestState* request = nullptr;
    ChoiceState* choice = nullptr;
  };

  v1::GetLoadsResponse Loads() const;
  void DoSubmit(PreparedRequest request, std::shared_ptr<RequestSink> sink);
  absl::Status CheckAdmission(const PreparedRequest& request) const;
  void DoAbort(const std::string& request_id);

  void AllowRunAhead();
  // Sends plans while the scheduler has any.
  void Pump();
  v1::MicroBatchPlan BuildPlan(const ScheduledStep& step);
  void AddRows(const ScheduledRows& rows, v1::MicroBatchPlan& plan);
  void AddBegin(const ScheduledRows& rows, const Owner& owner, v1::MicroBatchPlan& plan);
  void SendStarted(RequestState& request, SequenceId sequence);

  void OnStepResult(v1::StepResult result);
  // DataLoss when the result does not fit what was asked.
  absl::Status OnSequenceResult(const Owner& owner, v1::SequenceResult& result);
  absl::Status OnToken(const Owner& owner, v1::SampledToken& token);
  void OnStageCounters(int stage, const v1::StageCounters& counters);
  void OnStageReady(int stage, const v1::StageReady& ready);
  void SendPromptLogprobs(RequestState& request, v1::SequenceResult& result);
  void SendDelta(RequestState& request, std::optional<v1::Delta> delta);

  // Ends one choice; after the last one the request is forgotten.
  void Finish(const Owner& owner, v1::FinishReason reason, const std::string& matched_stop,
              int32_t matched_token);
  void FailRequest(RequestState& request, const absl::Status& error);
  void Forget(RequestState& request);
  void EndAll(const absl::Status& error);
  void OnChainFailed(const absl::Status& status);
  void StopIfDrained();
  void CheckReaders();
  void ArmQueueTimer();
  void CheckQueue();

  const EngineOptions options_;
  const model::Tokenizer& tokenizer_;
  const base::Clock& clock_;
  base::Executor& executor_;
  base::Timers& timers_;
  base::Random& random_;
  Events events_;

  Scheduler scheduler_;
  Chain chain_;
  std::map<SequenceId, std::unique_ptr<RequestState>> requests_;  // by their first choice
  absl::flat_hash_map<SequenceId, Owner> by_sequence_;            // of choices that have not ended
  absl::flat_hash_map<std::string, SequenceId> by_request_id_;
  absl::flat_hash_map<const RequestSink*, SequenceId> by_sink_;
  // Of the scheduler, in order; the chain counts from another number.
  std::deque<StepId> in_flight_;
  uint64_t chain_step_offset_ = 0;
  uint64_t next_sequence_ = 1;
  base::Instant started_;
  bool draining_ = false;
  bool stopped_ = false;
  base::TimerId grace_timer_ = base::TimerId::kNone;
  base::TimerId reader_timer_ = base::TimerId::kNone;
  base::TimerId queue_timer_ = base::TimerId::kNone;
  base::Instant queue_timer_due_ = base::Instant::Infinite();
  uint64_t prompt_tokens_total_ = 0;
  uint64_t output_tokens_total_ = 0;
  uint64_t steps_total_ = 0;
};

}  // namespace layercake::coordinator
