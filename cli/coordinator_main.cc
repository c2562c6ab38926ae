// layercake-coordinator: a coordinator alone; workers dial in from wherever they run.
#include <signal.h>

#include <iostream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/chain_flags.h"
#include "cli/exit_code.h"
#include "cli/foreground.h"
#include "cli/logging.h"
#include "cli/model_path.h"

namespace layercake::cli {
namespace {

struct CoordinatorFlags {
  std::string model;
  ChainFlags chain;
};

absl::Status Serve(const coordinator::CoordinatorProcessOptions& options) {
  LC_ASSIGN_OR_RETURN(const auto foreground, Foreground::Create());
  LC_ASSIGN_OR_RETURN(const auto coordinator, coordinator::CreateCoordinatorProcess(options));
  std::cout << "clients: " << coordinator->client_address()
            << "\nworkers: " << coordinator->worker_address() << std::endl;
  foreground->OnSignal([&](int) { coordinator->RequestShutdown(); });
  absl::Status result;
  std::thread runner([&] {
    result = coordinator->Run(/*observer=*/[](const v1::GetStatusResponse&) {});
    foreground->loop().Stop();
  });
  foreground->loop().Run();
  runner.join();
  return result;
}

int Run(CoordinatorFlags flags, const Environment& environment) {
  SetUpLogging("layercake-coordinator", flags.chain.log_level, environment);
  const auto model = ResolveModelPath(flags.model, environment);
  if (!model.ok()) {
    std::cerr << "layercake-coordinator: " << model.status().message() << "\n";
    return kExitFailed;
  }
  auto& options = flags.chain.coordinator;
  options.model_path = *model;
  options.stages = flags.chain.stages.value_or(1);
  const absl::Status status = Serve(options);
  if (!status.ok()) std::cerr << "layercake-coordinator: " << status.message() << "\n";
  return ExitCodeOf(status);
}

void AddWorkerListener(FlagTable& table, coordinator::GrpcServerOptions* server) {
  table.Text("--worker-listen", &server->workers.address, "Address for workers, host:port");
  table.Text("--worker-tls-certificate", &server->workers.tls.certificate,
             "PEM file; with the other two: mutual TLS with workers");
  table.Text("--worker-tls-key", &server->workers.tls.key, "PEM file");
  table.Text("--worker-tls-authority", &server->workers.tls.authority,
             "PEM file: who signs the workers' certificates");
  table.Switch("--worker-insecure", &server->workers.insecure,
               "Listen for workers beyond loopback without TLS: anybody may join the chain");
}

}  // namespace
}  // namespace layercake::cli

int main(int argc, char** argv) {
  using namespace layercake::cli;  // NOLINT: main is outside every namespace
  const Environment environment = Environment::FromProcess();
  auto flags = std::make_shared<CoordinatorFlags>();
  auto& server = flags->chain.coordinator.server;
  server.clients.address = absl::StrCat("127.0.0.1:", kDefaultClientPort);
  server.workers.address = absl::StrCat("127.0.0.1:", kDefaultWorkerPort);
  Program program("layercake-coordinator", "Serves a model over workers that dial in.");
  FlagTable& table = program.Main([&] { return Run(*flags, environment); });
  table.Positional("MODEL", &flags->model, true,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]");
  AddChainFlags(table, &flags->chain);
  AddServingFlags(table, &flags->chain);
  AddWorkerListener(table, &server);
  AddLogFlag(table, &flags->chain.log_level);
  return program.Run(argc, argv, environment, std::cout, std::cerr);
}
