// A whole coordinator: options in, exit code out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/grpc_server.h"
#include "layercake/v1/inference.pb.h"

namespace layercake::coordinator {

struct CoordinatorProcessOptions {
  std::string model_path;  // resolved: a file
  std::string model_name;  // as clients see it; empty: from the file
  int stages = 1;
  std::string layers;  // "0-9,10-29"; empty: balanced by bytes
  std::string transport = "auto";
  std::string kv_type = "f16";  // as proto/kv_cache_type.h names them
  int context_tokens = 0;       // of one sequence; 0: the model's, at most 4,096
  int max_sequences = 64;       // running at once
  int max_queued = 1024;
  // Of one micro-batch. 0: 256, or 2,048 on devices whose memory is known (GPUs), where reading the
  // weights costs as much as computing hundreds of rows.
  int max_rows = 0;
  int prefill_rows = 0;   // prompt rows of one micro-batch; 0: as many as rows
  int max_in_flight = 0;  // micro-batches, at most; 0: one more than stages
  // Plan a stream's next row before its token is here, where every worker can (scheduler.h).
  bool run_ahead = true;
  // 0: what kv_memory_bytes says; without it what fits beside the weights where stage_memory_bytes
  // says how much there is, else enough for four full contexts and at least max_sequences blocks.
  int kv_blocks = 0;
  // Of each stage's device, at most; the stage with the most layers decides. 0: nothing is said.
  uint64_t kv_memory_bytes = 0;
  // Host memory of each stage for the KV blocks of sequences that give way; 0: they are computed
  // again.
  uint64_t kv_host_memory_bytes = 0;
  // Of each stage, bytes free for it on its device; 0 or missing: unknown.
  std::vector<uint64_t> stage_memory_bytes;
  // What these devices have in all, likewise shared out: for messages. 0 or missing: unknown.
  std::vector<uint64_t> stage_device_bytes;
  int max_output_tokens = 0;  // the operator's ceiling for one request; 0: none
  absl::Duration worker_wait = absl::Seconds(120);  // for all workers to dial in
  absl::Duration load_silence = absl::Seconds(30);  // a loading stage that makes no progress
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration step_timeout = absl::Seconds(60);
  absl::Duration shutdown_grace = absl::Seconds(10);
  GrpcServerOptions server;
};

// Called on the decision thread whenever the chain's state or a stage's loading progress changed,
// at most ten times a second while loading. `serve` draws its progress bars from it.
using StatusObserver = absl::AnyInvocable<void(const v1::GetStatusResponse&)>;

class CoordinatorProcess {
 public:
  virtual ~CoordinatorProcess() = default;
  // Ports are bound: addresses that workers and clients dial.
  virtual std::string client_address() const = 0;
  virtual std::string worker_address() const = 0;
  // Serves until RequestShutdown, or until the chain fails (its status is returned). Blocks.
  virtual absl::Status Run(StatusObserver observer) = 0;
  // From any thread or after a signal was seen: no new requests, running ones get the grace time,
  // workers are told to end, Run returns OK. A second call cuts the grace short.
  virtual void RequestShutdown() = 0;
};

// Checks the model in full and binds the ports before anything is loaded.
absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CreateCoordinatorProcess(
    CoordinatorProcessOptions options);

}  // namespace layercake::coordinator
