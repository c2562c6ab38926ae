#include "cli/load_progress.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GetStatusResponse Status(v1::ChainState state, std::vector<uint64_t> loaded) {
  v1::GetStatusResponse status;
  status.set_state(state);
  for (size_t i = 0; i < loaded.size(); ++i) {
    v1::StageStatus& stage = *status.add_stages();
    stage.set_stage(static_cast<int>(i));
    stage.set_layer_end(10);
    stage.set_loaded_bytes(loaded[i]);
    stage.set_total_bytes(1000);
  }
  return status;
}

TEST(LoadProgress, DrawsABarForEachStageOverTheLastOnes) {
  std::ostringstream out;
  LoadProgress progress(out, /*decorated=*/true);
  progress.Show(Status(v1::CHAIN_STATE_LOADING, {0, 500}));
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b[3A")));
  out.str("");
  progress.Show(Status(v1::CHAIN_STATE_LOADING, {1000, 500}));
  EXPECT_THAT(out.str(), HasSubstr("\x1b[3A"));  // two bars and the state
  EXPECT_THAT(out.str(), HasSubstr("[##############################] 100 %"));
  EXPECT_THAT(out.str(), HasSubstr("[###############...............]  50 %"));
}

TEST(LoadProgress, PrintsPlainLinesElsewhereAndNoneTwice) {
  std::ostringstream out;
  LoadProgress progress(out, /*decorated=*/false);
  for (const uint64_t loaded : {0, 100, 260, 270, 510, 1000, 1000}) {
    progress.Show(Status(v1::CHAIN_STATE_LOADING, {loaded}));
  }
  progress.Show(Status(v1::CHAIN_STATE_SERVING, {1000}));
  progress.Show(Status(v1::CHAIN_STATE_DRAINING, {1000}));
  EXPECT_EQ(out.str(),
            "loading\n"
            "stage 0: loaded 25 % of 1000 B\n"
            "stage 0: loaded 50 % of 1000 B\n"
            "stage 0: loaded 100 % of 1000 B\n"
            "serving\n");
}

TEST(LoadProgress, ABarStaysWithinItsWidth) {
  v1::StageStatus stage;
  stage.set_layer_end(1);
  EXPECT_THAT(FormatBar(stage, 4), HasSubstr("[....]   0 %"));
  stage.set_total_bytes(10);
  stage.set_loaded_bytes(25);  // more than promised
  EXPECT_THAT(FormatBar(stage, 4), HasSubstr("[####] 100 %"));
}

}  // namespace
}  // namespace layercake::cli
