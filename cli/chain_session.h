// Work against a chain: one that is started for it on this machine, or one that runs already.
//
// Thread rule: RunOnChain is called on main's thread and keeps it (signals, child processes); the
// work runs on a thread of its own, where it may block.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/chain_flags.h"
#include "cli/environment.h"
#include "cli/inference_client.h"
#include "cli/server_flags.h"

namespace layercake::cli {

struct ChainWork {
  // On its own thread, once the chain serves; gives the exit code. Its calls to `client` fail or
  // are cancelled when the chain ends under it.
  std::function<int(InferenceClient& client)> run;
  // On main's thread, at Ctrl-C: true when that only stopped something inside `run`. Otherwise the
  // program ends with exit code 130.
  std::function<bool()> interrupt;
  // On main's thread: `run` must return soon (the client's calls are cancelled as well).
  std::function<void()> stop;
};

struct ChainSessionOptions {
  std::string server;  // "host:port" of a running one; empty: start `chain`
  TlsFiles tls;        // towards `server`
  ChainOptions chain;
};

// The running server that was named, or a chain of `model` on this machine. `exit_code` is the
// program's when there is an error: usage, or a model that cannot be found.
absl::StatusOr<ChainSessionOptions> MakeChainSession(const ServerFlags& server,
                                                     const ChainFlags& chain,
                                                     const std::string& model,
                                                     const Environment& environment,
                                                     int* exit_code);

// Exit code of the program. Failures are on standard error by then.
int RunOnChain(const ChainSessionOptions& options, const Environment& environment, ChainWork work);

// Starts a chain and serves until a signal; `on_serving` runs once on main's thread.
int ServeChain(const ChainOptions& options, const Environment& environment,
               std::function<void(const std::string& client_address)> on_serving);

}  // namespace layercake::cli
