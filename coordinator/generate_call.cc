#include "coordinator/generate_call.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "proto/errors.h"
#include "proto/protocol_version.h"
#include "proto/rpc_status.h"

namespace layercake::coordinator {
namespace {

// A response grows by merging up to this, far below the message limit.
constexpr size_t kMaxMergedBytes = kMaxInferenceResponseBytes / 4;

}  // namespace

std::shared_ptr<GenerateCall> GenerateCall::Create(grpc::CallbackServerContext* context,
                                                   size_t max_pending_bytes,
                                                   absl::AnyInvocable<void()> on_done) {
  std::shared_ptr<GenerateCall> call(
      new GenerateCall(context, max_pending_bytes, std::move(on_done)));
  absl::MutexLock lock(&call->mutex_);
  call->self_ = call;
  return call;
}

void GenerateCall::Submit(Engine& engine, PreparedRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    engine_ = &engine;
    open_choices_ = request.n;
  }
  engine.Submit(std::move(request), shared_from_this());
}

void GenerateCall::OnStarted(const v1::Started& started) {
  v1::GenerateResponse response;
  *response.mutable_started() = started;
  Enqueue(std::move(response));
}

void GenerateCall::OnPromptLogprobs(const v1::PromptLogprobs& logprobs) {
  // A long prompt's would outgrow the message limit: several messages, each saying where it starts.
  v1::GenerateResponse response;
  size_t bytes = 0;
  for (int i = 0; i < logprobs.logprobs_size(); ++i) {
    v1::PromptLogprobs* part = response.mutable_prompt_logprobs();
    if (part->logprobs_size() == 0) part->set_first(logprobs.first() + i);
    *part->add_logprobs() = logprobs.logprobs(i);
    bytes += logprobs.logprobs(i).ByteSizeLong();
    if (bytes < kMaxMergedBytes && i + 1 < logprobs.logprobs_size()) continue;
    Enqueue(std::move(response));
    response = v1::GenerateResponse();
    bytes = 0;
  }
}

void GenerateCall::OnDelta(v1::Delta delta) {
  bool merged = false;
  {
    absl::MutexLock lock(&mutex_);
    const size_t bytes = delta.ByteSizeLong();
    merged = !end_ && Merge(delta, bytes);
    if (merged) AddPending(bytes);
  }
  if (merged) return Pump();
  v1::GenerateResponse response;
  *response.mutable_delta() = std::move(delta);
  Enqueue(std::move(response));
}

void GenerateCall::OnFinished(const v1::Finished& finished) {
  v1::GenerateResponse response;
  *response.mutable_finished() = finished;
  Enqueue(std::move(response));
  bool last = false;
  {
    absl::MutexLock lock(&mutex_);
    last = --open_choices_ == 0;
  }
  if (last) End(absl::OkStatus());
}

void GenerateCall::OnError(const absl::Status& status) { End(status); }

void GenerateCall::Enqueue(v1::GenerateResponse response) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_) {
      const size_t bytes = response.ByteSizeLong();
      queue_.push_back({std::move(response), bytes});
      AddPending(bytes);
    }
  }
  Pump();
}

bool GenerateCall::Merge(const v1::Delta& delta, size_t bytes) {
  if (queue_.size() < (write_in_flight_ ? 2u : 1u)) return false;
  Queued& last = queue_.back();
  if (!last.response.has_delta() || last.response.delta().index() != delta.index() ||
      last.bytes + bytes > kMaxMergedBytes) {
    return false;
  }
  v1::Delta* merged = last.response.mutable_delta();
  merged->mutable_token_ids()->MergeFrom(delta.token_ids());
  merged->mutable_text()->append(delta.text());
  merged->mutable_logprobs()->MergeFrom(delta.logprobs());
  last.bytes += bytes;
  return true;
}

void GenerateCall::AddPending(size_t bytes) {
  const size_t pending = pending_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (pending <= max_pending_bytes_) return;
  // The write that is in flight may never end by itself: cancelling ends it, and OnCancel tells the
  // engine (which may not be called from here).
  cancel_wanted_ = true;
  Break(MakeError(ErrorReason::kCancelled,
                  absl::StrCat("the client left ", pending, " bytes unread; the limit is ",
                               max_pending_bytes_)));
}

void GenerateCall::Break(absl::Status status) {
  if (!end_) end_ = std::move(status);
  broken_ = true;
}

void GenerateCall::End(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
  }
  Pump();
}

GenerateCall::Act GenerateCall::Next() {
  if (finished_) return Act::kNone;
  if (cancel_wanted_) {
    cancel_wanted_ = false;
    return Act::kCancel;
  }
  if (write_in_flight_) return Act::kNone;
  if (!broken_ && !queue_.empty()) {
    write_in_flight_ = true;
    return Act::kWrite;
  }
  if (end_ && busy_ == 0) {
    finished_ = true;
    return Act::kFinish;
  }
  return Act::kNone;
}

void GenerateCall::Pump() {
  const std::shared_ptr<GenerateCall> self = shared_from_this();  // OnDone may come at any time
  for (;;) {
    Act act;
    const v1::GenerateResponse* response = nullptr;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      act = Next();
      if (act == Act::kNone) return;
      if (act == Act::kWrite) response = &queue_.front().response;
      if (act == Act::kFinish) status = *end_;
      ++busy_;
    }
    if (act == Act::kWrite) StartWrite(response);
    if (act == Act::kCancel) context_->TryCancel();
    if (act == Act::kFinish) Finish(ToGrpcStatus(status));
    absl::MutexLock lock(&mutex_);
    --busy_;
  }
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    write_in_flight_ = false;
    pending_bytes_.fetch_sub(queue_.front().bytes, std::memory_order_relaxed);
    queue_.pop_front();
    // OnCancel follows, and has the engine drop the request.
    if (!ok) Break(MakeError(ErrorReason::kCancelled, "the client is gone"));
  }
  Pump();
}

void GenerateCall::OnCancel() {
  Engine* engine = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    Break(MakeError(ErrorReason::kCancelled, "the client cancelled, or its deadline passed"));
    engine = engine_;
  }
  // Also after the last event: the engine knows which sinks are still of interest.
  if (engine != nullptr) engine->Drop(shared_from_this());
  Pump();
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;
  absl::AnyInvocable<void()> on_done;
  std::deque<Queued> queue;
  {
    absl::MutexLock lock(&mutex_);
    self.swap(self_);
    on_done = std::move(on_done_);
    queue.swap(queue_);
    pending_bytes_.store(0, std::memory_order_relaxed);
  }
  on_done();
}

}  // namespace layercake::coordinator
