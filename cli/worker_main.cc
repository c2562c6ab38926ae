// layercake-worker: one stage of a chain, for a coordinator that it dials.
#include <iostream>
#include <memory>

#include "cli/exit_code.h"
#include "cli/logging.h"
#include "cli/model_path.h"
#include "stage_worker/worker_process.h"

namespace layercake::cli {
namespace {

struct WorkerFlags {
  stage_worker::WorkerProcessOptions worker;
  std::string model;
  std::string log_level = "info";
};

int Run(WorkerFlags flags, const Environment& environment) {
  SetUpLogging("layercake-worker", flags.log_level, environment);
  stage_worker::WorkerProcessOptions& options = flags.worker;
  if (options.coordinator.empty()) options.coordinator = LeaderAddress(environment);
  if (options.coordinator.empty()) {
    std::cerr << "layercake-worker: name the coordinator with --coordinator host:port, "
                 "LAYERCAKE_COORDINATOR, or LWS_LEADER_ADDRESS\n";
    return kExitUsage;
  }
  options.coordinator = WithDefaultPort(options.coordinator, kDefaultWorkerPort);
  if (!flags.model.empty()) {
    const auto path = ResolveModelPath(flags.model, environment);
    if (!path.ok()) {
      std::cerr << "layercake-worker: " << path.status().message() << "\n";
      return kExitFailed;
    }
    options.model_path = *path;
  }
  return stage_worker::RunWorkerProcess(options);
}

void AddFlags(FlagTable& table, WorkerFlags* flags) {
  stage_worker::WorkerProcessOptions* worker = &flags->worker;
  table.Text("--coordinator", &worker->coordinator,
             "Its address for workers, host:port; else LWS_LEADER_ADDRESS");
  table.OptionalInteger("--stage", &worker->preferred_stage, 0, 1023,
                        "The stage to ask for (default: any)");
  table.Text("--device", &worker->device, "cpu");
  table.Integer("--threads", &worker->threads, 0, 4096, "Threads (default: every core)");
  table.Choice("--numa", &worker->numa, {"auto", "off"},
               "Threads and pinned memory near the GPU, or where they are (default auto)");
  table.Choice("--poll", &worker->poll, {"auto", "on", "off"},
               "Threads stay awake for what is about to come (default auto: on GPUs with 4 cores "
               "each)");
  table.Switch("--deterministic", &worker->deterministic,
               "On a GPU: a row's bits are the same in a micro-batch of any size; prompts take "
               "several times as long");
  table.Text("--model", &flags->model,
             "An own copy of the model (default: the coordinator's path, or its bytes)");
  table.Text("--worker-id", &worker->worker_id, "Name in status and logs (default: host:pid)");
  table.List("--transports", &worker->transports, "Kinds that may be used");
  table.Text("--socket-folder", &worker->socket_folder,
             "Of the sockets of pinned_host and cuda_ipc");
  table.Text("--ucx-tls", &worker->ucx_tls, "UCX's own choice of networks (UCX_TLS)");
  table.Text("--tls-certificate", &worker->tls.certificate,
             "PEM file; with --tls-key and --tls-authority: mutual TLS");
  table.Text("--tls-key", &worker->tls.key, "PEM file");
  table.Text("--tls-authority", &worker->tls.authority,
             "PEM file: who signs the coordinator's certificate");
  table.Duration("--connect-timeout", &worker->connect_timeout, "Until the coordinator answers");
  table.Integer("--parent-pipe-fd", &worker->parent_pipe_fd, -1, 1 << 20,
                "The worker ends when the other end of this pipe closes");
  AddLogFlag(table, &flags->log_level);
}

}  // namespace
}  // namespace layercake::cli

int main(int argc, char** argv) {
  using namespace layercake::cli;  // NOLINT: main is outside every namespace
  const Environment environment = Environment::FromProcess();
  auto flags = std::make_shared<WorkerFlags>();
  Program program("layercake-worker", "Runs one stage of a model for a coordinator.");
  AddFlags(program.Main([&] { return Run(*flags, environment); }), flags.get());
  return program.Run(argc, argv, environment, std::cout, std::cerr);
}
