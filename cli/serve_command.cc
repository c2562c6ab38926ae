// `layercake serve`: a coordinator and its workers on this machine, until a signal.
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/chain_flags.h"
#include "cli/chain_session.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/logging.h"
#include "cli/model_path.h"

namespace layercake::cli {
namespace {

struct ServeFlags {
  std::string model;
  ChainFlags chain;
};

int Serve(const ServeFlags& flags, const Environment& environment) {
  SetUpLogging("layercake", flags.chain.log_level, environment);
  const auto model = ResolveModelPath(flags.model, environment);
  if (!model.ok()) {
    std::cerr << "layercake serve: " << model.status().message() << "\n";
    return kExitFailed;
  }
  const auto options = MakeChainOptions(flags.chain, *model, UsableCores());
  if (!options.ok()) {
    std::cerr << "layercake serve: " << options.status().message() << "\n";
    return kExitUsage;
  }
  return ServeChain(*options, environment, [&](const std::string& address) {
    const std::string server = absl::StrCat("--server ", address);
    std::cout << "Serving " << *model << " with " << options->devices.size()
              << (options->devices.size() == 1 ? " stage" : " stages") << "\n  gRPC on " << address
              << "\nTry:\n  layercake run " << server << " \"Why is the sky blue?\"\n"
              << "  layercake run " << server << "\n  layercake status " << server << std::endl;
  });
}

}  // namespace

void AddServeCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<ServeFlags>();
  flags->chain.coordinator.server.clients.address = absl::StrCat("127.0.0.1:", kDefaultClientPort);
  FlagTable& table =
      program.Command("serve", "Start a coordinator and its stage workers, and serve until Ctrl-C",
                      [flags, &environment] { return Serve(*flags, environment); });
  table.Positional("MODEL", &flags->model, true,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]");
  AddChainFlags(table, &flags->chain);
  AddOwnWorkerFlags(table, &flags->chain);
  AddServingFlags(table, &flags->chain);
  AddLogFlag(table, &flags->chain.log_level);
}

}  // namespace layercake::cli
