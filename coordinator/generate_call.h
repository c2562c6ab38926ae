// One Generate stream: what the engine says about a request, on its way to the client.
//
// A client that reads slowly gets fewer, larger deltas: those that wait are merged. At most one
// write is in gRPC's hands.
// Thread rule: the sink's methods on the decision thread, the reactions on gRPC's threads. Calls
// into gRPC are chosen under the mutex and made outside of it; Finish is the last of them.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine.h"
#include "grpcpp/support/server_callback.h"

namespace layercake::coordinator {

class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public RequestSink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // `on_done` runs on a gRPC thread when the call is over. The call keeps itself alive until then.
  static std::shared_ptr<GenerateCall> Create(grpc::CallbackServerContext* context,
                                              size_t max_pending_bytes,
                                              absl::AnyInvocable<void()> on_done);

  // Hands the request to the engine, which then owns the call's events.
  void Submit(Engine& engine, PreparedRequest request);

  void OnStarted(const v1::Started& started) override;
  void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) override;
  void OnDelta(v1::Delta delta) override;
  void OnFinished(const v1::Finished& finished) override;
  void OnError(const absl::Status& status) override;
  size_t pending_bytes() const override { return pending_bytes_.load(std::memory_order_relaxed); }

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Act { kNone, kWrite, kCancel, kFinish };
  struct Queued {
    v1::GenerateResponse response;
    size_t bytes = 0;
  };

  GenerateCall(grpc::CallbackServerContext* context, size_t max_pending_bytes,
               absl::AnyInvocable<void()> on_done)
      : context_(context), max_pending_bytes_(max_pending_bytes), on_done_(std::move(on_done)) {}

  void Enqueue(v1::GenerateResponse response);
  // True when `delta` went into the last waiting response.
  bool Merge(const v1::Delta& delta, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPending(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Break(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(absl::Status status);
  Act Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump();

  grpc::CallbackServerContext* const context_;
  const size_t max_pending_bytes_;
  std::atomic<size_t> pending_bytes_ = 0;

  absl::Mutex mutex_;
  absl::AnyInvocable<void()> on_done_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  Engine* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;            // after Submit
  int open_choices_ ABSL_GUARDED_BY(mutex_) = 1;                // that have not ended
  // The front is in gRPC's hands while write_in_flight_.
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  // Set once: no further event is taken. The call ends with it when the queue is empty.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nobody reads: the queue is dropped
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // threads inside a call into gRPC
};

}  // namespace layercake::coordinator
