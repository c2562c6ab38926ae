// Invariant 1: the output of a sequence depends on its own request only. Bit for bit over the
// number of stages, the cut, the channel, the neighbours, the chunks of its prompt, and whether
// steps are planned ahead of their tokens.
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/chain_rig.h"
#include "tests/testing/golden_files.h"

namespace layercake::testing {
namespace {

constexpr int kRequests = 16;

struct Cut {
  std::string name;
  int stages = 1;
  std::string layers = "";  // balanced by bytes
  std::string transport = "local";
  std::string ucx_tls = "tcp";
  bool together = true;  // all requests at once, or one after the other
  int rows = 256;
  int threads = 1;
  int kv_blocks = 0;
  std::string kv_type = "f16";
  bool run_ahead = true;  // plan decode rows before their token is known
};

void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

RigOptions OptionsOf(const Cut& cut, const std::string& model_path) {
  RigOptions options;
  options.chain.model_path = model_path;
  options.chain.stages = cut.stages;
  options.chain.layers = cut.layers;
  options.chain.transport = cut.transport;
  options.chain.max_rows = cut.rows;
  options.chain.prefill_rows = cut.rows;
  options.chain.kv_blocks = cut.kv_blocks;
  options.chain.kv_type = cut.kv_type;
  options.chain.context_tokens = 512;
  options.chain.run_ahead = cut.run_ahead;
  options.ucx_tls = cut.ucx_tls;
  options.threads = cut.threads;
  return options;
}

// Tokens and the bits of their log-probabilities.
std::vector<uint32_t> Fingerprint(const Outcome& outcome) {
  std::vector<uint32_t> bits;
  for (const int32_t token : outcome.tokens) bits.push_back(static_cast<uint32_t>(token));
  for (const v1::TokenLogprob& entry : outcome.logprobs) {
    bits.push_back(std::bit_cast<uint32_t>(entry.logprob()));
    for (const v1::TokenLogprob& top : entry.top()) {
      bits.push_back(static_cast<uint32_t>(top.token()));
      bits.push_back(std::bit_cast<uint32_t>(top.logprob()));
    }
  }
  return bits;
}

std::vector<std::vector<uint32_t>> RunCut(const Cut& cut, const std::string& model_path,
                                          const std::vector<coordinator::PreparedRequest>& all) {
  std::vector<std::vector<uint32_t>> fingerprints;
  const auto rig = ChainRig::Start(OptionsOf(cut, model_path));
  EXPECT_TRUE(rig.ok()) << rig.status();
  if (!rig.ok()) return fingerprints;
  std::vector<std::vector<coordinator::PreparedRequest>> rounds;
  if (cut.together) {
    rounds.push_back(all);
  } else {
    for (const auto& request : all) rounds.push_back({request});
  }
  for (auto& round : rounds) {
    const auto outcomes = (*rig)->Run(std::move(round));
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    if (!outcomes.ok()) return fingerprints;
    for (const Outcome& outcome : *outcomes) {
      EXPECT_TRUE(outcome.error.ok()) << outcome.error;
      fingerprints.push_back(Fingerprint(outcome));
    }
  }
  EXPECT_EQ((*rig)->Loads().kv_blocks_used(), 0) << "blocks return to the baseline";
  return fingerprints;
}

// Half of the requests are greedy, half sampled with penalties.
void MakeSampled(coordinator::PreparedRequest& request, uint64_t seed) {
  request.sampling.set_temperature(0.9f);
  request.sampling.set_top_k(40);
  request.sampling.set_top_p(0.95f);
  request.sampling.set_min_p(0.02f);
  request.sampling.set_repetition_penalty(1.1f);
  request.sampling.set_presence_penalty(0.1f);
  request.sampling.set_frequency_penalty(0.1f);
  request.sampling.set_seed(seed);
}

std::vector<coordinator::PreparedRequest> TinyRequests() {
  const nlohmann::json golden = ReadGolden("tiny/qwen3_wide_heads.json");
  std::vector<coordinator::PreparedRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    auto ids =
        golden["prompts"][static_cast<size_t>(i % 2)]["prompt_ids"].get<std::vector<int32_t>>();
    // Different lengths: one token to several blocks.
    while (static_cast<int>(ids.size()) < 1 + 5 * i) ids.insert(ids.end(), ids.begin(), ids.end());
    ids.resize(static_cast<size_t>(1 + 5 * i));
    requests.push_back(Greedy(std::move(ids), 20, 3));
    if (i % 2 == 1) MakeSampled(requests.back(), static_cast<uint64_t>(i));
  }
  return requests;
}

class AnyCutOfATinyModel : public ::testing::TestWithParam<Cut> {};

TEST_P(AnyCutOfATinyModel, GivesTheSameBits) {
  const std::string path = GoldenPath("tiny/qwen3_wide_heads.gguf");
  const auto requests = TinyRequests();
  static const auto reference =
      RunCut({.name = "alone", .together = false, .run_ahead = false}, path, requests);
  ASSERT_EQ(reference.size(), requests.size());
  EXPECT_EQ(RunCut(GetParam(), path, requests), reference);
}

std::string CutName(const ::testing::TestParamInfo<Cut>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    All, AnyCutOfATinyModel,
    ::testing::Values(
        Cut{.name = "OneStageTogether"}, Cut{.name = "OneStageThreeThreads", .threads = 3},
        Cut{.name = "OneStageAlone", .together = false}, Cut{.name = "TwoStages", .stages = 2},
        Cut{.name = "ThreeStagesWithoutRunningAhead", .stages = 3, .run_ahead = false},
        Cut{.name = "ThreeStagesAlone", .stages = 3, .together = false},
        Cut{.name = "FiveStages", .stages = 5},
        Cut{.name = "Uneven", .stages = 3, .layers = "0,1-3,4"},
        Cut{.name = "ChunksOfSeven", .stages = 2, .rows = 7},
        Cut{.name = "ChunksOfOne", .stages = 3, .rows = 1},
        Cut{.name = "ShortOfBlocks", .stages = 2, .kv_blocks = 32},
        Cut{.name = "PinnedHost", .stages = 3, .transport = "pinned_host"},
        Cut{.name = "UcxTcp", .stages = 3, .transport = "ucx"},
        Cut{.name = "UcxSharedMemory", .stages = 3, .transport = "ucx", .ucx_tls = "posix,self"}),
    CutName);

// The least blocks that a context allows, for sequences that want four times as many.
TEST(AnyCutUnderPressure, GivesTheSameBitsWhenBlocksComeBackFromHostMemory) {
  const std::string path = GoldenPath("tiny/qwen3_wide_heads.gguf");
  std::vector<coordinator::PreparedRequest> requests = TinyRequests();
  for (coordinator::PreparedRequest& request : requests) request.max_tokens = 100;
  const auto reference =
      RunCut({.name = "alone", .together = false, .run_ahead = false}, path, requests);
  ASSERT_EQ(reference.size(), requests.size());
  RigOptions options = OptionsOf({.name = "short", .stages = 2, .kv_blocks = 32}, path);
  options.chain.kv_host_memory_bytes = 64 << 20;
  const auto rig = ChainRig::Start(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  // Copies are made as soon as heartbeats have said what computing costs.
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds && (*rig)->CopiedPreemptions() < 20; ++round) {
    const auto outcomes = (*rig)->Run(requests);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(Fingerprint((*outcomes)[i]), reference[i])
          << "request " << i << ", round " << round;
    }
  }
  EXPECT_GT((*rig)->CopiedPreemptions(), 0);
  EXPECT_EQ((*rig)->Loads().kv_blocks_used(), 0) << "blocks return to the baseline";
}

// Blocks of keys and values that share a scale hold one position of one head each, so that nothing
// of a sequence depends on where its chunks end either.
TEST(AnyCutWithQuantisedKeysAndValues, GivesTheSameBits) {
  const std::string path = GoldenPath("tiny/qwen3_wide_heads.gguf");
  const auto requests = TinyRequests();
  const auto reference = RunCut(
      {.name = "alone", .together = false, .kv_type = "q8_0", .run_ahead = false}, path, requests);
  ASSERT_EQ(reference.size(), requests.size());
  EXPECT_EQ(RunCut({.name = "chunks", .stages = 3, .rows = 7, .threads = 2, .kv_type = "q8_0"},
                   path, requests),
            reference);
  EXPECT_NE(RunCut({.name = "f16"}, path, requests), reference) << "the type has no effect";
}

class AnyCutOfSmolLm2 : public ::testing::TestWithParam<Cut> {};

TEST_P(AnyCutOfSmolLm2, GivesTheSameBits) {
  const std::string path = SmolLm2Path();
  if (path.empty()) GTEST_SKIP() << "SmolLM2 is not here: deploy/fetch_smollm2.sh gets it";
  const nlohmann::json golden = ReadGolden("smollm2.json");
  std::vector<coordinator::PreparedRequest> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    auto ids = golden["prompts"][i]["prompt_ids"].get<std::vector<int32_t>>();
    if (ids.size() > 60) ids.resize(60);
    requests.push_back(Greedy(std::move(ids), 8, 3));
    if (i % 2 == 1) MakeSampled(requests.back(), i);
  }
  static const auto reference =
      RunCut({.name = "alone", .together = false, .run_ahead = false}, path, requests);
  ASSERT_EQ(reference.size(), requests.size());
  EXPECT_EQ(RunCut(GetParam(), path, requests), reference);
}

INSTANTIATE_TEST_SUITE_P(
    All, AnyCutOfSmolLm2,
    ::testing::Values(Cut{.name = "OneStageTogether", .threads = 2},
                      Cut{.name = "TwoStages", .stages = 2, .transport = "pinned_host"},
                      Cut{.name = "FiveStages", .stages = 5, .transport = "ucx", .rows = 24},
                      Cut{.name = "Uneven", .stages = 3, .layers = "0-1,2-26,27-29"},
                      Cut{.name = "ThirtyStages", .stages = 30}),
    CutName);

}  // namespace
}  // namespace layercake::testing
