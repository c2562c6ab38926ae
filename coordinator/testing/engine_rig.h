// An engine over a chain that the test plays: it answers plans with tokens that follow from the
// token before and the position, so that what a request must be told is known.
//
// One thread, virtual time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/virtual_loop.h"
#include "coordinator/engine_impl.h"
#include "coordinator/testing/played_workers.h"
#include "coordinator/testing/word_tokenizer.h"

namespace layercake::coordinator::testing {

// What the played model says after `token` at `position`. Words of MakeWordTokenizer without an end
// of generation and without bytes of longer characters.
inline int32_t TokenAfter(int32_t token, int position) { return (3 * token + position + 1) % 7; }

class RigSink final : public RequestSink {
 public:
  void OnStarted(const v1::Started& event) override { started = event; }
  void OnPromptLogprobs(const v1::PromptLogprobs&) override {}
  void OnDelta(v1::Delta event) override {
    if (finished || !error.ok()) late = true;
    tokens.insert(tokens.end(), event.token_ids().begin(), event.token_ids().end());
    for (const v1::TokenLogprob& one : event.logprobs()) logprobs.push_back(one.token());
    if (!reads) unread += event.text().size();
  }
  void OnFinished(const v1::Finished& event) override {
    if (finished) late = true;
    finished = event;
  }
  void OnError(const absl::Status& event) override { error = event; }
  size_t pending_bytes() const override { return unread; }

  std::optional<v1::Started> started;
  std::vector<int32_t> tokens;
  std::vector<int32_t> logprobs;
  std::optional<v1::Finished> finished;
  absl::Status error;
  bool late = false;  // something came after the end
  bool reads = true;
  size_t unread = 0;
};

class EngineRig {
 public:
  // `offers`: the workers can take the token of an earlier step.
  EngineRig(SchedulerOptions scheduler, bool offers) {
    EngineOptions options;
    const int stages = scheduler.stages;
    for (int i = 0; i < stages; ++i) {
      options.chain.plan.stages.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
    }
    options.chain.plan.ring.set_plan_slot_bytes(1 << 20);
    options.chain.lease = absl::InfiniteDuration();
    options.scheduler = scheduler;
    options.max_pending_bytes = 20;
    engine_ = std::make_unique<EngineImpl>(
        options, *tokenizer_, loop_, loop_, loop_, random_,
        EngineImpl::Events{.on_changed = [] {},
                           .on_ready = [](bool) {},
                           .on_stopped = [this](absl::Status status) { stopped = status; }});
    engine_->Start();
    workers_.emplace(*engine_, loop_, stages, offers);
  }

  std::shared_ptr<RigSink> Ask(PreparedRequest request) {
    auto sink = std::make_shared<RigSink>();
    engine_->Submit(std::move(request), sink);
    loop_.RunPosted();
    return sink;
  }
  void Drop(const std::shared_ptr<RigSink>& sink) {
    engine_->Drop(sink);
    loop_.RunPosted();
  }
  v1::GetLoadsResponse Loads() {
    v1::GetLoadsResponse loads;
    engine_->GetLoads([&](v1::GetLoadsResponse response) { loads = std::move(response); });
    loop_.RunPosted();
    return loads;
  }
  void Advance(absl::Duration time) { loop_.Advance(time); }

  // Plans that were sent, and how many of them were answered.
  int sent() const { return static_cast<int>(workers_->first().received.size()); }
  int answered() const { return answered_; }
  const v1::MicroBatchPlan& plan(int index) const {
    return workers_->first().received[static_cast<size_t>(index)].plan();
  }

  // Answers the oldest plan; false when there is none. `broken`: this sequence met a NaN.
  bool Answer(uint64_t broken = 0) {
    if (answered_ >= sent()) return false;
    const v1::MicroBatchPlan asked = plan(answered_++);
    v1::FromWorker message;
    v1::StepResult& result = *message.mutable_step_result();
    result.set_term(1);
    result.set_epoch(1);
    result.set_step(asked.step());
    for (const v1::RowDescriptor& row : asked.rows()) {
      rows += row.tokens_size();
      if (row.token_of_step() != 0) ++ahead_rows;
      if (row.sample_bitmap().empty()) continue;
      AddResult(asked.step(), row, row.sequence() == broken, result);
    }
    workers_->last().Say(message);
    loop_.RunPosted();
    return true;
  }
  void AnswerAll() {
    while (Answer()) {
    }
  }

  int rows = 0;         // of answered plans
  int ahead_rows = 0;   // whose token was that of another step
  int wrong_steps = 0;  // of these, the ones that name a step which did not sample them
  std::optional<absl::Status> stopped;

 private:
  void AddResult(uint64_t step, const v1::RowDescriptor& row, bool broken, v1::StepResult& result) {
    v1::SequenceResult& one = *result.add_results();
    one.set_sequence(row.sequence());
    if (broken) {
      one.set_non_finite_stage(0);
      return;
    }
    const int last = static_cast<int>(row.kv_position()) + row.tokens_size() - 1;
    int32_t token = row.tokens(row.tokens_size() - 1);
    if (row.token_of_step() != 0) {
      const auto sampled = sampled_.find({row.sequence(), row.token_of_step()});
      wrong_steps += sampled == sampled_.end() ? 1 : 0;
      token = sampled == sampled_.end() ? 0 : sampled->second;
    }
    const int32_t next = TokenAfter(token, last);
    sampled_[{row.sequence(), step}] = next;
    one.set_position(static_cast<uint32_t>(last) + 1);
    one.add_tokens()->set_token(next);
    one.mutable_tokens(0)->mutable_logprob()->set_token(next);
  }

  base::VirtualLoop loop_;
  base::SeededRandom random_{1};
  const std::unique_ptr<model::Tokenizer> tokenizer_ = MakeWordTokenizer();
  std::unique_ptr<EngineImpl> engine_;
  std::optional<PlayedWorkers> workers_;
  std::map<std::pair<uint64_t, uint64_t>, int32_t> sampled_;  // by sequence and step
  int answered_ = 0;
};

// What must come after `prompt`.
inline std::vector<int32_t> RightTokens(const std::vector<int32_t>& prompt, int count) {
  std::vector<int32_t> tokens;
  int32_t token = prompt.back();
  for (int i = 0; i < count; ++i) {
    token = TokenAfter(token, static_cast<int>(prompt.size()) - 1 + i);
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace layercake::coordinator::testing
