#include "cli/load_progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"

namespace layercake::cli {
namespace {

constexpr int kBarWidth = 30;
constexpr int kLineStep = 25;  // percent between two lines where no bar can be drawn
constexpr char kCursorUp[] = "\x1b[%dA";
constexpr char kClearLine[] = "\x1b[2K";

int PercentOf(const v1::StageStatus& stage) {
  if (stage.total_bytes() == 0) return 0;
  const double share =
      static_cast<double>(stage.loaded_bytes()) / static_cast<double>(stage.total_bytes());
  return std::clamp(static_cast<int>(share * 100), 0, 100);
}

}  // namespace

std::string FormatBar(const v1::StageStatus& stage, int width) {
  const int percent = PercentOf(stage);
  const size_t filled = static_cast<size_t>(width * percent / 100);
  const std::string bar =
      std::string(filled, '#') + std::string(static_cast<size_t>(width) - filled, '.');
  return absl::StrFormat("stage %d  layers %-7s [%s] %3d %%  %s of %s", stage.stage(),
                         absl::StrCat(stage.layer_first(), "-", stage.layer_end() - 1), bar,
                         percent, FormatBytes(stage.loaded_bytes()),
                         FormatBytes(stage.total_bytes()));
}

void LoadProgress::Show(const v1::GetStatusResponse& status) {
  if (done_) return;
  if (decorated_) {
    DrawBars(status);
  } else {
    PrintLines(status);
  }
  last_state_ = status.state();
  done_ = status.state() == v1::CHAIN_STATE_SERVING || status.state() == v1::CHAIN_STATE_FAILED;
}

void LoadProgress::DrawBars(const v1::GetStatusResponse& status) {
  if (drawn_lines_ > 0) out_ << absl::StrFormat(kCursorUp, drawn_lines_);
  drawn_lines_ = 0;
  for (const v1::StageStatus& stage : status.stages()) {
    if (stage.total_bytes() == 0) continue;
    out_ << kClearLine << FormatBar(stage, kBarWidth) << "\n";
    ++drawn_lines_;
  }
  out_ << kClearLine << FormatState(status.state()) << "\n" << std::flush;
  ++drawn_lines_;
}

void LoadProgress::PrintLines(const v1::GetStatusResponse& status) {
  if (status.state() != last_state_) out_ << FormatState(status.state()) << "\n";
  printed_percent_.resize(static_cast<size_t>(status.stages_size()), 0);
  for (int i = 0; i < status.stages_size(); ++i) {
    int& printed = printed_percent_[static_cast<size_t>(i)];
    const int percent = PercentOf(status.stages(i)) / kLineStep * kLineStep;
    if (percent <= printed) continue;
    printed = percent;
    out_ << "stage " << status.stages(i).stage() << ": loaded " << percent << " % of "
         << FormatBytes(status.stages(i).total_bytes()) << "\n";
  }
  out_ << std::flush;
}

}  // namespace layercake::cli
