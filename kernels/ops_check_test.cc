#include "kernels/ops_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace layercake::kernels {
namespace {

using ::testing::HasSubstr;

class ShapedMatrix final : public Matrix {
 public:
  ShapedMatrix(int64_t n, int64_t k) : Matrix(n, k) {}
};
class ShapedVector final : public Vector {
 public:
  explicit ShapedVector(int64_t size) : Vector(size) {}
};

void ExpectRefused(const absl::Status& status, absl::string_view why) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(status.message(), HasSubstr(why));
}

TEST(OpsCheck, WantsBuffersOfTheRightSizeInTheRightMemory) {
  std::byte byte{};
  const Buffer host = {&byte, 48, MemorySpace::kHost};
  EXPECT_TRUE(CheckBuffer("x", host, MemorySpace::kHost, 3, 4).ok());
  ExpectRefused(CheckBuffer("x", host, MemorySpace::kHost, 3, 5), "x of (3, 5) floats needs 60");
  ExpectRefused(CheckBuffer("x", host, MemorySpace::kDevice, 3, 4),
                "device memory, got 48 of host memory");
  ExpectRefused(CheckBuffer("x", host, MemorySpace::kHost, int64_t{1} << 62, 8), "2^64");
}

TEST(OpsCheck, NamesMatricesAndVectorsThatDoNotFit) {
  const ShapedMatrix matrix(3, 4);
  EXPECT_TRUE(CheckMatrix("w", &matrix, 3, 4).ok());
  ExpectRefused(CheckMatrix("w", &matrix, 4, 3), "w is (3, 4) where (4, 3) belongs");
  ExpectRefused(CheckMatrix("w", nullptr, 3, 4), "w is missing");
  const ShapedVector vector(5);
  EXPECT_TRUE(CheckVector("b", &vector, 5).ok());
  EXPECT_TRUE(CheckVector("b", nullptr, 5).ok());
  ExpectRefused(CheckVector("b", &vector, 6), "b has 5 values where 6 belong");
}

TEST(OpsCheck, WantsCachesOfPositiveSizesAndEvenHeads) {
  const KvCacheSpec good = {2, 8, 16, 2, 64, KvType::kF16};
  EXPECT_TRUE(CheckKvCacheSpec(good, 0).ok());
  EXPECT_TRUE(CheckKvCacheSpec(good, 64).ok());
  ExpectRefused(CheckKvCacheSpec(good, 62), "at most 62");
  for (int KvCacheSpec::*field :
       {&KvCacheSpec::layers, &KvCacheSpec::blocks, &KvCacheSpec::block_tokens,
        &KvCacheSpec::kv_heads, &KvCacheSpec::head_dim}) {
    for (const int wrong : {0, -2}) {
      KvCacheSpec spec = good;
      spec.*field = wrong;
      ExpectRefused(CheckKvCacheSpec(spec, 0), KvCacheShape(spec));
    }
  }
  KvCacheSpec odd = good;
  odd.head_dim = 63;
  ExpectRefused(CheckKvCacheSpec(odd, 0), "even");
}

TEST(OpsCheck, WantsAsManyPositionsAsRowsAndTokensOfTheTable) {
  const int32_t positions[] = {0, 1};
  const absl::Span<const int32_t> two = positions;
  const absl::Span<const int32_t> one = two.subspan(1);
  EXPECT_TRUE(CheckStepRows({2, two, two, two, {}}).ok());
  EXPECT_TRUE(CheckStepRows({0, {}, {}, {}, {}}).ok());
  ExpectRefused(CheckStepRows({2, one, two, two, {}}), "2 rows came with 1, 2, 2");
  ExpectRefused(CheckStepRows({2, two, one, two, {}}), "2 rows came with 2, 1, 2");
  ExpectRefused(CheckStepRows({2, two, two, one, {}}), "2 rows came with 2, 2, 1");
  ExpectRefused(CheckStepRows({-1, {}, {}, {}, {}}), "-1 rows");
  EXPECT_TRUE(CheckTokens(two, 2).ok());
  ExpectRefused(CheckTokens(two, 1), "token 1 is outside the embedding's 1 rows");
  const int32_t negative[] = {-1};
  ExpectRefused(CheckTokens(negative, 9), "token -1");
}

// An attention layer of 6 heads over 2 kv heads of 8, that fits.
struct Layer {
  ShapedVector norm{32}, q_bias{48}, kv_bias{16}, head_norm{8}, wrong{3};
  ShapedMatrix wq{48, 32}, wkv{16, 32}, narrow{40, 32};
  AttentionWeights weights;
  Rope rope;
  KvCacheSpec spec = {2, 4, 16, 2, 8, KvType::kF16};

  Layer() {
    weights = {.norm = &norm,
               .norm_eps = 0,
               .wq = &wq,
               .wk = &wkv,
               .wv = &wkv,
               .bq = &q_bias,
               .bk = &kv_bias,
               .bv = &kv_bias,
               .q_norm = &head_norm,
               .k_norm = &head_norm};
    rope.rope_dims = 8;
    rope.inv_freq.assign(4, 1.0f);
  }
  absl::Status Check(int layer = 0) const {
    return CheckAttentionInput(weights, rope, spec, layer);
  }
};

TEST(OpsCheck, NamesWhatDoesNotFitAnAttentionLayer) {
  EXPECT_TRUE(Layer().Check(1).ok());
  ExpectRefused(Layer().Check(2), "layer 2 of 2");
  ExpectRefused(Layer().Check(-1), "layer -1 of 2");
  const struct {
    absl::string_view why;
    void (*spoil)(Layer&);
  } cases[] = {
      {"the attention norm is missing", [](Layer& l) { l.weights.norm = nullptr; }},
      {"wq is missing", [](Layer& l) { l.weights.wq = nullptr; }},
      {"wk is missing", [](Layer& l) { l.weights.wk = nullptr; }},
      {"wk is (48, 32)", [](Layer& l) { l.weights.wk = &l.wq; }},
      {"wv is (48, 32)", [](Layer& l) { l.weights.wv = &l.wq; }},
      {"bq has 3", [](Layer& l) { l.weights.bq = &l.wrong; }},
      {"bk has 3", [](Layer& l) { l.weights.bk = &l.wrong; }},
      {"bv has 3", [](Layer& l) { l.weights.bv = &l.wrong; }},
      {"q_norm has 3", [](Layer& l) { l.weights.q_norm = &l.wrong; }},
      {"k_norm has 3", [](Layer& l) { l.weights.k_norm = &l.wrong; }},
      {"wq gives 40 values on 2 kv heads of 8",
       [](Layer& l) {
         l.weights.wq = &l.narrow;
         l.weights.bq = nullptr;
       }},
      {"rope turns 10 of 8", [](Layer& l) { l.rope.rope_dims = 10; }},
      {"rope turns 7 of 8", [](Layer& l) { l.rope.rope_dims = 7; }},
      {"with 3 frequencies", [](Layer& l) { l.rope.inv_freq.resize(3); }},
  };
  for (const auto& c : cases) {
    Layer layer;
    c.spoil(layer);
    ExpectRefused(layer.Check(), c.why);
  }
}

TEST(OpsCheck, WantsWholeGroupsOfHeadsAndALayerOfTheCache) {
  const KvCacheSpec spec = {2, 4, 16, 2, 8, KvType::kF16};
  EXPECT_TRUE(CheckAttention(spec, 1, 6).ok());
  for (const int heads : {0, -2, 5}) {
    ExpectRefused(CheckAttention(spec, 0, heads), absl::StrCat(heads, " heads over 2"));
  }
  for (const int layer : {-1, 2}) {
    ExpectRefused(CheckAttention(spec, layer, 6), absl::StrCat("layer ", layer, " of 2"));
  }
}

TEST(OpsCheck, NamesWhatDoesNotFitAnFfn) {
  const ShapedVector norm(8), bias(16), wrong(3);
  const ShapedMatrix gate(16, 8), other(16, 9);
  EXPECT_TRUE(CheckFfn({&norm, 0, &gate, &gate, &bias, &bias}).ok());
  EXPECT_TRUE(CheckFfn({&norm, 0, &gate, &gate, nullptr, nullptr}).ok());
  ExpectRefused(CheckFfn({nullptr, 0, &gate, &gate, nullptr, nullptr}), "the ffn norm is missing");
  ExpectRefused(CheckFfn({&norm, 0, nullptr, &gate, nullptr, nullptr}), "gate is missing");
  ExpectRefused(CheckFfn({&norm, 0, &other, &gate, nullptr, nullptr}), "gate is (16, 9)");
  ExpectRefused(CheckFfn({&norm, 0, &gate, &other, nullptr, nullptr}), "up is (16, 9)");
  ExpectRefused(CheckFfn({&norm, 0, &gate, &gate, &wrong, nullptr}), "the gate's bias has 3");
  ExpectRefused(CheckFfn({&norm, 0, &gate, &gate, nullptr, &wrong}), "up's bias has 3");
}

TEST(OpsCheck, FindsTheLargestSelectedRow) {
  const int32_t rows[] = {1, 7, 3};
  EXPECT_EQ(*LargestSelected(rows), 7);
  EXPECT_EQ(*LargestSelected({}), -1);
  const int32_t negative[] = {1, -7};
  ExpectRefused(LargestSelected(negative).status(), "selected row -7");
}

class SampleRequests : public testing::Test {
 protected:
  static SampleRequest For(int32_t row) {
    SampleRequest request;
    request.logits_row = row;
    return request;
  }
  absl::Status Check(const std::vector<SampleRequest>& requests, size_t results,
                     int64_t vocabulary = 40) {
    const Buffer logits = {reinterpret_cast<std::byte*>(floats_), sizeof(floats_),
                           MemorySpace::kHost};
    return CheckSampleRequests(logits, MemorySpace::kHost, vocabulary, requests, results);
  }
  void ExpectOneRefused(const SampleRequest& request, absl::string_view why) {
    ExpectRefused(Check({request}, 1), why);
  }

  float floats_[3 * 40] = {};
};

TEST_F(SampleRequests, AreTakenInAnyOrderOfRows) {
  const SeenToken seen[] = {{0, 1}, {39, 0}};
  const uint32_t mask[] = {1, 2};
  SampleRequest request = For(2);
  request.seen = seen;
  request.allowed = mask;
  request.top_logprobs = kMaxTopLogprobs;
  EXPECT_TRUE(Check({request, For(0)}, 2).ok());
  EXPECT_TRUE(Check({}, 0).ok());
}

TEST_F(SampleRequests, AreRefusedWithWhatIsWrong) {
  ExpectRefused(Check({SampleRequest{}}, 2), "room for 2");
  ExpectRefused(Check({}, 0, 0), "vocabulary of 0");
  ExpectRefused(Check({SampleRequest{}, SampleRequest{}}, 2), "row 0 is sampled twice");
  std::vector<SampleRequest> apart(3);
  apart[0].logits_row = apart[2].logits_row = 1;
  ExpectRefused(Check(apart, 3), "row 1 is sampled twice");
  ExpectOneRefused(For(-1), "logits row -1 names no row");
  ExpectOneRefused(For(3), "logits of (4, 40)");
  const SeenToken beyond[] = {{40, 1}};
  const SeenToken negative[] = {{-1, 1}};
  const uint32_t mask[] = {1};
  SampleRequest request;
  request.seen = beyond;
  ExpectOneRefused(request, "seen token 40");
  request.seen = negative;
  ExpectOneRefused(request, "seen token -1");
  request = {};
  request.allowed = mask;
  ExpectOneRefused(request, "mask of 1 words");
  request = {};
  request.top_logprobs = kMaxTopLogprobs + 1;
  ExpectOneRefused(request, "21 log-probabilities; at most 20");
}

}  // namespace
}  // namespace layercake::kernels
