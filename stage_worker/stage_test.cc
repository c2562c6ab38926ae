#include "stage_worker/stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "proto/testing/loop_thread.h"
#include "stage_worker/activation_frame.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker {
namespace {

using model::testing::TinyModelOptions;
using stage_worker::testing::BeginOf;
using stage_worker::testing::MakeStage;
using stage_worker::testing::ReferenceLogits;
using stage_worker::testing::ReferenceLogprob;
using stage_worker::testing::RowsOf;
using stage_worker::testing::TinyModel;

// The stages of one model on one device, one step after the other, without loop or channels.
class Chain {
 public:
  Chain(const TinyModel& model, int stages, bool mapped = true) : model_(model) {
    device_ = kernels::CreateCpuDevice({.threads = 2}, loop_.loop()).value();
    ops_ = kernels::CreateCpuOps(*device_).value();
    for (int stage = 0; stage < stages; ++stage) {
      const v1::Assignment assignment = model.Assign(stage, stages);
      limits_.push_back(LimitsForModel(assignment, model.config()).value());
      stages_.push_back(MakeStage(model, assignment, *device_, *ops_, mapped));
      slots_.emplace_back(assignment.ring().activation_slot_bytes());
      sections_.emplace_back(MaxActivationSectionBytes(limits_.back().max_rows));
    }
    tables_.resize(stages_.size());
  }
  ~Chain() {
    stages_.clear();
    ops_.reset();
    device_.reset();
  }

  // Slots look like a device's, whose memory is the host's here.
  bool device_slots = false;

  v1::MicroBatchPlan NextPlan() {
    v1::MicroBatchPlan plan;
    plan.set_term(7);
    plan.set_epoch(3);
    plan.set_step(step_ + 1);
    return plan;
  }

  // Through all stages; every stage admits the plan for itself.
  std::vector<v1::SequenceResult> Run(const v1::MicroBatchPlan& plan) {
    StepOutput output;
    const auto hidden = model_.config().hidden_size;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const StepPlan step = AdmitPlan(plan, limits_[s], step_, tables_[s]).value();
      std::vector<int32_t> marks(step.tokens.size(), kFinite);
      const StepOutput before = output;
      output = StepOutput();
      OnDevice([&]() -> absl::Status {
        if (s > 0) {
          transport::FrameHeader header;
          header.kind = transport::FrameKind::kActivation;
          header.step = step.step;
          header.section_bytes = before.section_bytes;
          header.payload_bytes = before.payload_bytes;
          transport::ReceivedFrame frame;
          frame.header = header;
          frame.payload = {slots_[s - 1].data(), before.payload_bytes};
          if (device_slots) {
            frame.payload.bytes -= before.section_bytes;
            frame.payload.space = kernels::MemorySpace::kDevice;
            frame.section = {sections_[s - 1].data(), before.section_bytes};
          }
          const kernels::Buffer section = frame.sections();
          auto decoded = DecodeActivation(
              header, absl::MakeConstSpan(section.address, section.bytes), frame.body().bytes,
              step.step, step.rows(), hidden, static_cast<int>(s));
          if (!decoded.ok()) return decoded.status();
          marks = *std::move(decoded);
          const absl::Status read = stages_[s]->ReadActivation(frame.body(), 0);
          if (!read.ok()) return read;
        }
        transport::SendSlot slot;
        if (s + 1 < stages_.size()) slot.memory = {slots_[s].data(), slots_[s].size()};
        if (device_slots) {
          slot.memory.space = kernels::MemorySpace::kDevice;
          slot.section = {sections_[s].data(), sections_[s].size()};
        }
        return stages_[s]->Run(step, marks, slot, output);
      });
    }
    ++step_;
    return output.results;
  }

 private:
  void OnDevice(std::function<absl::Status()> work) {
    absl::Notification done;
    absl::Status result;
    loop_.Run([&] {
      device_->Submit([&] { return work(); },
                      [&](absl::Status status) {
                        result = status;
                        done.Notify();
                      });
    });
    done.WaitForNotification();
    ASSERT_TRUE(result.ok()) << result;
  }

  const TinyModel& model_;
  layercake::testing::LoopThread loop_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Ops> ops_;
  std::vector<StageLimits> limits_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::vector<std::byte>> slots_;
  std::vector<std::vector<std::byte>> sections_;  // of device slots
  std::vector<SequenceTable> tables_;
  uint64_t step_ = 0;
};

std::vector<int32_t> RandomTokens(int count, uint32_t vocabulary, base::Random& random) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random.Below(vocabulary)));
  return tokens;
}

// What a sequence got: its sampled tokens with log-probabilities, and the scores of its prompt.
struct Answer {
  std::vector<std::pair<int32_t, float>> tokens;
  std::vector<float> scores;  // of positions 1, 2, ...
  friend bool operator==(const Answer&, const Answer&) = default;
};

// Greedy or drawn continuation of `prompt` by `count` tokens, the prompt in chunks, its tokens
// scored. `block` chooses where its keys lie.
Answer Generate(Chain& chain, uint64_t sequence, std::vector<int32_t> tokens, int count, int chunk,
                uint32_t block, float temperature = 0) {
  Answer answer;
  const auto prompt = static_cast<int>(tokens.size());
  const int total = prompt + count;
  for (int first = 0; first < total - 1;) {
    v1::MicroBatchPlan plan = chain.NextPlan();
    if (first == 0) {
      *plan.add_begins() = BeginOf(sequence, static_cast<uint32_t>(prompt));
      plan.mutable_begins(0)->mutable_sampling()->set_temperature(temperature);
      plan.mutable_begins(0)->mutable_sampling()->set_repetition_penalty(1.1f);
      plan.mutable_begins(0)->mutable_sampling()->set_seed(sequence);
    }
    const int rows = first < prompt ? std::min(chunk, prompt - first) : 1;
    const bool sample = first + rows >= prompt;
    *plan.add_rows() = RowsOf(sequence, tokens, first, rows, sample);
    plan.mutable_rows(0)->set_score_tokens(first < prompt);
    if (first == 0) {
      for (int i = 0; i < (total + 3) / 4; ++i) {
        plan.mutable_rows(0)->add_blocks(block + static_cast<uint32_t>(i));
      }
    }
    first += rows;
    if (first == total - 1) plan.add_ends(sequence);
    for (const v1::SequenceResult& result : chain.Run(plan)) {
      EXPECT_EQ(result.sequence(), sequence);
      EXPECT_FALSE(result.has_non_finite_stage());
      for (const v1::TokenLogprob& score : result.scores()) {
        EXPECT_EQ(score.token(), tokens[answer.scores.size() + 1]);
        answer.scores.push_back(score.logprob());
      }
      if (!result.scores().empty()) {
        EXPECT_EQ(result.scores_position(),
                  answer.scores.size() + 1 - static_cast<size_t>(result.scores_size()));
      }
      for (const v1::SampledToken& token : result.tokens()) {
        EXPECT_EQ(result.position(), tokens.size());
        answer.tokens.emplace_back(token.token(), token.logprob().logprob());
        tokens.push_back(token.token());
      }
    }
  }
  return answer;
}

std::vector<TinyModelOptions> Models() {
  TinyModelOptions llama;
  llama.rope_factors = true;
  llama.output_biases = true;
  TinyModelOptions qwen2;
  qwen2.architecture = "qwen2";
  qwen2.fused_qkv = true;
  qwen2.tied_output = true;
  TinyModelOptions qwen3;
  qwen3.architecture = "qwen3";
  qwen3.head_dim = 32;
  qwen3.yarn_factor = 4;
  return {llama, qwen2, qwen3};
}

TEST(Stage, AgreesWithAPlainForwardPass) {
  for (const TinyModelOptions& options : Models()) {
    SCOPED_TRACE(options.architecture);
    const TinyModel model(options);
    base::SeededRandom random(5);
    std::vector<int32_t> tokens = RandomTokens(9, model.config().vocab_size, random);
    Chain chain(model, 2);
    v1::MicroBatchPlan plan = chain.NextPlan();
    *plan.add_begins() = BeginOf(1, 9);
    plan.mutable_begins(0)->mutable_sampling()->set_top_logprobs(2);
    *plan.add_rows() = RowsOf(1, tokens, 0, 9, true);
    plan.mutable_rows(0)->set_score_tokens(true);
    for (const uint32_t block : {9u, 2u, 5u}) plan.mutable_rows(0)->add_blocks(block);
    const std::vector<v1::SequenceResult> results = chain.Run(plan);
    ASSERT_EQ(results.size(), 1u);
    const auto logits = ReferenceLogits(model, tokens);
    ASSERT_EQ(results[0].scores_size(), 8);
    EXPECT_EQ(results[0].scores_position(), 1u);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(results[0].scores(static_cast<int>(i)).logprob(),
                  ReferenceLogprob(logits[i], tokens[i + 1]), 1e-3);
      EXPECT_EQ(results[0].scores(static_cast<int>(i)).top_size(), 2);
    }
    ASSERT_EQ(results[0].tokens_size(), 1);
    const v1::SampledToken& token = results[0].tokens(0);
    const auto best = std::max_element(logits[8].begin(), logits[8].end());
    EXPECT_EQ(token.token(), best - logits[8].begin());
    EXPECT_NEAR(token.logprob().logprob(), ReferenceLogprob(logits[8], token.token()), 1e-3);
    EXPECT_EQ(token.logprob().top(0).token(), token.token());
  }
}

TEST(Stage, AnswersTheSameBitsForEveryCutChunkAndPlace) {
  for (const TinyModelOptions& options : Models()) {
    SCOPED_TRACE(options.architecture);
    const TinyModel model(options);
    base::SeededRandom random(11);
    const std::vector<int32_t> prompt = RandomTokens(11, model.config().vocab_size, random);
    for (const float temperature : {0.0f, 0.9f}) {
      Chain whole(model, 1);
      const Answer expected = Generate(whole, 3, prompt, 6, 32, 0, temperature);
      ASSERT_EQ(expected.tokens.size(), 6u);
      ASSERT_EQ(expected.scores.size(), 10u);
      for (const int stages : {1, 2, 3, 4}) {
        Chain chain(model, stages, /*mapped=*/stages % 2 == 0);
        for (const int chunk : {1, 3, 4, 11}) {
          const auto block = static_cast<uint32_t>(chunk * 4);
          EXPECT_EQ(Generate(chain, 3, prompt, 6, chunk, block, temperature), expected)
              << stages << " stages, chunks of " << chunk;
        }
      }
    }
  }
}

TEST(Stage, AnswersASequenceWhateverRunsBesideIt) {
  const TinyModel model((TinyModelOptions()));
  base::SeededRandom random(3);
  const std::vector<int32_t> a = RandomTokens(7, model.config().vocab_size, random);
  const std::vector<int32_t> b = RandomTokens(10, model.config().vocab_size, random);
  Chain chain(model, 2);
  const auto alone = [&](const std::vector<int32_t>& tokens) {
    v1::MicroBatchPlan plan = chain.NextPlan();
    *plan.add_begins() = BeginOf(1, 1);
    *plan.add_rows() = RowsOf(1, tokens, 0, static_cast<int>(tokens.size()), true);
    for (const uint32_t block : {1u, 2u, 3u}) plan.mutable_rows(0)->add_blocks(block);
    plan.add_ends(1);
    return chain.Run(plan).at(0).tokens(0).SerializeAsString();
  };
  const std::string alone_a = alone(a);
  const std::string alone_b = alone(b);
  v1::MicroBatchPlan plan = chain.NextPlan();
  *plan.add_begins() = BeginOf(1, 1);
  *plan.add_begins() = BeginOf(2, 1);
  *plan.add_rows() = RowsOf(2, b, 0, 10, true);
  *plan.add_rows() = RowsOf(1, a, 0, 7, true);
  for (const uint32_t block : {7u, 1u, 4u}) plan.mutable_rows(0)->add_blocks(block);
  for (const uint32_t block : {6u, 2u}) plan.mutable_rows(1)->add_blocks(block);
  const std::vector<v1::SequenceResult> both = chain.Run(plan);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].tokens(0).SerializeAsString(), alone_b);
  EXPECT_EQ(both[1].tokens(0).SerializeAsString(), alone_a);
}

// The eleventh token of a sequence; `gives_way`: another one took its blocks before, in the very
// step that saved them, and it goes on in other blocks.
std::string EleventhToken(const TinyModel& model, int stages, bool gives_way) {
  base::SeededRandom random(7);
  const std::vector<int32_t> tokens = RandomTokens(11, model.config().vocab_size, random);
  const std::vector<int32_t> others = RandomTokens(12, model.config().vocab_size, random);
  const auto copy = [](uint32_t block, uint32_t host_block) {
    v1::BlockCopy copied;
    copied.set_block(block);
    copied.set_host_block(host_block);
    return copied;
  };
  Chain chain(model, stages);
  v1::MicroBatchPlan plan = chain.NextPlan();
  *plan.add_begins() = BeginOf(1, 11);
  *plan.add_rows() = RowsOf(1, tokens, 0, 10, false);
  for (const uint32_t block : {0u, 1u, 2u}) plan.mutable_rows(0)->add_blocks(block);
  chain.Run(plan);
  if (gives_way) {
    plan = chain.NextPlan();
    *plan.add_saves() = copy(0, 3);
    *plan.add_saves() = copy(1, 0);
    *plan.add_saves() = copy(2, 1);
    *plan.add_begins() = BeginOf(2, 12);
    *plan.add_rows() = RowsOf(2, others, 0, 12, true);
    for (const uint32_t block : {2u, 0u, 1u}) plan.mutable_rows(0)->add_blocks(block);
    chain.Run(plan);
  }
  plan = chain.NextPlan();
  *plan.add_rows() = RowsOf(1, tokens, 10, 1, true);
  if (gives_way) {
    *plan.add_restores() = copy(9, 3);
    *plan.add_restores() = copy(2, 0);
    *plan.add_restores() = copy(7, 1);
    *plan.add_begins() = BeginOf(1, 11);
    plan.mutable_begins(0)->mutable_history()->Add(tokens.begin(), tokens.begin() + 10);
    for (const uint32_t block : {9u, 2u, 7u}) plan.mutable_rows(0)->add_blocks(block);
  } else {
    plan.mutable_rows(0)->set_table_start(3);
  }
  return chain.Run(plan).at(0).tokens(0).SerializeAsString();
}

TEST(Stage, GoesOnFromRestoredBlocksAsIfTheyHadNeverLeft) {
  const TinyModel model((TinyModelOptions()));
  for (const int stages : {1, 3}) {
    EXPECT_EQ(EleventhToken(model, stages, true), EleventhToken(model, stages, false)) << stages;
  }
}

TEST(Stage, PassesOnAStepWithoutRows) {
  const TinyModel model((TinyModelOptions()));
  Chain chain(model, 3);
  EXPECT_TRUE(chain.Run(chain.NextPlan()).empty());
}

// A model whose tensor of that name begins with a NaN.
TinyModel Poisoned(const std::string& tensor) {
  const TinyModelOptions options;
  model::testing::GgufBuilder builder = model::testing::BuildTinyModel(options);
  const TinyModel healthy(builder);
  const auto source = healthy.Source();
  const model::TensorInfo* info = source->files().FindTensor(tensor);
  const absl::Span<const std::byte> bytes = *source->Map(tensor);
  std::vector<std::byte> spoiled(bytes.begin(), bytes.end());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(spoiled.data(), &nan, sizeof(nan));
  std::vector<uint64_t> ne(info->ne.begin(), info->ne.begin() + info->n_dims);
  builder.RemoveTensor(tensor);
  builder.AddTensor(tensor, info->type, ne, spoiled);
  return TinyModel(builder);
}

TEST(Stage, NamesTheFirstStageThatSawANonFiniteRow) {
  for (int layer = 0; layer < 4; ++layer) {
    const TinyModel model = Poisoned(absl::StrCat("blk.", layer, ".ffn_down.weight"));
    for (const int stages : {1, 2, 4}) {
      Chain chain(model, stages);
      v1::MicroBatchPlan plan = chain.NextPlan();
      *plan.add_begins() = BeginOf(1, 3);
      *plan.add_rows() = RowsOf(1, {1, 2, 3}, 0, 3, /*sample=*/false);
      plan.mutable_rows(0)->add_blocks(0);
      const std::vector<v1::SequenceResult> results = chain.Run(plan);
      ASSERT_EQ(results.size(), 1u);
      ASSERT_TRUE(results[0].has_non_finite_stage());
      EXPECT_EQ(results[0].non_finite_stage(), layer * stages / 4);
      EXPECT_TRUE(results[0].tokens().empty());
    }
  }
}

TEST(Stage, EndsOnlyTheSequenceThatIsNonFinite) {
  // Token 0's embedding alone is spoiled.
  const TinyModel model = Poisoned("token_embd.weight");
  for (const bool device_slots : {false, true}) {
    Chain chain(model, 2);
    chain.device_slots = device_slots;
    v1::MicroBatchPlan plan = chain.NextPlan();
    *plan.add_begins() = BeginOf(1, 2);
    *plan.add_begins() = BeginOf(2, 2);
    *plan.add_rows() = RowsOf(1, {5, 0}, 0, 2, true);
    *plan.add_rows() = RowsOf(2, {5, 6}, 0, 2, true);
    plan.mutable_rows(0)->add_blocks(0);
    plan.mutable_rows(1)->add_blocks(1);
    const std::vector<v1::SequenceResult> results = chain.Run(plan);
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].non_finite_stage(), 0);
    EXPECT_TRUE(results[0].has_non_finite_stage());
    EXPECT_TRUE(results[0].tokens().empty());
    EXPECT_FALSE(results[1].has_non_finite_stage());
    EXPECT_EQ(results[1].tokens_size(), 1);
  }
}

TEST(FetchTensors, CountsToTheEndAndStopsWhenTold) {
  const TinyModel model((TinyModelOptions()));
  const auto source = model.Source();
  const model::WeightMap plan =
      model::PlanWeights(model.config(), source->files().tensors(), 0, 4).value();
  uint64_t last = 0;
  const auto all = FetchTensors(*source, plan, [&](uint64_t loaded, uint64_t total) {
    EXPECT_GT(loaded, last);
    EXPECT_EQ(total, plan.total_bytes);
    last = loaded;
    return true;
  });
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(last, plan.total_bytes);
  const auto stopped = FetchTensors(*source, plan, [](uint64_t, uint64_t) { return false; });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace layercake::stage_worker
