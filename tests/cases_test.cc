// What really goes wrong for people who serve models, asked through the real door: a coordinator
// with gRPC, two stage workers that dialled it, a tiny model. The letters are those of the cases in
// the issue tracker: D1 stop strings, D3 odd requests, D4 the context's end, B3 BOS, G1 NaN.
#include <grpcpp/grpcpp.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/coordinator_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layercake/v1/inference.grpc.pb.h"
#include "model/gguf/testing/tiny_model.h"
#include "proto/errors.h"
#include "proto/rpc_status.h"
#include "stage_worker/worker_process.h"
#include "tests/testing/golden_files.h"

namespace layercake::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kContext = 128;

// A served chain; everything ends with it.
class ServedChain {
 public:
  explicit ServedChain(const std::string& model_path, int kv_blocks = 0) {
    coordinator::CoordinatorProcessOptions options;
    options.model_path = model_path;
    options.stages = 2;
    options.context_tokens = kContext;
    options.kv_blocks = kv_blocks;
    auto created = coordinator::CreateCoordinatorProcess(options);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return;
    process_ = *std::move(created);
    for (int stage = 0; stage < options.stages; ++stage) {
      stage_worker::WorkerProcessOptions worker;
      worker.coordinator = process_->worker_address();
      worker.threads = 1;
      worker.preferred_stage = stage;
      threads_.emplace_back([worker] { EXPECT_EQ(stage_worker::RunWorkerProcess(worker), 0); });
    }
    threads_.emplace_back([this] {
      const absl::Status outcome = process_->Run(nullptr);
      EXPECT_TRUE(outcome.ok()) << outcome;
    });
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(process_->client_address(), grpc::InsecureChannelCredentials()));
    WaitUntilServing();
  }
  ~ServedChain() {
    if (process_ != nullptr) process_->RequestShutdown();
    for (std::thread& thread : threads_) thread.join();
  }

  v1::Inference::Stub& stub() { return *stub_; }
  // Whether it served within a minute. Who makes one asserts it: a failure that is counted before a
  // suite's first test makes GoogleTest skip them all, and ctest calls that skipped.
  bool serving() const { return serving_; }

 private:
  void WaitUntilServing() {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    while (std::chrono::system_clock::now() < deadline) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(deadline);
      v1::GetStatusResponse status;
      if (stub_->GetStatus(&context, {}, &status).ok() &&
          status.state() == v1::CHAIN_STATE_SERVING) {
        serving_ = true;
        return;
      }
    }
  }

  std::unique_ptr<coordinator::CoordinatorProcess> process_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::vector<std::thread> threads_;
  bool serving_ = false;
};

struct Answer {
  std::string text;
  int deltas = 0;
  int ids = 0;
  v1::Started started;
  v1::Finished finished;
  absl::Status status;
};

Answer Ask(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) answer.started = response.started();
    if (response.has_delta()) {
      answer.text += response.delta().text();
      answer.ids += response.delta().token_ids_size();
      ++answer.deltas;
    }
    if (response.has_finished()) answer.finished = response.finished();
  }
  answer.status = FromGrpcStatus(reader->Finish());
  return answer;
}

v1::GenerateRequest TextRequest(const std::string& prompt, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.set_ignore_end_of_generation(true);
  return request;
}

v1::GenerateRequest IdsRequest(int count, int max_tokens) {
  v1::GenerateRequest request = TextRequest("", max_tokens);
  for (int i = 0; i < count; ++i) request.mutable_tokens()->add_ids(1 + i % 200);
  return request;
}

// The first place at or after `at` where a character begins, or the end.
size_t CharacterAt(const std::string& text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

v1::GetLoadsResponse Loads(v1::Inference::Stub& stub) {
  grpc::ClientContext context;
  v1::GetLoadsResponse loads;
  EXPECT_TRUE(stub.GetLoads(&context, {}, &loads).ok());
  return loads;
}

std::string TinyPath() { return GoldenPath("tiny/qwen3_wide_heads.gguf"); }

class Cases : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { chain_ = std::make_unique<ServedChain>(TinyPath()); }
  static void TearDownTestSuite() { chain_.reset(); }
  void SetUp() override { ASSERT_TRUE(chain_->serving()); }
  static std::unique_ptr<ServedChain> chain_;
};
std::unique_ptr<ServedChain> Cases::chain_;

TEST_F(Cases, D1StopsEndTheTextBeforeTheEarliestMatchHoweverItIsCutIntoTokens) {
  const Answer whole = Ask(chain_->stub(), TextRequest("The quick brown", 40));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(whole.ids, 40);
  int cut = 0;
  for (size_t begin = 0; begin + 4 < whole.text.size(); begin += 3) {
    const size_t from = CharacterAt(whole.text, begin);
    const std::string stop = whole.text.substr(from, CharacterAt(whole.text, from + 4) - from);
    v1::GenerateRequest request = TextRequest("The quick brown", 40);
    request.add_stop(stop);
    request.add_stop(stop + "~never~");
    const Answer answer = Ask(chain_->stub(), request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_EQ(answer.finished.matched_stop(), stop);
    EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
    ++cut;
  }
  EXPECT_GT(cut, 5);
  v1::GenerateRequest held = TextRequest("The quick brown", 40);
  held.add_stop(whole.text.substr(CharacterAt(whole.text, whole.text.size() - 4)) + "~never~");
  EXPECT_EQ(Ask(chain_->stub(), held).text, whole.text) << "held text is given at the end";
}

TEST_F(Cases, D1NothingIsComputedAfterAMatch) {
  const Answer whole = Ask(chain_->stub(), TextRequest("The quick brown", 100));
  v1::GenerateRequest request = TextRequest("The quick brown", 100);
  request.add_stop(whole.text.substr(0, CharacterAt(whole.text, 1)));
  const uint64_t before = Loads(chain_->stub()).steps_total();
  ASSERT_TRUE(Ask(chain_->stub(), request).status.ok());
  EXPECT_LE(Loads(chain_->stub()).steps_total() - before, 6u);
  EXPECT_EQ(Loads(chain_->stub()).running(), 0);
}

struct OddRequest {
  const char* name;
  const char* param;
  void (*spoil)(v1::GenerateRequest&);
};

const OddRequest kOddRequests[] = {
    {"no prompt", "prompt", [](v1::GenerateRequest& r) { r.clear_prompt(); }},
    {"empty text", "prompt", [](v1::GenerateRequest& r) { r.set_text(""); }},
    {"no ids", "prompt", [](v1::GenerateRequest& r) { r.mutable_tokens(); }},
    {"no messages", "messages", [](v1::GenerateRequest& r) { r.mutable_chat(); }},
    {"an id past the end", "prompt",
     [](v1::GenerateRequest& r) { r.mutable_tokens()->add_ids(270); }},
    {"a negative id", "prompt", [](v1::GenerateRequest& r) { r.mutable_tokens()->add_ids(-1); }},
    {"no tokens asked", "max_tokens", [](v1::GenerateRequest& r) { r.set_max_tokens(0); }},
    {"fewer than none", "max_tokens", [](v1::GenerateRequest& r) { r.set_max_tokens(-1); }},
    {"no choice", "n", [](v1::GenerateRequest& r) { r.set_n(0); }},
    {"too many choices", "n", [](v1::GenerateRequest& r) { r.set_n(10'000); }},
    {"NaN", "temperature",
     [](v1::GenerateRequest& r) {
       r.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
     }},
    {"cold", "temperature",
     [](v1::GenerateRequest& r) { r.mutable_sampling()->set_temperature(-1); }},
    {"no mass", "top_p", [](v1::GenerateRequest& r) { r.mutable_sampling()->set_top_p(0); }},
    {"log-probabilities", "top_logprobs",
     [](v1::GenerateRequest& r) { r.set_top_logprobs(1'000'000); }},
    {"an empty stop", "stop", [](v1::GenerateRequest& r) { r.add_stop(""); }},
    {"five stops", "stop",
     [](v1::GenerateRequest& r) {
       for (int i = 0; i < 5; ++i) r.add_stop(absl::StrCat("s", i));
     }},
    {"another model", "model", [](v1::GenerateRequest& r) { r.set_model("gpt-5"); }},
};

TEST_F(Cases, D3OddRequestsAreRefusedByNameAndHarmNobody) {
  const Answer alone = Ask(chain_->stub(), TextRequest("Neighbour", 60));
  ASSERT_TRUE(alone.status.ok());
  Answer beside;
  std::thread neighbour([&beside] { beside = Ask(chain_->stub(), TextRequest("Neighbour", 60)); });
  const uint64_t prompt_tokens = Loads(chain_->stub()).prompt_tokens_total();
  for (const OddRequest& odd : kOddRequests) {
    v1::GenerateRequest request = TextRequest("Hello", 5);
    odd.spoil(request);
    const Answer answer = Ask(chain_->stub(), request);
    EXPECT_FALSE(answer.status.ok()) << odd.name;
    EXPECT_THAT(ParamOf(answer.status), HasSubstr(odd.param)) << odd.name << ": " << answer.status;
    EXPECT_EQ(answer.started.request_id(), "") << odd.name;
  }
  neighbour.join();
  EXPECT_EQ(beside.text, alone.text);
  EXPECT_LE(Loads(chain_->stub()).prompt_tokens_total() - prompt_tokens, 20u)
      << "nothing of an odd request reached a worker";
  v1::GenerateRequest huge = IdsRequest(3, 100'000'000);
  const Answer bounded = Ask(chain_->stub(), huge);
  ASSERT_TRUE(bounded.status.ok()) << "more than fits is bounded by the context";
  EXPECT_EQ(bounded.finished.usage().completion_tokens(), kContext - 3);
}

TEST_F(Cases, D4ThePromptFitsOrIsRefusedWithBothNumbers) {
  const Answer last = Ask(chain_->stub(), IdsRequest(kContext - 1, 50));
  ASSERT_TRUE(last.status.ok()) << last.status;
  EXPECT_EQ(last.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(last.finished.usage().completion_tokens(), 1);
  EXPECT_EQ(last.finished.usage().prompt_tokens(), kContext - 1);
  for (const int tokens : {kContext, kContext + 1, 5 * kContext}) {
    const Answer refused = Ask(chain_->stub(), IdsRequest(tokens, 50));
    EXPECT_EQ(ReasonOf(refused.status), ErrorReason::kContextLengthExceeded);
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr(absl::StrCat(tokens)));
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr(absl::StrCat(kContext)));
  }
}

TEST(CasesOfMemory, D4MoreThanTheMemoryHoldsIsQueuedAndAnsweredAsAlone) {
  ServedChain chain(TinyPath(), /*kv_blocks=*/kContext / 16 + 2);
  ASSERT_TRUE(chain.serving());
  const Answer alone = Ask(chain.stub(), IdsRequest(60, 60));
  ASSERT_TRUE(alone.status.ok());
  std::vector<Answer> answers(24);
  std::vector<std::thread> clients;
  for (Answer& answer : answers) {
    clients.emplace_back([&chain, &answer] { answer = Ask(chain.stub(), IdsRequest(60, 60)); });
  }
  for (std::thread& client : clients) client.join();
  for (const Answer& answer : answers) {
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.text, alone.text);
  }
  EXPECT_EQ(Loads(chain.stub()).kv_blocks_used(), 0);
}

TEST(CasesOfBos, B3ExactlyOneBosWhereTheModelWantsIt) {
  ServedChain chain(GoldenPath("tiny/llama_rope_freqs_tied.gguf"));  // BOS 266, add_bos
  ASSERT_TRUE(chain.serving());
  const auto tokenize = [&chain](const std::string& text, bool parse_special) {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_parse_special(parse_special);
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    EXPECT_TRUE(chain.stub().Tokenize(&context, request, &response).ok());
    return std::vector<int32_t>(response.ids().begin(), response.ids().end());
  };
  const auto count_bos = [](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), 266);
  };
  EXPECT_EQ(count_bos(tokenize("Hello", false)), 1);
  EXPECT_EQ(count_bos(tokenize("<|endoftext|>Hello", true)), 1);
  EXPECT_EQ(count_bos(tokenize("<|endoftext|>Hello", false)), 1) << "plain text stays plain";
  const Answer empty = Ask(chain.stub(), TextRequest("", 3));
  EXPECT_TRUE(empty.status.ok()) << "a BOS alone is a prompt: " << empty.status;
  EXPECT_EQ(empty.finished.usage().prompt_tokens(), 1);
  const Answer hello = Ask(chain.stub(), TextRequest("Hello", 3));
  EXPECT_EQ(hello.finished.usage().prompt_tokens(),
            static_cast<int>(tokenize("Hello", false).size()));
}

// One row of the embedding is NaN: only who uses that token is hurt.
TEST(CasesOfNumbers, G1ANonFiniteValueEndsThatRequestAndNamesTheStage) {
  model::testing::TinyModelOptions options;
  options.context_length = kContext;
  model::testing::GgufBuilder builder = model::testing::BuildTinyModel(options);
  std::vector<float> embedding(size_t{options.vocab_size} * options.hidden_size, 0.01f);
  for (uint32_t i = 0; i < options.hidden_size; ++i) {
    embedding[7 * options.hidden_size + i] = std::numeric_limits<float>::quiet_NaN();
  }
  builder.RemoveTensor("token_embd.weight");
  builder.AddF32Tensor("token_embd.weight", {options.hidden_size, options.vocab_size}, embedding);
  const std::string path = ::testing::TempDir() + "/nan.gguf";
  ASSERT_TRUE(builder.WriteFile(path).ok());
  ServedChain chain(path);
  ASSERT_TRUE(chain.serving());
  v1::GenerateRequest bad = TextRequest("", 5);
  for (const int id : {3, 7, 4}) bad.mutable_tokens()->add_ids(id);
  const Answer ended = Ask(chain.stub(), bad);
  EXPECT_EQ(ReasonOf(ended.status), ErrorReason::kNonFinite);
  EXPECT_THAT(std::string(ended.status.message()), HasSubstr("stage 0"));
  v1::GenerateRequest good = TextRequest("", 5);
  good.mutable_tokens()->add_ids(3);
  EXPECT_TRUE(Ask(chain.stub(), good).status.ok()) << "the engine serves the next request";
}

}  // namespace
}  // namespace layercake::testing
