// The flags that say what a chain is, shared by `serve`, `run`, `bench` and layercake-coordinator,
// and what they come to.
// Thread rule: plain data and functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "coordinator/coordinator_process.h"

namespace layercake::cli {

struct ChainFlags {
  std::optional<int> stages;
  std::vector<std::string> devices;
  int threads = 0;
  bool deterministic = false;
  std::string log_level = "info";
  // Defaults and most values; model_path and stages are set by MakeChainOptions.
  coordinator::CoordinatorProcessOptions coordinator;
};

// How the model is cut, and what each stage has room for: `plan` too.
void AddCutFlags(FlagTable& table, coordinator::CoordinatorProcessOptions* options);
// How the chain is cut and run: every command that can start one.
void AddChainFlags(FlagTable& table, ChainFlags* flags);
// What only workers of one's own are told; others have flags of their own (layercake-worker).
void AddOwnWorkerFlags(FlagTable& table, ChainFlags* flags);
// How it is served: limits, deadlines, addresses, TLS.
void AddServingFlags(FlagTable& table, ChainFlags* flags);

// Of a chain whose workers are children of this process.
struct ChainOptions {
  coordinator::CoordinatorProcessOptions coordinator;
  std::vector<std::string> devices;  // one for each stage
  int threads = 1;                   // of each worker
  bool deterministic = false;        // every worker
  std::string log_level;
};

// The number of stages comes from --stages, or else from the ranges in --layers, or else from the
// devices; whatever is given must agree. One device stands for all stages. Threads: what this
// process may use, shared out. InvalidArgument names the flags that disagree.
absl::StatusOr<ChainOptions> MakeChainOptions(const ChainFlags& flags, std::string model_path,
                                              int usable_cores);

// How many stages the value of --layers names; 0 without one.
int RangesIn(const std::string& layers);

// Cores that this process may run on.
int UsableCores();

}  // namespace layercake::cli
