// What `layercake plan` was asked: the chain, its devices, and with --simulate the load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/coordinator_process.h"
#include "simulation/client_load.h"
#include "simulation/device_cost.h"

namespace layercake::cli {

struct PlanFlags {
  coordinator::CoordinatorProcessOptions chain;  // stages and memory come from below
  std::optional<int> stages;
  // Of each stage, or one for all.
  std::vector<std::string> cards;
  std::vector<double> memory_gib;
  std::vector<double> memory_gbs;
  std::vector<double> tflops;
  bool simulate = false;
  bool json = false;
  double efficiency = 0.7;
  double hop_us = 30;
  double hop_gbs = 10;
  double session_us = 100;
  std::optional<int> streams;
  std::optional<float> rate;
  std::string prompt_tokens = "128-1024";
  std::string output_tokens = "64-256";
  double shared_prefix = 0;
  int duration_seconds = 30;
  std::optional<uint64_t> seed = 1;
};

// A stage's device, as far as it is known.
struct PlannedDevice {
  std::string card;  // of its data sheet; may be empty
  uint64_t memory_bytes = 0;
  simulation::DeviceSpeed speed;  // zeros: unknown
};

struct PlanOptions {
  coordinator::CoordinatorProcessOptions chain;
  std::vector<PlannedDevice> devices;  // of each stage
  bool simulate = false;
  bool json = false;
  double efficiency = 0;
  double hop_seconds = 0;
  double hop_bytes_per_second = 0;
  double session_seconds = 0;
  simulation::ClientLoadOptions load;
};

// InvalidArgument names the flag, its value and what to give instead. Pure.
absl::StatusOr<PlanOptions> MakePlanOptions(const PlanFlags& flags, std::string model_path);

}  // namespace layercake::cli
