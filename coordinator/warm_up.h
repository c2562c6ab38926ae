// The steps of a chain before it serves: one token tests it, then prompts of growing sizes make it
// warm, so that the first client of a size does not wait until its kernels are loaded. (Their times
// say as much of loading as of computing: the scheduler does not learn from them.)
//
// Pure; any thread.
#pragma once

#include "absl/time/time.h"

namespace layercake::coordinator {

class WarmUp {
 public:
  // Steps of at most `most_rows` rows, as long as they are thought to end within `budget` of the
  // first one's end. A budget of zero: the test alone.
  WarmUp(int most_rows, absl::Duration budget);

  // Rows of the step under way.
  int rows() const { return rows_; }
  // The step under way took so long: rows of the next one, 0 when there is none.
  int Next(absl::Duration took);

 private:
  const int most_rows_;
  absl::Duration left_;
  int rows_ = 1;
  bool cold_ = true;  // the first step loads what any step needs: it is done twice
};

}  // namespace layercake::coordinator
