#include "cli/plan_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/chain_flags.h"

namespace layercake::cli {
namespace {

constexpr int kMostTokens = 1 << 20;
// Prompts that come by themselves are all made at the start: a gigabyte at some thousand tokens.
constexpr double kMostRequests = 100'000;

// "32-512", or one number for both ends.
absl::StatusOr<simulation::TokenRange> ParseRange(absl::string_view flag, absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  simulation::TokenRange range;
  if (!absl::SimpleAtoi(ends.front(), &range.least) ||
      !absl::SimpleAtoi(ends.back(), &range.most) || range.least < 1 || range.most < range.least ||
      range.most > kMostTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " \"", text, "\": give a number of tokens or a range of them, as in ",
                     "32-512, from 1 to ", kMostTokens));
  }
  return range;
}

// A list for the stages: empty, one for all, or one for each.
template <class T>
absl::StatusOr<std::vector<T>> ForStages(absl::string_view flag, const std::vector<T>& values,
                                         size_t stages) {
  if (values.empty() || values.size() == stages) return values;
  if (values.size() == 1) return std::vector<T>(stages, values.front());
  return absl::InvalidArgumentError(absl::StrCat(flag, " gives ", values.size(), " values for ",
                                                 stages, " stages; give one, or one for each"));
}

int StageCount(const PlanFlags& flags) {
  if (flags.stages) return *flags.stages;
  const auto ranges = static_cast<size_t>(RangesIn(flags.chain.layers));
  return static_cast<int>(std::max({size_t{1}, ranges, flags.cards.size(), flags.memory_gib.size(),
                                    flags.memory_gbs.size(), flags.tflops.size()}));
}

absl::StatusOr<std::vector<PlannedDevice>> MakeDevices(const PlanFlags& flags, size_t stages) {
  LC_ASSIGN_OR_RETURN(const auto cards, ForStages("--cards", flags.cards, stages));
  LC_ASSIGN_OR_RETURN(const auto memory, ForStages("--memory", flags.memory_gib, stages));
  LC_ASSIGN_OR_RETURN(const auto rates, ForStages("--memory-gbs", flags.memory_gbs, stages));
  LC_ASSIGN_OR_RETURN(const auto tflops, ForStages("--tflops", flags.tflops, stages));
  std::vector<PlannedDevice> devices(stages);
  for (size_t i = 0; i < stages; ++i) {
    PlannedDevice& device = devices[i];
    double bytes = memory.empty() ? 0 : memory[i] * (1 << 30);
    if (!cards.empty()) {
      LC_ASSIGN_OR_RETURN(const simulation::Card card, simulation::FindCard(cards[i]));
      device.card = std::string(card.name);
      device.speed = {.bytes_per_second = card.gb_per_second * 1e9,
                      .operations_per_second = card.tflops * 1e12};
      if (memory.empty()) bytes = card.memory_gb * 1e9;
    }
    if (!rates.empty()) device.speed.bytes_per_second = rates[i] * 1e9;
    if (!tflops.empty()) device.speed.operations_per_second = tflops[i] * 1e12;
    device.memory_bytes = static_cast<uint64_t>(bytes);
  }
  return devices;
}

absl::Status CheckSpeeds(const std::vector<PlannedDevice>& devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    const simulation::DeviceSpeed& speed = devices[i].speed;
    if (speed.bytes_per_second > 0 && speed.operations_per_second > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--simulate needs the rates of the device of stage ", i,
                     ": name it with --cards, or give both --memory-gbs and --tflops"));
  }
  return absl::OkStatus();
}

absl::StatusOr<simulation::ClientLoadOptions> MakeLoad(const PlanFlags& flags) {
  if (flags.streams && flags.rate) {
    return absl::InvalidArgumentError(absl::StrCat("--streams ", *flags.streams, " and --rate ",
                                                   *flags.rate,
                                                   " are two kinds of load; give one of them"));
  }
  simulation::ClientLoadOptions load;
  if (flags.rate) {
    load.rate = *flags.rate;
    if (load.rate * flags.duration_seconds > kMostRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rate ", load.rate, " over --duration ", flags.duration_seconds,
                       " s are more than ", kMostRequests, " requests; simulate a shorter time"));
    }
  } else {
    load.streams = flags.streams.value_or(16);
  }
  LC_ASSIGN_OR_RETURN(load.prompt, ParseRange("--prompt-tokens", flags.prompt_tokens));
  LC_ASSIGN_OR_RETURN(load.output, ParseRange("--output-tokens", flags.output_tokens));
  load.shared_prefix = flags.shared_prefix;
  load.seconds = flags.duration_seconds;
  load.seed = *flags.seed;
  return load;
}

}  // namespace

absl::StatusOr<PlanOptions> MakePlanOptions(const PlanFlags& flags, std::string model_path) {
  PlanOptions options;
  options.chain = flags.chain;
  options.chain.model_path = std::move(model_path);
  options.chain.stages = StageCount(flags);
  LC_ASSIGN_OR_RETURN(options.devices,
                      MakeDevices(flags, static_cast<size_t>(options.chain.stages)));
  for (const PlannedDevice& device : options.devices) {
    options.chain.stage_memory_bytes.push_back(device.memory_bytes);
  }
  options.json = flags.json;
  options.simulate = flags.simulate;
  if (!flags.simulate) return options;
  LC_RETURN_IF_ERROR(CheckSpeeds(options.devices));
  LC_ASSIGN_OR_RETURN(options.load, MakeLoad(flags));
  options.efficiency = flags.efficiency;
  options.hop_seconds = flags.hop_us * 1e-6;
  options.hop_bytes_per_second = flags.hop_gbs * 1e9;
  options.session_seconds = flags.session_us * 1e-6;
  return options;
}

}  // namespace layercake::cli
