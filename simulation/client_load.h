// What the clients of a simulated chain ask for, drawn from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "simulation/simulation.h"

namespace layercake::simulation {

struct TokenRange {
  int least = 0;
  int most = 0;
};

struct ClientLoadOptions {
  // Clients that ask again as soon as their answer has come (closed loop), or, with 0, requests
  // that come by themselves: `rate` a second, at random times (Poisson).
  int streams = 0;
  double rate = 0;
  TokenRange prompt;         // log-uniform
  TokenRange output;         // uniform; every answer is as long as asked for
  double shared_prefix = 0;  // share of each prompt, from its start, that all have in common
  double seconds = 0;        // nothing is asked afterwards
  uint64_t seed = 1;
};

// One thread.
class ClientLoad {
 public:
  explicit ClientLoad(const ClientLoadOptions& options);

  // Those that nobody waits for, in order of time.
  std::vector<SimRequest> First();
  // What the client of a request that ended does next (Simulation::AskNext).
  std::optional<SimRequest> Next(double now);

 private:
  SimRequest Ask(double at);

  const ClientLoadOptions options_;
  base::SeededRandom random_;
  std::vector<int32_t> common_;  // what shared prefixes are the start of
};

}  // namespace layercake::simulation
