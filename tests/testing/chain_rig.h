// A whole chain in one process: the real engine, the real workers, real channels, one event loop.
// Only the Session is a pair of queues instead of gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator_process.h"
#include "coordinator/engine.h"

namespace layercake::testing {

struct RigOptions {
  coordinator::CoordinatorProcessOptions chain;  // model_path, stages, layers, transport, ...
  int threads = 1;                               // of each stage's device
  std::string ucx_tls = "tcp";
  size_t max_pending_bytes = 1 << 20;  // of one client, before it is paused
  absl::Duration reader_timeout = absl::Seconds(30);
};

// What became of one request.
struct Outcome {
  std::vector<int32_t> tokens;  // as delivered
  std::vector<v1::TokenLogprob> logprobs;
  std::vector<v1::TokenLogprob> prompt_logprobs;
  std::string text;
  v1::Finished finished;
  absl::Status error;
};

class ChainRig {
 public:
  // Returns when the chain serves.
  static absl::StatusOr<std::unique_ptr<ChainRig>> Start(const RigOptions& options);
  virtual ~ChainRig() = default;

  // All at once; returns when every one has ended.
  virtual absl::StatusOr<std::vector<Outcome>> Run(
      std::vector<coordinator::PreparedRequest> requests) = 0;
  // For clients that do more than wait: cancel, stop reading.
  virtual coordinator::Engine& engine() = 0;
  virtual v1::GetLoadsResponse Loads() = 0;
  // How often a sequence gave way to host memory so far.
  virtual int64_t CopiedPreemptions() = 0;
  virtual v1::GetStatusResponse Status() = 0;
};

// A greedy request without penalties.
coordinator::PreparedRequest Greedy(std::vector<int32_t> prompt, int max_tokens,
                                    int top_logprobs = -1);

}  // namespace layercake::testing
