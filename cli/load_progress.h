// How far a chain has come until it serves: a bar for each stage on a terminal, lines elsewhere.
// Thread rule: one thread.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

class LoadProgress {
 public:
  // `decorated`: `out` is a terminal where the cursor may move.
  LoadProgress(std::ostream& out, bool decorated) : out_(out), decorated_(decorated) {}

  // Draws what has changed; after the chain serves or has failed, nothing more.
  void Show(const v1::GetStatusResponse& status);

 private:
  void DrawBars(const v1::GetStatusResponse& status);
  void PrintLines(const v1::GetStatusResponse& status);

  std::ostream& out_;
  const bool decorated_;
  int drawn_lines_ = 0;               // bars on the screen, above the cursor
  std::vector<int> printed_percent_;  // of each stage; steps of 25
  v1::ChainState last_state_ = v1::CHAIN_STATE_UNSPECIFIED;
  bool done_ = false;
};

// "stage 1  layers 10-19  [#####.....]  50 %  49.2 MiB of 98.4 MiB".
std::string FormatBar(const v1::StageStatus& stage, int width);

}  // namespace layercake::cli
