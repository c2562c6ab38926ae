#include "cli/bench_stages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"

namespace layercake::cli {
namespace {

double PerUnit(double amount, double units) { return units > 0 ? amount / units : 0; }

std::string OrDash(const absl::FormatSpec<double>& format, double value) {
  return value > 0 ? absl::StrFormat(format, value) : "-";
}

StageFigures Between(const v1::StageStatus& first, const v1::StageStatus& last, double seconds) {
  StageFigures figures;
  figures.stage = last.stage();
  const double busy = last.busy_seconds() - first.busy_seconds();
  const auto steps = static_cast<double>(last.steps_done() - first.steps_done());
  figures.busy = PerUnit(busy, seconds);
  figures.step_milliseconds = PerUnit(1e3 * busy, steps);
  figures.weight_gigabytes_per_second =
      PerUnit(static_cast<double>(last.weight_bytes()) * steps / 1e9, busy);
  figures.copy_share =
      PerUnit(figures.weight_gigabytes_per_second, last.copy_gigabytes_per_second());
  const double hop_seconds = last.hop_seconds() - first.hop_seconds();
  figures.hop_microseconds =
      PerUnit(1e6 * hop_seconds, static_cast<double>(last.hops() - first.hops()));
  figures.hop_gigabytes_per_second =
      PerUnit(static_cast<double>(last.hop_bytes() - first.hop_bytes()) / 1e9, hop_seconds);
  // "pinned_host: same host": the kind stands first.
  const std::string& transport = last.upstream_transport();
  figures.transport = transport.substr(0, transport.find(':'));
  figures.weight_bytes = last.weight_bytes();
  figures.kv_bytes = last.kv_bytes();
  figures.buffer_bytes = last.buffer_bytes();
  return figures;
}

}  // namespace

bool AllReportedWithin(const v1::GetStatusResponse& status, double seconds) {
  return std::all_of(
      status.stages().begin(), status.stages().end(),
      [seconds](const v1::StageStatus& stage) { return stage.counters_age_seconds() < seconds; });
}

std::vector<StageFigures> StageFiguresBetween(const v1::GetStatusResponse& before,
                                              const v1::GetStatusResponse& after, double seconds) {
  std::vector<StageFigures> stages;
  for (int i = 0; i < std::min(before.stages_size(), after.stages_size()); ++i) {
    const v1::StageStatus& first = before.stages(i);
    const v1::StageStatus& last = after.stages(i);
    // A worker that began anew counts from 0 again: its figures of this run mean nothing.
    const bool same = last.steps_done() >= first.steps_done() && last.hops() >= first.hops();
    stages.push_back(Between(same ? first : last, last, seconds));
  }
  return stages;
}

std::string StageTableHeading() {
  return absl::StrFormat("%7s  %5s  %5s  %9s  %9s  %7s  %9s  %8s  %-11s  %10s  %10s  %10s\n",
                         "streams", "stage", "busy", "step ms", "GB/s", "of copy", "hop us",
                         "hop GB/s", "channel", "weights", "kv", "buffers");
}

std::string FormatStageFigures(int streams, absl::Span<const StageFigures> stages) {
  std::string text;
  for (const StageFigures& stage : stages) {
    absl::StrAppend(
        &text, absl::StrFormat(
                   "%7d  %5d  %4.0f%%  %9.3f  %9s  %7s  %9s  %8s  %-11s  %10s  %10s  %10s\n",
                   streams, stage.stage, stage.busy * 100, stage.step_milliseconds,
                   OrDash("%.1f", stage.weight_gigabytes_per_second),
                   OrDash("%.0f%%", stage.copy_share * 100), OrDash("%.1f", stage.hop_microseconds),
                   OrDash("%.3f", stage.hop_gigabytes_per_second),
                   stage.transport.empty() ? "-" : stage.transport, FormatBytes(stage.weight_bytes),
                   FormatBytes(stage.kv_bytes), FormatBytes(stage.buffer_bytes)));
  }
  return text;
}

}  // namespace layercake::cli
