// The coordinator's front: requests in, events out. Services (gRPC now, HTTP later) see only this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "coordinator/fair_queue.h"
#include "layercake/v1/inference.pb.h"
#include "proto/link.h"

namespace layercake::coordinator {

// A request that has been checked and tokenized (RequestPreparer): nothing in it can be wrong any
// more, and prompt + max_tokens fit the served context.
struct PreparedRequest {
  std::string request_id;       // empty: the engine chooses
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_tokens = 0;       // >= 1
  v1::ResolvedSampling sampling;
  std::vector<std::string> stop;
  absl::flat_hash_set<int32_t> stop_token_ids;
  bool ignore_end_of_generation = false;
  bool prompt_logprobs = false;
  std::string client;  // peer or key, for fairness and logs
  Priority priority = Priority::kInteractive;
  bool use_prefix_cache = true;
  // Choices, >= 1. The first draws from sampling.seed, the others from seeds that follow from it.
  int n = 1;
};

// Receives what becomes of one request. Called on the decision thread; must return at once and must
// not call the engine back. After the OnFinished of the last choice, or after OnError, nothing more
// is called.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnStarted(const v1::Started& started) = 0;
  virtual void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) = 0;
  virtual void OnDelta(v1::Delta delta) = 0;
  virtual void OnFinished(const v1::Finished& finished) = 0;  // of one choice
  virtual void OnError(const absl::Status& status) = 0;       // made by MakeError
  // Bytes handed over that the client has not taken yet; the engine pauses or cancels a request
  // whose reader stands still (bounds in EngineOptions).
  virtual size_t pending_bytes() const = 0;
};

// Thread-safe: every method posts to the decision thread and returns at once.
class Engine {
 public:
  virtual ~Engine() = default;

  // `sink` is shared with the service's call object: both outlive each other's last use. Errors
  // (queue full, not ready, id in use) come through the sink.
  virtual void Submit(PreparedRequest request, std::shared_ptr<RequestSink> sink) = 0;
  // The client of this sink is gone: everything about its request is dropped, no event follows.
  virtual void Drop(std::shared_ptr<RequestSink> sink) = 0;
  // Ends requests by id with FINISH_REASON_CANCELLED. Unknown ids are ignored.
  virtual void Abort(std::vector<std::string> request_ids) = 0;

  // The answer is delivered on the decision thread.
  virtual void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) = 0;
  virtual void GetLoads(absl::AnyInvocable<void(v1::GetLoadsResponse)> done) = 0;

  // A worker opened a Session. The link's executor is the decision thread's.
  virtual void AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer) = 0;
};

}  // namespace layercake::coordinator
