// CASES G2: positions far out. Every stage applies the same rope factors, so a cut chain gives the
// bits of one stage at 9,000 tokens and more.
#include <bit>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "model/gguf/testing/tiny_model.h"
#include "tests/testing/chain_rig.h"

namespace layercake::testing {
namespace {

std::vector<uint32_t> LogprobBits(const std::string& path, int stages) {
  RigOptions options;
  options.chain.model_path = path;
  options.chain.stages = stages;
  options.chain.transport = "local";
  options.chain.context_tokens = 9400;
  options.threads = 2;
  const auto rig = ChainRig::Start(options);
  EXPECT_TRUE(rig.ok()) << rig.status();
  if (!rig.ok()) return {};
  base::SeededRandom random(9);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 9300; ++i) prompt.push_back(static_cast<int32_t>(random.Below(300)));
  const auto outcomes = (*rig)->Run({Greedy(std::move(prompt), 8, 5)});
  EXPECT_TRUE(outcomes.ok()) << outcomes.status();
  std::vector<uint32_t> bits;
  for (const v1::TokenLogprob& entry : (*outcomes)[0].logprobs) {
    for (const v1::TokenLogprob& top : entry.top()) {
      bits.push_back(static_cast<uint32_t>(top.token()));
      bits.push_back(std::bit_cast<uint32_t>(top.logprob()));
    }
  }
  EXPECT_EQ(bits.size(), 80u) << (*outcomes)[0].error;
  return bits;
}

TEST(LongContext, ACutChainGivesTheBitsOfOneStageAtNineThousandTokens) {
  for (const bool yarn : {false, true}) {
    model::testing::TinyModelOptions options;
    options.architecture = yarn ? "qwen2" : "llama";
    options.n_layers = 2;
    options.hidden_size = 32;
    options.ffn_size = 32;
    options.n_heads = 2;
    options.n_kv_heads = 1;
    options.context_length = 16'384;
    options.rope_factors = !yarn;
    options.yarn_factor = yarn ? 4.0 : 0.0;
    const std::string path = ::testing::TempDir() + (yarn ? "/yarn.gguf" : "/factors.gguf");
    ASSERT_TRUE(model::testing::BuildTinyModel(options).WriteFile(path).ok());
    EXPECT_EQ(LogprobBits(path, 2), LogprobBits(path, 1)) << (yarn ? "yarn" : "rope_freqs");
  }
}

}  // namespace
}  // namespace layercake::testing
