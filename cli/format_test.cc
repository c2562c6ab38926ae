#include "cli/format.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Format, BytesInPowersOf1024) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes((uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(98'362'432), "93.8 MiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16.0 EiB");
}

TEST(Format, UsageWithoutRatesOfNothing) {
  v1::Usage usage;
  v1::Timings timings;
  usage.set_prompt_tokens(20);
  usage.set_completion_tokens(1);
  EXPECT_EQ(FormatUsage(usage, timings), "1 tokens; prompt 20 tokens");
  usage.set_completion_tokens(41);
  usage.set_cached_prompt_tokens(10);
  timings.set_decode(2);
  timings.set_prefill(0.1);
  EXPECT_EQ(FormatUsage(usage, timings),
            "41 tokens in 2.0 s: 20.0 tokens/s; prompt 20 tokens: 100.0 tokens/s");
}

TEST(Format, TheChainWithReasonAndWaits) {
  v1::GetStatusResponse status;
  status.set_state(v1::CHAIN_STATE_FAILED);
  status.set_reason("stage 1 is gone");
  for (int i = 0; i < 2; ++i) {
    v1::StageStatus& stage = *status.add_stages();
    stage.set_stage(i);
    stage.set_layer_first(2 * i);
    stage.set_layer_end(2 * i + 2);
    stage.set_device("cpu");
  }
  status.mutable_stages(1)->set_upstream_transport("pinned_host");
  status.mutable_stages(1)->set_waiting_for("activation 7");
  status.mutable_stages(1)->set_hops(4);
  status.mutable_stages(1)->set_hop_seconds(100e-6);
  status.mutable_stages(1)->set_placement("cuda:1 is on NUMA node 1: threads on CPUs 32-63");
  EXPECT_THAT(FormatChain(status), Not(HasSubstr("promised")));
  v1::StageStatus& stage = *status.mutable_stages(0);
  stage.set_weight_bytes(uint64_t{3} << 20);
  stage.set_kv_bytes(uint64_t{2} << 20);
  stage.set_buffer_bytes(uint64_t{7} << 20);
  stage.set_promised_bytes(uint64_t{13} << 20);
  EXPECT_THAT(FormatChain(status),
              AllOf(HasSubstr("; 25 us a hop\n"), HasSubstr("\n       cuda:1 is on NUMA node 1"),
                    HasSubstr("failed"), HasSubstr("reason: stage 1 is gone"), HasSubstr("0-1"),
                    HasSubstr("2-3"), HasSubstr("pinned_host"), HasSubstr("waits for activation"),
                    HasSubstr("7.0 MiB"),
                    HasSubstr("promised 13.0 MiB with the CUDA context, takes 12.0 MiB beside")));
  status.clear_reason();
  EXPECT_THAT(FormatChain(status), Not(HasSubstr("reason")));
}

TEST(Format, EveryStateHasAName) {
  for (int state = v1::CHAIN_STATE_WAITING_FOR_WORKERS; state <= v1::ChainState_MAX; ++state) {
    EXPECT_NE(FormatState(static_cast<v1::ChainState>(state)), "unknown") << state;
  }
}

}  // namespace
}  // namespace layercake::cli
