// `layercake status`: the chain of a running server.
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/format.h"
#include "cli/inference_client.h"
#include "cli/server_flags.h"

namespace layercake::cli {
namespace {

int PrintStatus(const ServerFlags& flags) {
  const auto fail = [&](const absl::Status& status) {
    std::cerr << "layercake status: ask " << flags.server << ": " << status.message() << "\n";
    return kExitFailed;
  };
  const auto client =
      InferenceClient::Create(WithDefaultPort(flags.server, kDefaultClientPort), flags.tls);
  if (!client.ok()) return fail(client.status());
  const auto status = (*client)->GetStatus();
  if (!status.ok()) return fail(status.status());
  const auto loads = (*client)->GetLoads();
  if (!loads.ok()) return fail(loads.status());
  std::cout << FormatChain(*status) << "requests: " << loads->running() << " running, "
            << loads->queued() << " queued; KV blocks: " << loads->kv_blocks_used() << " of "
            << loads->kv_blocks_total() << "; tokens so far: " << loads->prompt_tokens_total()
            << " prompt, " << loads->output_tokens_total() << " output" << std::endl;
  return kExitOk;
}

}  // namespace

void AddStatusCommand(Program& program, const Environment&) {
  auto flags = std::make_shared<ServerFlags>();
  flags->server = absl::StrCat("127.0.0.1:", kDefaultClientPort);
  FlagTable& table = program.Command("status", "Print the chain of a running server",
                                     [flags] { return PrintStatus(*flags); });
  AddServerFlags(table, flags.get(), "The server, host:port (default 127.0.0.1:9180)");
}

}  // namespace layercake::cli
