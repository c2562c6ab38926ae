#include "stage_worker/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/random.h"
#include "proto/kv_cache_type.h"
#include "stage_worker/plan_fuzz.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::BeginOf;
using stage_worker::testing::RowsOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

StageLimits TestLimits() {
  return {.term = 7,
          .epoch = 3,
          .stage = 0,
          .stage_count = 1,
          .layer_first = 0,
          .layer_end = 4,
          .kv_blocks = 16,
          .kv_block_tokens = 4,
          .max_rows = 12,
          .max_sequences = 2,
          .context_tokens = 32,
          .max_in_flight = 2,
          .vocabulary = 100};
}

std::vector<int32_t> Tokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i + 1);
  return tokens;
}

// Step 1: sequence 5 begins with five tokens in blocks 3 and 4.
v1::MicroBatchPlan FirstPlan() {
  v1::MicroBatchPlan plan;
  plan.set_term(7);
  plan.set_epoch(3);
  plan.set_step(1);
  *plan.add_begins() = BeginOf(5, 5);
  *plan.add_rows() = RowsOf(5, Tokens(5), 0, 5, true);
  plan.mutable_rows(0)->add_blocks(3);
  plan.mutable_rows(0)->add_blocks(4);
  return plan;
}

// Step 2: its sixth token, in the blocks it has.
v1::MicroBatchPlan SecondPlan() {
  v1::MicroBatchPlan plan;
  plan.set_term(7);
  plan.set_epoch(3);
  plan.set_step(2);
  *plan.add_rows() = RowsOf(5, Tokens(6), 5, 1, true);
  plan.mutable_rows(0)->set_table_start(2);
  return plan;
}

TEST(PlanCheck, TakesAPlanIntoAStepThatStandsAlone) {
  SequenceTable table;
  const absl::StatusOr<StepPlan> first = AdmitPlan(FirstPlan(), TestLimits(), 0, table);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(first->kv_positions, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(first->rope_positions, ElementsAre(0, 1, 2, 3, 4));
  ASSERT_EQ(first->sequences.size(), 1u);
  EXPECT_THAT(first->sequences[0].blocks, ElementsAre(3, 4));
  EXPECT_EQ(first->sequences[0].sampled_rows, 1);
  v1::MicroBatchPlan plan = SecondPlan();
  plan.mutable_rows(0)->add_rope_positions(9);
  plan.add_ends(5);
  const absl::StatusOr<StepPlan> second = AdmitPlan(plan, TestLimits(), 1, table);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->kv_positions, ElementsAre(5));
  EXPECT_THAT(second->rope_positions, ElementsAre(9));
  EXPECT_THAT(second->sequences[0].blocks, ElementsAre(3, 4));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_THAT(first->sequences[0].blocks, ElementsAre(3, 4)) << "later plans do not change it";
}

TEST(PlanCheck, GrowsReplacesAndKeepsBlockTables) {
  SequenceTable table;
  ASSERT_TRUE(AdmitPlan(FirstPlan(), TestLimits(), 0, table).ok());
  v1::MicroBatchPlan grow = SecondPlan();
  grow.mutable_rows(0)->add_blocks(8);
  EXPECT_THAT(AdmitPlan(grow, TestLimits(), 1, table)->sequences[0].blocks, ElementsAre(3, 4, 8));
  v1::MicroBatchPlan keep = SecondPlan();
  keep.set_step(3);
  keep.mutable_rows(0)->set_kv_position(6);
  keep.mutable_rows(0)->set_table_start(0);
  EXPECT_THAT(AdmitPlan(keep, TestLimits(), 2, table)->sequences[0].blocks, ElementsAre(3, 4, 8));
  v1::MicroBatchPlan replace = keep;
  replace.set_step(4);
  replace.mutable_rows(0)->set_kv_position(7);
  for (const uint32_t block : {1u, 2u}) replace.mutable_rows(0)->add_blocks(block);
  EXPECT_THAT(AdmitPlan(replace, TestLimits(), 3, table)->sequences[0].blocks, ElementsAre(1, 2));
}

TEST(PlanCheck, AcceptsAStepWithoutRows) {
  SequenceTable table;
  v1::MicroBatchPlan plan;
  plan.set_term(7);
  plan.set_epoch(3);
  plan.set_step(1);
  const absl::StatusOr<StepPlan> step = AdmitPlan(plan, TestLimits(), 0, table);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->rows(), 0);
}

TEST(PlanCheck, GivesTheLastStageThePastThatPenaltiesNeed) {
  v1::MicroBatchPlan plan = FirstPlan();
  plan.mutable_begins(0)->mutable_sampling()->set_presence_penalty(1);
  plan.mutable_begins(0)->add_history(9);
  plan.mutable_rows(0)->set_kv_position(1);
  SequenceTable table;
  const absl::StatusOr<StepPlan> step = AdmitPlan(plan, TestLimits(), 0, table);
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_EQ(step->histories.size(), 1u);
  EXPECT_EQ(step->histories[0].sequence, 5u);
  EXPECT_EQ(step->histories[0].prompt_tokens, 5u);
  EXPECT_THAT(step->histories[0].tokens, ElementsAre(9));
  SequenceTable other;
  StageLimits first_of_two = TestLimits();
  first_of_two.stage_count = 2;
  EXPECT_TRUE(AdmitPlan(plan, first_of_two, 0, other)->histories.empty());
  SequenceTable without;
  EXPECT_TRUE(AdmitPlan(FirstPlan(), TestLimits(), 0, without)->histories.empty());
}

TEST(PlanCheck, TakesARowWhoseTokenAnEarlierStepSamples) {
  SequenceTable table;
  ASSERT_TRUE(AdmitPlan(FirstPlan(), TestLimits(), 0, table).ok());
  v1::MicroBatchPlan plan = SecondPlan();
  plan.mutable_rows(0)->set_token_of_step(1);
  plan.mutable_rows(0)->set_tokens(0, -77);  // means nothing
  for (uint64_t step = 2; step <= 3; ++step) {
    plan.set_step(step);
    plan.mutable_rows(0)->set_kv_position(static_cast<uint32_t>(step) + 3);
    plan.mutable_rows(0)->set_token_of_step(step - 1);
    const absl::StatusOr<StepPlan> admitted = AdmitPlan(plan, TestLimits(), step - 1, table);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    EXPECT_THAT(admitted->tokens, ElementsAre(0));
    EXPECT_EQ(admitted->sequences[0].token_of_step, step - 1);
  }
}

TEST(PlanCheck, LimitsHowLongAgoATokenWasSampled) {
  SequenceTable table;
  ASSERT_TRUE(AdmitPlan(FirstPlan(), TestLimits(), 0, table).ok());
  v1::MicroBatchPlan empty;
  empty.set_term(7);
  empty.set_epoch(3);
  empty.set_step(2);
  ASSERT_TRUE(AdmitPlan(empty, TestLimits(), 1, table).ok());
  v1::MicroBatchPlan plan = SecondPlan();
  plan.mutable_rows(0)->set_token_of_step(1);
  plan.set_step(3);
  EXPECT_TRUE(CheckPlan(plan, TestLimits(), 2, table).ok()) << "max_in_flight is 2";
  empty.set_step(3);
  ASSERT_TRUE(AdmitPlan(empty, TestLimits(), 2, table).ok());
  plan.set_step(4);
  const absl::Status late = CheckPlan(plan, TestLimits(), 3, table);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("max_in_flight"));
}

// Step 1 gives sequence 5 tokens without sampling one after them.
TEST(PlanCheck, RefusesTheTokenOfAStepThatSamplesNone) {
  SequenceTable table;
  v1::MicroBatchPlan first = FirstPlan();
  first.mutable_rows(0)->clear_sample_bitmap();
  ASSERT_TRUE(AdmitPlan(first, TestLimits(), 0, table).ok());
  v1::MicroBatchPlan plan = SecondPlan();
  plan.mutable_rows(0)->set_token_of_step(1);
  const absl::Status status = CheckPlan(plan, TestLimits(), 1, table);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no sampling step"));
}

struct Refusal {
  std::string name;
  std::function<void(v1::MicroBatchPlan&)> change;  // of SecondPlan
  absl::StatusCode code;
  std::string words;
};

v1::RowDescriptor& Row(v1::MicroBatchPlan& plan) { return *plan.mutable_rows(0); }

// A begin of sequence 6 whose sampling the test spoils.
v1::ResolvedSampling& Spoil(v1::MicroBatchPlan& plan) {
  *plan.add_begins() = BeginOf(6, 1);
  return *plan.mutable_begins(0)->mutable_sampling();
}

std::vector<Refusal> Refusals() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kWrong = absl::StatusCode::kFailedPrecondition;
  constexpr auto kNot = absl::StatusCode::kUnimplemented;
  using Plan = v1::MicroBatchPlan;
  return {
      {"older epoch", [](Plan& p) { p.set_epoch(2); }, kWrong, "epoch 2"},
      {"other term", [](Plan& p) { p.set_term(8); }, kWrong, "term 8"},
      {"repeat", [](Plan& p) { p.set_step(1); }, kWrong, "a repeat"},
      {"gap", [](Plan& p) { p.set_step(3); }, kWrong, "a gap"},
      {"unknown sequence", [](Plan& p) { Row(p).set_sequence(77); }, kWrong, "77"},
      {"rows twice", [](Plan& p) { *p.add_rows() = p.rows(0); }, kInvalid, "twice"},
      {"no tokens", [](Plan& p) { Row(p).clear_tokens(); }, kInvalid, "no tokens"},
      {"token over the vocabulary", [](Plan& p) { Row(p).set_tokens(0, 100); }, kInvalid, "100"},
      {"negative token", [](Plan& p) { Row(p).set_tokens(0, -1); }, kInvalid, "-1"},
      {"block out of range", [](Plan& p) { Row(p).add_blocks(16); }, kInvalid, "block 16"},
      {"table_start in the middle", [](Plan& p) { Row(p).set_table_start(1); }, kWrong, "2 blocks"},
      {"table_start beyond", [](Plan& p) { Row(p).set_table_start(3); }, kWrong, "table_start"},
      {"table too long",
       [](Plan& p) {
         for (uint32_t i = 0; i < 7; ++i) Row(p).add_blocks(8 + i);
       },
       kInvalid, "over the 8"},
      {"position beyond what is computed", [](Plan& p) { Row(p).set_kv_position(6); }, kWrong,
       "only 5"},
      {"position over the context", [](Plan& p) { Row(p).set_kv_position(0xffffffff); }, kInvalid,
       "context"},
      {"position beyond the table",
       [](Plan& p) {
         Row(p).set_table_start(0);
         Row(p).add_blocks(1);
       },
       kInvalid, "block table covers"},
      {"too many rows",
       [](Plan& p) {
         for (int i = 0; i < 12; ++i) Row(p).add_tokens(1);
       },
       kInvalid, "12 rows"},
      {"bitmap too long", [](Plan& p) { Row(p).set_sample_bitmap("ab"); }, kInvalid, "1 for 1"},
      {"bitmap with bits beyond", [](Plan& p) { Row(p).set_sample_bitmap("\x02"); }, kInvalid,
       "beyond"},
      {"sampling a known token",
       [](Plan& p) {
         Row(p).add_tokens(1);
         Row(p).set_known_tokens(2);
         Row(p).set_sample_bitmap("\x01");
       },
       kNot, "score_tokens"},
      {"rope positions short",
       [](Plan& p) {
         Row(p).add_tokens(1);
         Row(p).set_known_tokens(2);
         Row(p).add_rope_positions(0);
       },
       kInvalid, "rope_positions"},
      {"negative rope position", [](Plan& p) { Row(p).add_rope_positions(-1); }, kInvalid, "-1"},
      {"rope position too far", [](Plan& p) { Row(p).add_rope_positions(32); }, kInvalid, "32"},
      {"drafts", [](Plan& p) { Row(p).set_known_tokens(0); }, kNot, "known_tokens"},
      {"speculative", [](Plan& p) { Row(p).set_speculative(true); }, kNot, "speculative"},
      {"a token of this step", [](Plan& p) { Row(p).set_token_of_step(2); }, kWrong,
       "must be one of the 2 before"},
      {"a token of a later step", [](Plan& p) { Row(p).set_token_of_step(~uint64_t{0}); }, kWrong,
       "must be one of the 2 before"},
      {"two tokens of a step",
       [](Plan& p) {
         Row(p).set_token_of_step(1);
         Row(p).add_tokens(1);
         Row(p).set_known_tokens(2);
       },
       kInvalid, "with 2 tokens"},
      {"an unknown token of a step",
       [](Plan& p) {
         Row(p).set_token_of_step(1);
         Row(p).set_known_tokens(0);
       },
       kNot, "known_tokens"},
      {"a token of a step at an earlier position",
       [](Plan& p) {
         Row(p).set_token_of_step(1);
         Row(p).set_kv_position(4);
       },
       kWrong, "does not sample the token of position 4"},
      {"a token of a step of a sequence that begins here",
       [](Plan& p) {
         *p.add_begins() = BeginOf(5, 5);
         Row(p).set_token_of_step(1);
         Row(p).set_kv_position(0);
         Row(p).set_table_start(0);
         Row(p).add_blocks(3);
       },
       kWrong, "no sampling step"},
      {"token mask", [](Plan& p) { Row(p).set_token_mask("x"); }, kNot, "token_mask"},
      {"end of a stranger", [](Plan& p) { p.add_ends(77); }, kWrong, "77"},
      {"end twice",
       [](Plan& p) {
         p.add_ends(5);
         p.add_ends(5);
       },
       kInvalid, "twice"},
      {"begin twice",
       [](Plan& p) {
         *p.add_begins() = BeginOf(6, 1);
         *p.add_begins() = BeginOf(6, 1);
       },
       kInvalid, "twice"},
      {"too many sequences",
       [](Plan& p) {
         *p.add_begins() = BeginOf(6, 1);
         *p.add_begins() = BeginOf(7, 1);
       },
       absl::StatusCode::kResourceExhausted, "max_sequences"},
      {"prompt over the context", [](Plan& p) { *p.add_begins() = BeginOf(6, 33); }, kInvalid,
       "prompt_tokens"},
      {"history token out of range",
       [](Plan& p) {
         *p.add_begins() = BeginOf(6, 1);
         p.mutable_begins(0)->add_history(100);
       },
       kInvalid, "history"},
      {"temperature NaN", [](Plan& p) { Spoil(p).set_temperature(kNan); }, kInvalid, "temperature"},
      {"temperature negative", [](Plan& p) { Spoil(p).set_temperature(-1); }, kInvalid,
       "temperature"},
      {"temperature infinite", [](Plan& p) { Spoil(p).set_temperature(INFINITY); }, kInvalid,
       "temperature"},
      {"top_k negative", [](Plan& p) { Spoil(p).set_top_k(-1); }, kInvalid, "top_k"},
      {"top_p zero", [](Plan& p) { Spoil(p).set_top_p(0); }, kInvalid, "top_p"},
      {"top_p NaN", [](Plan& p) { Spoil(p).set_top_p(kNan); }, kInvalid, "top_p"},
      {"min_p over one", [](Plan& p) { Spoil(p).set_min_p(1.5f); }, kInvalid, "min_p"},
      {"repetition zero", [](Plan& p) { Spoil(p).set_repetition_penalty(0); }, kInvalid,
       "repetition_penalty"},
      {"presence", [](Plan& p) { Spoil(p).set_presence_penalty(3); }, kInvalid, "presence"},
      {"frequency", [](Plan& p) { Spoil(p).set_frequency_penalty(kNan); }, kInvalid, "frequency"},
      {"top_logprobs", [](Plan& p) { Spoil(p).set_top_logprobs(21); }, kInvalid, "top_logprobs"},
      {"two rows in one place",
       [](Plan& p) {
         *p.add_begins() = BeginOf(6, 1);
         *p.add_rows() = RowsOf(6, Tokens(2), 0, 2, false);
         p.mutable_rows(1)->add_blocks(4);
       },
       kInvalid, "block 4"},
  };
}

TEST(PlanCheck, RefusesWhatDoesNotFitAndLeavesTheTableAlone) {
  for (const Refusal& refusal : Refusals()) {
    SCOPED_TRACE(refusal.name);
    SequenceTable table;
    ASSERT_TRUE(AdmitPlan(FirstPlan(), TestLimits(), 0, table).ok());
    v1::MicroBatchPlan plan = SecondPlan();
    refusal.change(plan);
    const absl::StatusOr<StepPlan> step = AdmitPlan(plan, TestLimits(), 1, table);
    EXPECT_EQ(step.status().code(), refusal.code) << step.status();
    EXPECT_THAT(step.status().message(), HasSubstr(refusal.words));
    EXPECT_TRUE(AdmitPlan(SecondPlan(), TestLimits(), 1, table).ok()) << "the table has changed";
  }
}

TEST(PlanCheck, RefusesAnOlderBranch) {
  SequenceTable table;
  v1::MicroBatchPlan first = FirstPlan();
  first.mutable_rows(0)->set_branch(2);
  ASSERT_TRUE(AdmitPlan(first, TestLimits(), 0, table).ok());
  EXPECT_EQ(AdmitPlan(SecondPlan(), TestLimits(), 1, table).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(PlanCheck, HoldsRandomPlansToItsPromises) {
  const uint64_t seed = base::EntropySeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  base::SeededRandom random(seed);
  for (int run = 0; run < 2000; ++run) {
    std::string bytes;
    v1::MicroBatchPlan plans[] = {FirstPlan(), SecondPlan()};
    plans[0].add_saves()->set_block(3);
    plans[1].add_restores()->set_block(7);
    plans[1].mutable_rows(0)->set_token_of_step(random.Below(3));
    if (random.Below(2) == 0) {
      plans[0].mutable_begins(0)->mutable_sampling()->set_presence_penalty(1);
    }
    for (const v1::MicroBatchPlan& plan : plans) {
      std::string one = plan.SerializeAsString();
      for (uint64_t flips = random.Below(4); flips > 0; --flips) {
        one[random.Below(one.size())] = static_cast<char>(random.Next());
      }
      bytes.push_back(static_cast<char>(one.size()));
      bytes += one;
    }
    RunPlanFuzz(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

TEST(CheckAssignment, NamesTheFieldThatIsWrong) {
  const stage_worker::testing::TinyModel model((model::testing::TinyModelOptions()));
  const std::vector<std::pair<std::string, std::function<void(v1::Assignment&)>>> cases = {
      {"stage_count", [](v1::Assignment& a) { a.set_stage_count(0); }},
      {"stage ", [](v1::Assignment& a) { a.set_stage(2); }},
      {"layer_end", [](v1::Assignment& a) { a.set_layer_end(a.layer_first()); }},
      {"kv_blocks", [](v1::Assignment& a) { a.set_kv_blocks(0); }},
      {"host_kv_blocks", [](v1::Assignment& a) { a.set_host_kv_blocks(-1); }},
      {"kv_block_tokens", [](v1::Assignment& a) { a.set_kv_block_tokens(-4); }},
      {"max_rows", [](v1::Assignment& a) { a.set_max_rows(1 << 30); }},
      {"max_sequences", [](v1::Assignment& a) { a.set_max_sequences(0); }},
      {"context_tokens", [](v1::Assignment& a) { a.set_context_tokens(0); }},
      {"max_in_flight", [](v1::Assignment& a) { a.set_max_in_flight(0); }},
      {"step_timeout", [](v1::Assignment& a) { a.set_step_timeout_seconds(NAN); }},
      {"kv_type", [](v1::Assignment& a) { a.set_kv_type(v1::KV_CACHE_TYPE_UNSPECIFIED); }},
  };
  for (const auto& [word, change] : cases) {
    v1::Assignment assignment = model.Assign(0, 2);
    ASSERT_TRUE(CheckAssignment(assignment).ok());
    change(assignment);
    EXPECT_THAT(CheckAssignment(assignment).message(), HasSubstr(word));
  }
}

TEST(CheckAssignment, TakesEveryTypeOfKvCacheAndCountsItsBytesAsTheKernelsDo) {
  const stage_worker::testing::TinyModel model((model::testing::TinyModelOptions()));
  for (const std::string& name : KvCacheTypeNames()) {
    const v1::KvCacheType type = *ParseKvCacheType(name);
    v1::Assignment assignment = model.Assign(0, 2);
    assignment.set_kv_type(type);
    EXPECT_TRUE(CheckAssignment(assignment).ok());
    const std::optional<kernels::KvType> kernel_type = KvTypeOf(type);
    ASSERT_TRUE(kernel_type.has_value()) << name;
    EXPECT_EQ(kernels::KvTypeName(*kernel_type), name);
    for (const int head_dim : {2, 32, 80, 128, 250}) {
      EXPECT_EQ(kernels::KvHeadBytes(*kernel_type, head_dim),
                KvHeadBytes(type, static_cast<uint32_t>(head_dim)));
    }
  }
}

TEST(LimitsForModel, RefusesLayersAndSlotsThatDoNotFitTheModel) {
  const stage_worker::testing::TinyModel model((model::testing::TinyModelOptions()));
  const std::vector<std::function<void(v1::Assignment&)>> cases = {
      [](v1::Assignment& a) { a.set_layer_first(1); },
      [](v1::Assignment& a) { a.set_layer_end(4); },
      [](v1::Assignment& a) { a.set_layer_end(5); },
      [](v1::Assignment& a) {
        a.mutable_ring()->set_activation_slot_bytes(a.ring().activation_slot_bytes() - 1);
      },
  };
  for (const auto& change : cases) {
    v1::Assignment assignment = model.Assign(0, 2);
    ASSERT_TRUE(LimitsForModel(assignment, model.config()).ok());
    change(assignment);
    EXPECT_EQ(LimitsForModel(assignment, model.config()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace layercake::stage_worker
