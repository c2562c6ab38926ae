#include "coordinator/request_preparer.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/testing/preparer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::PreparerFixture;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// The last three of a vocabulary of 320.
constexpr int32_t kBos = 317;
constexpr int32_t kTurnStart = 318;
constexpr int32_t kTurnEnd = 319;
constexpr int32_t kContext = 64;

// As Llama 3's: the template itself writes the BOS text.
constexpr char kWritesBos[] =
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";

v1::GenerateRequest Text(std::string text) {
  v1::GenerateRequest request;
  request.set_text(std::move(text));
  return request;
}

v1::GenerateRequest Tokens(std::vector<int32_t> ids) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

v1::GenerateRequest Chat(std::vector<std::pair<std::string, std::string>> messages) {
  v1::GenerateRequest request;
  request.mutable_chat();
  for (const auto& [role, content] : messages) {
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  return request;
}

TEST(RequestPreparer, RefusesEveryOddRequestAndNamesTheParameter) {
  const PreparerFixture preparer;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* what;
    std::function<void(v1::GenerateRequest&)> change;
    ErrorReason reason;
    const char* param;
  } rows[] = {
      {"no prompt", [](auto& r) { r.clear_prompt(); }, ErrorReason::kInvalidParameter, "prompt"},
      {"empty text", [](auto& r) { r.set_text(""); }, ErrorReason::kInvalidParameter, "prompt"},
      {"no ids", [](auto& r) { r.mutable_tokens(); }, ErrorReason::kInvalidParameter, "prompt"},
      {"no messages", [](auto& r) { r.mutable_chat(); }, ErrorReason::kInvalidParameter,
       "messages"},
      {"id of the vocabulary's size", [](auto& r) { r.mutable_tokens()->add_ids(320); },
       ErrorReason::kInvalidParameter, "prompt"},
      {"id -1", [](auto& r) { r.mutable_tokens()->add_ids(-1); }, ErrorReason::kInvalidParameter,
       "prompt"},
      {"id at the end of int32",
       [](auto& r) { r.mutable_tokens()->add_ids(std::numeric_limits<int32_t>::max()); },
       ErrorReason::kInvalidParameter, "prompt"},
      {"max_tokens 0", [](auto& r) { r.set_max_tokens(0); }, ErrorReason::kInvalidParameter,
       "max_tokens"},
      {"max_tokens -1", [](auto& r) { r.set_max_tokens(-1); }, ErrorReason::kInvalidParameter,
       "max_tokens"},
      {"n 0", [](auto& r) { r.set_n(0); }, ErrorReason::kInvalidParameter, "n"},
      {"n 17", [](auto& r) { r.set_n(17); }, ErrorReason::kInvalidParameter, "n"},
      {"priority 7", [](auto& r) { r.set_priority(static_cast<v1::Priority>(7)); },
       ErrorReason::kInvalidParameter, "priority"},
      {"n 10000", [](auto& r) { r.set_n(10000); }, ErrorReason::kInvalidParameter, "n"},
      {"temperature NaN", [nan](auto& r) { r.mutable_sampling()->set_temperature(nan); },
       ErrorReason::kInvalidParameter, "temperature"},
      {"temperature -1", [](auto& r) { r.mutable_sampling()->set_temperature(-1); },
       ErrorReason::kInvalidParameter, "temperature"},
      {"top_p 0", [](auto& r) { r.mutable_sampling()->set_top_p(0); },
       ErrorReason::kInvalidParameter, "top_p"},
      {"top_logprobs 10^6", [](auto& r) { r.set_top_logprobs(1'000'000); },
       ErrorReason::kInvalidParameter, "top_logprobs"},
      {"top_logprobs 21", [](auto& r) { r.set_top_logprobs(21); }, ErrorReason::kInvalidParameter,
       "top_logprobs"},
      {"top_logprobs -1", [](auto& r) { r.set_top_logprobs(-1); }, ErrorReason::kInvalidParameter,
       "top_logprobs"},
      {"empty stop", [](auto& r) { r.add_stop(""); }, ErrorReason::kInvalidParameter, "stop"},
      {"five stops",
       [](auto& r) {
         for (int i = 0; i < 5; ++i) r.add_stop("x");
       },
       ErrorReason::kInvalidParameter, "stop"},
      {"long stop", [](auto& r) { r.add_stop(std::string(257, 'x')); },
       ErrorReason::kInvalidParameter, "stop"},
      {"stop of bad bytes", [](auto& r) { r.add_stop("\xED\xA0\x80"); },
       ErrorReason::kInvalidParameter, "stop"},
      {"stop token out of range", [](auto& r) { r.add_stop_token_ids(320); },
       ErrorReason::kInvalidParameter, "stop_token_ids"},
      {"65 stop tokens",
       [](auto& r) {
         for (int i = 0; i < 65; ++i) r.add_stop_token_ids(1);
       },
       ErrorReason::kInvalidParameter, "stop_token_ids"},
      {"text of bad bytes", [](auto& r) { r.set_text("a\xC0\x80"); },
       ErrorReason::kInvalidParameter, "prompt"},
      {"long request id", [](auto& r) { r.set_request_id(std::string(129, 'x')); },
       ErrorReason::kInvalidParameter, "request_id"},
      {"request id of bad bytes", [](auto& r) { r.set_request_id("\xFF"); },
       ErrorReason::kInvalidParameter, "request_id"},
      {"request id with a line break", [](auto& r) { r.set_request_id("a\nb"); },
       ErrorReason::kInvalidParameter, "request_id"},
      {"another model", [](auto& r) { r.set_model("gpt-9"); }, ErrorReason::kModelNotFound,
       "model"},
  };
  for (const auto& row : rows) {
    v1::GenerateRequest request = Text("ok");
    row.change(request);
    const auto prepared = preparer->Prepare(request, "peer");
    ASSERT_FALSE(prepared.ok()) << row.what;
    EXPECT_EQ(ReasonOf(prepared.status()), row.reason) << row.what << ": " << prepared.status();
    EXPECT_EQ(ParamOf(prepared.status()), row.param) << row.what << ": " << prepared.status();
    EXPECT_THAT(std::string(prepared.status().message()), Not(IsEmpty())) << row.what;
  }
}

TEST(RequestPreparer, PassesOnWhatWasAsked) {
  const PreparerFixture preparer;
  v1::GenerateRequest request = Text("Hi");
  request.set_request_id(std::string(128, 'r'));
  request.set_model("tiny");
  request.set_n(16);
  request.set_use_prefix_cache(false);
  request.set_priority(v1::PRIORITY_BATCH);
  request.set_max_tokens(5);
  request.set_top_logprobs(20);
  request.add_stop("one");
  request.add_stop(std::string(256, 's'));
  request.add_stop_token_ids(7);
  request.add_stop_token_ids(7);
  request.set_ignore_end_of_generation(true);
  request.set_prompt_logprobs(true);
  request.mutable_sampling()->set_seed(12);
  request.mutable_sampling()->set_temperature(0);
  const auto prepared = preparer->Prepare(request, "ipv4:127.0.0.1:1");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->request_id, request.request_id());
  EXPECT_EQ(prepared->max_tokens, 5);
  EXPECT_EQ(prepared->sampling.top_logprobs(), 20);
  EXPECT_EQ(prepared->sampling.seed(), 12u);
  EXPECT_EQ(prepared->sampling.temperature(), 0.0f);
  EXPECT_THAT(prepared->stop, ElementsAre("one", std::string(256, 's')));
  EXPECT_THAT(prepared->stop_token_ids, UnorderedElementsAre(7));
  EXPECT_TRUE(prepared->ignore_end_of_generation);
  EXPECT_TRUE(prepared->prompt_logprobs);
  EXPECT_EQ(prepared->n, 16);
  EXPECT_FALSE(prepared->use_prefix_cache);
  EXPECT_EQ(prepared->priority, Priority::kBatch);
  EXPECT_EQ(prepared->client, "ipv4:127.0.0.1:1");
  EXPECT_EQ(preparer.tokenizer().Decode(prepared->prompt).value(), "Hi");

  const auto plain = preparer->Prepare(Text("Hi"), "");
  EXPECT_EQ(plain->sampling.top_logprobs(), -1);
  EXPECT_FALSE(plain->prompt_logprobs);
  EXPECT_EQ(plain->n, 1);
  EXPECT_TRUE(plain->use_prefix_cache);
  EXPECT_EQ(plain->priority, Priority::kInteractive);
}

TEST(RequestPreparer, AModelThatWantsBosMakesATokenOfTheEmptyPrompt) {
  const PreparerFixture preparer({.add_bos = true});
  const auto prepared = preparer->Prepare(Text(""), "");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->prompt, ElementsAre(kBos));
}

TEST(RequestPreparer, BoundsTheOutputByTheContext) {
  const PreparerFixture preparer;
  const auto with_ids = [](size_t count) { return Tokens(std::vector<int32_t>(count, 65)); };
  const struct {
    size_t prompt_tokens;
    std::optional<int32_t> asked;
    int32_t max_tokens;  // 0: refused
  } rows[] = {
      {1, std::nullopt, kContext - 1},
      {1, 100'000'000, kContext - 1},
      {1, 10, 10},
      {kContext - 10, 50, 10},
      {kContext - 1, 50, 1},
      {kContext - 1, std::nullopt, 1},
      {kContext, 50, 0},
      {kContext + 1, 50, 0},
      {kContext + 1, std::nullopt, 0},
      {100'000, 1, 0},
  };
  for (const auto& row : rows) {
    v1::GenerateRequest request = with_ids(row.prompt_tokens);
    if (row.asked) request.set_max_tokens(*row.asked);
    const auto prepared = preparer->Prepare(request, "");
    if (row.max_tokens == 0) {
      const absl::Status status = prepared.status();
      EXPECT_EQ(ReasonOf(status), ErrorReason::kContextLengthExceeded) << row.prompt_tokens;
      EXPECT_EQ(MetadataOf(status)["prompt_tokens"], absl::StrCat(row.prompt_tokens));
      EXPECT_EQ(MetadataOf(status)["context"], "64");
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(row.prompt_tokens)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("64"));
    } else {
      ASSERT_TRUE(prepared.ok()) << row.prompt_tokens << ": " << prepared.status();
      EXPECT_EQ(prepared->max_tokens, row.max_tokens) << row.prompt_tokens;
      EXPECT_THAT(prepared->prompt, SizeIs(row.prompt_tokens)) << "never a shortened prompt";
    }
  }
}

TEST(RequestPreparer, CountsTheBosThatItAddsAgainstTheContext) {
  const PreparerFixture preparer({.add_bos = true});
  // A byte that merges with nothing: one token each.
  EXPECT_TRUE(preparer->Prepare(Text(std::string(kContext - 2, '\x01')), "").ok());
  EXPECT_EQ(ReasonOf(preparer->Prepare(Text(std::string(kContext - 1, '\x01')), "").status()),
            ErrorReason::kContextLengthExceeded);
}

TEST(RequestPreparer, RefusesAChatWhoseSystemPartAloneIsTooLong) {
  const PreparerFixture preparer;
  const auto prepared =
      preparer->Prepare(Chat({{"system", std::string(500, '\x02')}, {"user", "Hi"}}), "");
  EXPECT_EQ(ReasonOf(prepared.status()), ErrorReason::kContextLengthExceeded);
  EXPECT_EQ(ParamOf(prepared.status()), "messages");
}

TEST(RequestPreparer, TheOperatorsCeilingBindsWithAndWithoutMaxTokens) {
  RequestPreparerOptions options;
  options.context_tokens = kContext;
  options.max_output_tokens = 8;
  const PreparerFixture preparer({.options = options});
  v1::GenerateRequest request = Tokens({1, 2});
  EXPECT_EQ(preparer->Prepare(request, "")->max_tokens, 8);
  request.set_max_tokens(1000);
  EXPECT_EQ(preparer->Prepare(request, "")->max_tokens, 8);
  request.set_max_tokens(3);
  EXPECT_EQ(preparer->Prepare(request, "")->max_tokens, 3);
  request.mutable_tokens()->mutable_ids()->Resize(kContext - 4, 1);
  request.clear_max_tokens();
  EXPECT_EQ(preparer->Prepare(request, "")->max_tokens, 4);
}

TEST(RequestPreparer, RefusesBytesOverTheCapBeforeItTokenizes) {
  RequestPreparerOptions options;
  options.context_tokens = kContext;
  options.max_prompt_bytes = 1000;
  const PreparerFixture preparer({.options = options});
  EXPECT_EQ(ReasonOf(preparer->Prepare(Text(std::string(1000, 'a')), "").status()),
            ErrorReason::kContextLengthExceeded);
  const absl::Status text = preparer->Prepare(Text(std::string(1001, 'a')), "").status();
  EXPECT_EQ(ReasonOf(text), ErrorReason::kRequestTooLarge);
  EXPECT_THAT(std::string(text.message()), HasSubstr("1001"));
  EXPECT_THAT(std::string(text.message()), HasSubstr("1000"));
  EXPECT_EQ(ReasonOf(preparer->Prepare(Chat({{"user", std::string(1001, 'a')}}), "").status()),
            ErrorReason::kRequestTooLarge);
}

TEST(RequestPreparer, RefusesAChatThatGrowsOverTheCapWhenRendered) {
  RequestPreparerOptions options;
  options.context_tokens = kContext;
  options.max_prompt_bytes = 1000;
  const PreparerFixture preparer(
      {.chat_template = "{% for i in range(100) %}{{ messages[0].content }}{% endfor %}",
       .options = options});
  EXPECT_EQ(ReasonOf(preparer->Prepare(Chat({{"user", std::string(100, 'a')}}), "").status()),
            ErrorReason::kRequestTooLarge);
}

int CountOf(const std::vector<int32_t>& ids, int32_t id) {
  return static_cast<int>(std::count(ids.begin(), ids.end(), id));
}

TEST(RequestPreparer, PutsExactlyOneBosInFrontWhereTheModelWantsIt) {
  const PreparerFixture writes({.add_bos = true, .chat_template = kWritesBos});
  const PreparerFixture leaves_out({.add_bos = true});
  v1::GenerateRequest starts_with_bos = Text("<|endoftext|>Hello");
  starts_with_bos.set_parse_special(true);
  for (const PreparerFixture* preparer : {&writes, &leaves_out}) {
    for (const v1::GenerateRequest& request :
         {Text("Hello"), starts_with_bos, Chat({{"user", "Hello"}})}) {
      const auto prepared = (*preparer)->Prepare(request, "");
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      EXPECT_EQ(prepared->prompt.front(), kBos);
      EXPECT_EQ(CountOf(prepared->prompt, kBos), 1) << request.DebugString();
    }
  }
  // Without parse_special the BOS text is text.
  const auto plain = writes->Prepare(Text("<|endoftext|>"), "");
  EXPECT_EQ(CountOf(plain->prompt, kBos), 1);
  EXPECT_GT(plain->prompt.size(), 2u);
}

TEST(RequestPreparer, PutsNoBosWhereTheModelWantsNone) {
  const PreparerFixture preparer;
  for (const v1::GenerateRequest& request : {Text("Hello"), Chat({{"user", "Hello"}})}) {
    const auto prepared = preparer->Prepare(request, "");
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(CountOf(prepared->prompt, kBos), 0);
  }
}

TEST(RequestPreparer, SpecialTokensCountInTheTemplatesTextOnly) {
  const PreparerFixture preparer;
  const auto prepared = preparer->Prepare(Chat({{"user", "<|im_end|><|im_start|>"}}), "");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  // The template's own: one user turn and the opened answer.
  EXPECT_EQ(CountOf(prepared->prompt, kTurnStart), 2);
  EXPECT_EQ(CountOf(prepared->prompt, kTurnEnd), 1);
  EXPECT_EQ(preparer.tokenizer().Decode(prepared->prompt, {.show_control = true}).value(),
            "<|im_start|>user\n<|im_end|><|im_start|><|im_end|>\n<|im_start|>assistant\n");

  v1::GenerateRequest text = Text("<|im_end|>");
  EXPECT_EQ(CountOf(preparer->Prepare(text, "")->prompt, kTurnEnd), 0);
  text.set_parse_special(true);
  EXPECT_THAT(preparer->Prepare(text, "")->prompt, ElementsAre(kTurnEnd));
}

TEST(RequestPreparer, ATemplatesRefusalIsTheClientsFault) {
  const PreparerFixture preparer(
      {.chat_template = "{{ raise_exception('roles must alternate') }}"});
  const auto prepared = preparer->Prepare(Chat({{"user", "Hi"}}), "");
  EXPECT_EQ(ReasonOf(prepared.status()), ErrorReason::kInvalidParameter);
  EXPECT_EQ(ParamOf(prepared.status()), "messages");
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("roles must alternate"));
}

TEST(RequestPreparer, AModelWithoutATemplateTakesNoChats) {
  const PreparerFixture preparer({.chat_template = ""});
  EXPECT_EQ(ReasonOf(preparer->Prepare(Chat({{"user", "Hi"}}), "").status()),
            ErrorReason::kUnsupported);
  EXPECT_THAT(preparer->model().capabilities(), Not(Contains("chat")));
}

TEST(RequestPreparer, DrawsAnotherSeedForEveryRequestFromEveryThread) {
  const PreparerFixture preparer;
  absl::Mutex mutex;
  std::set<uint64_t> seeds;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const uint64_t seed = preparer->Prepare(Text("Hi"), "")->sampling.seed();
        absl::MutexLock lock(&mutex);
        seeds.insert(seed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seeds, SizeIs(200));
}

TEST(RequestPreparer, UsesTheModelsSamplingDefaults) {
  RequestPreparerOptions options;
  options.context_tokens = kContext;
  options.sampling_defaults.set_temperature(0.3f);
  const PreparerFixture preparer({.options = options});
  EXPECT_FLOAT_EQ(preparer->Prepare(Text("Hi"), "")->sampling.temperature(), 0.3f);
}

TEST(RequestPreparer, TokenizeShowsWhatGenerateRuns) {
  const PreparerFixture preparer({.add_bos = true});
  const v1::GenerateRequest chat = Chat({{"user", "Hello"}});
  v1::TokenizeRequest request;
  *request.mutable_chat() = chat.chat();
  const auto tokens = preparer->Tokenize(request);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(std::vector<int32_t>(tokens->ids().begin(), tokens->ids().end()),
            preparer->Prepare(chat, "")->prompt);
  EXPECT_EQ(tokens->rendered(), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  request.set_add_special(false);
  EXPECT_EQ(preparer->Tokenize(request)->ids_size() + 1, tokens->ids_size());

  request.set_text("Hello");
  request.clear_add_special();
  const auto text = preparer->Tokenize(request);
  EXPECT_EQ(std::vector<int32_t>(text->ids().begin(), text->ids().end()),
            preparer->Prepare(Text("Hello"), "")->prompt);
  request.set_add_special(false);
  EXPECT_EQ(preparer->Tokenize(request)->ids_size() + 1, text->ids_size());

  request.set_text("");
  EXPECT_THAT(preparer->Tokenize(request)->ids(), IsEmpty());
  request.set_text("\xFF");
  EXPECT_EQ(ParamOf(preparer->Tokenize(request).status()), "prompt");
  request.clear_input();
  EXPECT_EQ(ParamOf(preparer->Tokenize(request).status()), "input");
}

TEST(RequestPreparer, DetokenizeIsValidTextWithinTheMessageLimit) {
  const PreparerFixture preparer;
  v1::DetokenizeRequest request;
  request.add_ids(kTurnStart);
  EXPECT_EQ(preparer->Detokenize(request)->text(), "");
  request.set_show_special(true);
  EXPECT_EQ(preparer->Detokenize(request)->text(), "<|im_start|>");
  request.add_ids(320);
  EXPECT_EQ(ParamOf(preparer->Detokenize(request).status()), "ids");
  request.mutable_ids()->Resize(1, 0);
  request.mutable_ids()->Resize(1'000'000, kTurnStart);
  EXPECT_EQ(ReasonOf(preparer->Detokenize(request).status()), ErrorReason::kRequestTooLarge);
}

TEST(RequestPreparer, SaysWhatTheModelIs) {
  RequestPreparerOptions options;
  options.context_tokens = 48;
  options.model.set_name("mine");
  options.model.set_layers(4);
  const PreparerFixture preparer({.options = options});
  const v1::GetModelResponse& model = preparer->model();
  EXPECT_EQ(model.name(), "mine");
  EXPECT_EQ(model.layers(), 4);
  EXPECT_EQ(model.served_context(), 48);
  EXPECT_EQ(model.vocabulary_size(), 320);
  EXPECT_EQ(model.bos_token_id(), kBos);
  EXPECT_EQ(model.eos_token_id(), kTurnEnd);
  EXPECT_THAT(model.end_of_generation_ids(), Contains(kTurnEnd));
  EXPECT_EQ(model.tokenizer_sha256(), preparer.tokenizer().sha256());
  EXPECT_THAT(model.modalities(), ElementsAre("text"));
  EXPECT_THAT(model.capabilities(), Contains("chat"));
  EXPECT_THAT(model.capabilities(), Not(Contains("tools"))) << "this template shows none";
  const PreparerFixture tools({.chat_template = "{{ tools | tojson }}{{ messages[0].content }}"});
  EXPECT_THAT(tools->model().capabilities(), Contains("tools"));
}

}  // namespace
}  // namespace layercake::coordinator
