#include "cli/format.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace layercake::cli {

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatState(v1::ChainState state) {
  switch (state) {
    case v1::CHAIN_STATE_WAITING_FOR_WORKERS:
      return "waiting for workers";
    case v1::CHAIN_STATE_LOADING:
      return "loading";
    case v1::CHAIN_STATE_CONNECTING:
      return "connecting the stages";
    case v1::CHAIN_STATE_TESTING:
      return "testing the chain";
    case v1::CHAIN_STATE_SERVING:
      return "serving";
    case v1::CHAIN_STATE_FAILED:
      return "failed";
    case v1::CHAIN_STATE_DRAINING:
      return "ending";
    default:
      return "unknown";
  }
}

std::string FormatChain(const v1::GetStatusResponse& status) {
  std::string text =
      absl::StrFormat("%s, version %s, up %.0f s, term %d, epoch %d\n", FormatState(status.state()),
                      status.version(), status.uptime_seconds(), status.term(), status.epoch());
  if (!status.reason().empty()) absl::StrAppend(&text, "reason: ", status.reason(), "\n");
  absl::StrAppend(&text, absl::StrFormat("%5s  %-9s  %-8s  %-20s  %10s  %10s  %10s  %9s  %s\n",
                                         "stage", "layers", "device", "host (pid)", "weights", "kv",
                                         "buffers", "steps", "from the stage before"));
  for (const v1::StageStatus& stage : status.stages()) {
    const std::string upstream =
        stage.upstream_transport().empty()
            ? ""
            : absl::StrFormat("%s, %.0f us, %.2f GB/s", stage.upstream_transport(),
                              stage.upstream_latency_us(), stage.upstream_gigabytes_per_second());
    const std::string hops =
        stage.hops() == 0
            ? ""
            : absl::StrFormat("; %.0f us a hop",
                              1e6 * stage.hop_seconds() / static_cast<double>(stage.hops()));
    absl::StrAppend(
        &text, absl::StrFormat("%5d  %-9s  %-8s  %-20s  %10s  %10s  %10s  %9d  %s\n", stage.stage(),
                               absl::StrCat(stage.layer_first(), "-", stage.layer_end() - 1),
                               stage.device(), absl::StrCat(stage.host(), " (", stage.pid(), ")"),
                               FormatBytes(stage.weight_bytes()), FormatBytes(stage.kv_bytes()),
                               FormatBytes(stage.buffer_bytes()), stage.steps_done(),
                               absl::StrCat(upstream, hops)));
    if (stage.promised_bytes() > 0) {
      absl::StrAppend(&text, "       promised ", FormatBytes(stage.promised_bytes()),
                      " with the CUDA context, takes ",
                      FormatBytes(stage.weight_bytes() + stage.kv_bytes() + stage.buffer_bytes()),
                      " beside it\n");
    }
    if (!stage.placement().empty()) absl::StrAppend(&text, "       ", stage.placement(), "\n");
    if (!stage.waiting_for().empty()) {
      absl::StrAppend(&text, "       waits for ", stage.waiting_for(), "\n");
    }
  }
  return text;
}

std::string FormatUsage(const v1::Usage& usage, const v1::Timings& timings) {
  std::string text = absl::StrCat(usage.completion_tokens(), " tokens");
  // The first token belongs to the prefill's time.
  if (usage.completion_tokens() > 1 && timings.decode() > 0) {
    absl::StrAppend(&text, absl::StrFormat(" in %.1f s: %.1f tokens/s", timings.decode(),
                                           (usage.completion_tokens() - 1) / timings.decode()));
  }
  const int computed = usage.prompt_tokens() - usage.cached_prompt_tokens();
  absl::StrAppend(&text, "; prompt ", usage.prompt_tokens(), " tokens");
  if (computed > 0 && timings.prefill() > 0) {
    absl::StrAppend(&text, absl::StrFormat(": %.1f tokens/s", computed / timings.prefill()));
  }
  return text;
}

}  // namespace layercake::cli
