#include "cli/bench_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::GetLoadsResponse Loads(int queued, int running, int used) {
  v1::GetLoadsResponse loads;
  loads.set_queued(queued);
  loads.set_running(running);
  loads.set_kv_blocks_used(used);
  loads.set_kv_blocks_total(100);
  return loads;
}

TEST(BenchLoads, NamesACacheThatIsTooSmall) {
  LoadPeak peak;
  peak.Note(Loads(3, 1, 10));
  peak.Note(Loads(55, 9, 80));
  peak.Note(Loads(54, 8, 96));
  peak.Note(Loads(0, 12, 100));
  EXPECT_THAT(WhyNotTogether(64, peak),
              AllOf(HasSubstr("of 64 streams the first had ended before the last began: 55 "
                              "requests waited while 9 ran"),
                    HasSubstr("96 of the 100 blocks"), HasSubstr("--kv-memory"),
                    Not(HasSubstr("--max-sequences"))));
}

TEST(BenchLoads, NamesTheLimitOfSequences) {
  LoadPeak peak;
  peak.Note(Loads(32, 32, 60));
  EXPECT_THAT(WhyNotTogether(64, peak),
              AllOf(HasSubstr("32 requests waited while 32 ran"), HasSubstr("--max-sequences"),
                    Not(HasSubstr("--kv-memory"))));
}

TEST(BenchLoads, AsksForLongerAnswersWhereNobodyWaited) {
  LoadPeak peak;
  peak.Note(Loads(0, 5, 100));
  EXPECT_THAT(WhyNotTogether(8, peak), AllOf(HasSubstr("--ntg"), Not(HasSubstr("waited"))));
}

}  // namespace
}  // namespace layercake::cli
