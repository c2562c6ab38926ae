// A whole stage worker: options in, exit code out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/grpc_channel.h"

namespace layercake::stage_worker {

struct WorkerProcessOptions {
  std::string coordinator;     // its worker address, "host:port"
  std::string device = "cpu";  // as kernels/device_choice.h has it: "cpu", "cuda:0", "auto"
  int threads = 0;             // of the CPU device; 0: all that this process may use
  std::string model_path;      // an own copy of the model; empty: the coordinator's path, if
                               // it is the same file here, else its bytes over the wire
  std::string worker_id;       // empty: "host:pid"
  std::string numa = "auto";   // threads and memory near a CUDA device; "off": where they are
  // Whether threads look for what is about to come instead of sleeping (StepLoopOptions::poll):
  // "auto": on a GPU with cores enough, "on", "off".
  std::string poll = "auto";
  bool deterministic = false;  // CudaOpsOptions; on the CPU everything always is
  std::optional<int> preferred_stage;
  std::vector<std::string> transports = {"cuda_ipc", "pinned_host", "ucx"};  // that may be used
  std::string socket_folder;    // of pinned_host; empty: DefaultSocketFolder()
  std::string ucx_tls = "all";  // UCX's own names
  TlsFiles tls;                 // empty: no TLS
  absl::Duration connect_timeout = absl::Seconds(30);  // until the coordinator answers
  // Started as a child: the read end of a pipe whose write end only the parent holds. When the
  // parent dies the worker ends. SIGINT is then the parent's to handle (Ctrl-C reaches both).
  int parent_pipe_fd = -1;
};

// Runs until the coordinator ends it, a signal (SIGTERM, SIGINT) or the parent's death ends it, or
// it fails; says why on the log. 0: ended in order. 1: failed. 2: options that make no sense.
// Call from main before any thread is started: it blocks the two signals for all of them.
int RunWorkerProcess(const WorkerProcessOptions& options);

}  // namespace layercake::stage_worker
