// Loads for the simulator, each from a seed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "simulation/simulation.h"

namespace layercake::simulation {

// Stages like a GPU's: 4 ms for the weights, 40 us for a row, 2 ns for an entry that is read.
SimOptions GpuChain(int stages);

// Stages of Qwen2.5-32B Q4_K_M on an H200 each, as measured (docs/performance.md): a step is nearly
// flat up to 16 rows. kCliff: one of 17 rows takes nearly twice as long (rows 17 and more on other
// kernels); kLevel: as with kernels that share what they unpack among more rows; kTiles: as
// measured since, the products of prompts in tiles of 128 rows, so that 416 rows take what 512 do;
// kWgmma: the same on Hopper's own tensor core instructions.
enum class Kernels { kCliff, kLevel, kTiles, kWgmma };
SimOptions MeasuredChain(int stages, Kernels kernels);

// `count` requests at once, prompts of 32 tokens, `tokens` of output each.
std::vector<SimRequest> DecodeLoad(uint64_t seed, int count, int tokens);

// Poisson arrivals for `seconds`; prompts of 32 to 8,000 tokens, log-uniform, outputs of 32 to 256.
std::vector<SimRequest> MixedLoad(uint64_t seed, double requests_per_second, double seconds);

// A chain and a load where everything is random: stages (1 to 8, unequal), hops, limits that are
// tight, shared prefixes and continued conversations, several choices, cancels, slow readers,
// priorities, clients.
struct Swarm {
  SimOptions options;
  std::vector<SimRequest> requests;
};
Swarm MakeSwarm(uint64_t seed);

// What is wrong with the outcome of a swarm's run; empty when nothing is.
std::string FindFault(const Swarm& swarm, const SimReport& report);

}  // namespace layercake::simulation
