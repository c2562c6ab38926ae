#include "model/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/chat/message_normaliser.h"

namespace layercake::model {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}"
    "{% endif %}";

// Walks lists of parts, as vision models' templates do.
constexpr const char* kParts =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<|image|>{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}";

ChatTemplate MakeTemplate(std::string_view source, std::string bos = "", std::string eos = "") {
  absl::StatusOr<ChatTemplate> result =
      ChatTemplate::Create(source, std::move(bos), std::move(eos));
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

ChatInput Input(const char* messages) {
  ChatInput input;
  input.messages = Json::parse(messages);
  return input;
}

std::string Text(const ChatTemplate& chat, const ChatInput& input) {
  const auto spans = chat.Render(input);
  return spans.ok() ? jinja::JoinSpans(*spans) : "error: " + std::string(spans.status().message());
}

// A template from the shared test material, or empty where there is none.
std::string SharedTemplate(const std::string& name) {
  std::ifstream file(LAYERCAKE_SOURCE_DIR "/../shared/data/templates/" + name + ".jinja");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ChatTemplate, TakesNullMissingAndEmptyContentForTheSame) {
  const ChatTemplate chat = MakeTemplate(kChatMl);
  const std::string expected =
      "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n";
  for (const char* assistant :
       {R"({"role": "assistant", "content": null})", R"({"role": "assistant"})",
        R"({"role": "assistant", "content": ""})", R"({"role": "assistant", "content": []})"}) {
    EXPECT_EQ(
        Text(chat, Input((std::string(R"([{"role": "user", "content": "hi"}, )") + assistant + "]")
                             .c_str())),
        expected)
        << assistant;
  }
}

TEST(ChatTemplate, JoinsTextPartsInOrderForATemplateThatTakesTextOnly) {
  const ChatTemplate chat = MakeTemplate(kChatMl);
  EXPECT_THAT(chat.traits().roles_with_parts, IsEmpty());
  EXPECT_EQ(Text(chat, Input(R"([{"role": "user",
                "content": [{"text": "first"}, {"type": "text", "text": " second"}]}])")),
            "<|im_start|>user\nfirst second<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, HandsPartsToATemplateThatWalksThem) {
  const ChatTemplate chat = MakeTemplate(kParts);
  EXPECT_THAT(chat.traits().roles_with_parts, ElementsAre("system", "user", "assistant", "tool"));
  EXPECT_EQ(Text(chat, Input(R"([{"role": "user", "content":
                [{"type": "text", "text": "a"},
                 {"type": "image"}, {"type": "text", "text": "b"}]}])")),
            "<user>a<|image|>b");
}

TEST(ChatTemplate, WrapsTextForATemplateThatTakesPartsOnly) {
  const ChatTemplate chat = MakeTemplate(
      "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}");
  EXPECT_FALSE(chat.traits().takes_string_content);
  EXPECT_EQ(Text(chat, Input(R"([{"role": "user", "content": "hello"}])")), "hello");
}

TEST(ChatTemplate, RefusesImagesWhereTheTemplateTakesTextOnly) {
  EXPECT_THAT(Text(MakeTemplate(kChatMl), Input(R"([{"role": "user", "content":
                       [{"type": "image_url", "image_url": {"url": "x"}}]}])")),
              HasSubstr("messages[0].content[0] has the type 'image_url'"));
}

TEST(ChatTemplate, NamesTheMemberThatHasAWrongShape) {
  const ChatTemplate chat = MakeTemplate(kChatMl);
  const std::pair<const char*, const char*> cases[] = {
      {R"("hi")", "messages must be a list"},
      {R"([])", "messages is empty"},
      {R"([5])", "messages[0] must be an object"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content must be"},
      {R"([{"role": "user", "content": {"a": 1}}])", "messages[0].content must be"},
      {R"([{"role": "user", "content": true}])", "messages[0].content must be"},
      {R"([{"role": "user", "content": "a"}, {"content": "x"}])", "messages[1].role is missing"},
      {R"([{"role": 7, "content": "x"}])", "messages[0].role must be a string"},
      {R"([{"role": null, "content": "x"}])", "messages[0].role must be a string"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0] must be an object"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])",
       "messages[0].content[0].text is missing"},
      {R"([{"role": "user", "content": [{"type": "text", "text": 1}]}])",
       "messages[0].content[0].text must be a string"},
      {R"([{"role": "user", "content": [{"type": 1, "text": "x"}]}])",
       "messages[0].content[0].type must be a string"},
      {R"([{"role": "user", "content": [{}]}])", "messages[0].content[0] has neither"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0].tool_calls must be a list"},
      {R"([{"role": "assistant", "tool_calls": [1]}])", "messages[0].tool_calls[0] must be"},
      {R"([{"role": "assistant", "tool_calls": [{"function": 1}]}])",
       "messages[0].tool_calls[0].function must be"},
  };
  for (const auto& [messages, message] : cases) {
    const auto result = chat.Render(Input(messages));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << messages;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message)) << messages;
  }
}

TEST(ChatTemplate, ChecksToolsAndExtraVariables) {
  const ChatTemplate chat = MakeTemplate(kChatMl);
  ChatInput input = Input(R"([{"role": "user", "content": "x"}])");
  input.tools = Json::object();
  EXPECT_THAT(Text(chat, input), HasSubstr("tools must be a list"));
  input.tools = Json();
  input.extra = Json{{"messages", 1}};
  EXPECT_THAT(Text(chat, input), HasSubstr("'messages' cannot be given"));
  input.extra = Json::array();
  EXPECT_THAT(Text(chat, input), HasSubstr("must be an object"));
}

TEST(ChatTemplate, NeverChangesWhatTheClientSent) {
  const ChatInput input = Input(R"([{"role": "assistant", "content": null, "tool_calls":
      [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}])");
  const Json before = input.messages;
  ASSERT_TRUE(MakeTemplate(kChatMl).Render(input).ok());
  EXPECT_EQ(input.messages, before);
}

TEST(ChatTemplate, GivesToolArgumentsTheFormThatTheTemplateWrites) {
  constexpr const char* kMessages = R"([{"role": "user", "content": "x"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "abcdefghi", "type": "function",
        "function": {"name": "f", "arguments": "{\"city\":\"Paris\"}"}}]}])";
  const ChatTemplate writes = MakeTemplate(
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
      "{% endfor %}{% endfor %}");
  EXPECT_TRUE(writes.traits().wants_argument_objects);
  EXPECT_EQ(Text(writes, Input(kMessages)), R"({"city": "Paris"})");
  const ChatTemplate copies = MakeTemplate(
      "{% for m in messages %}{% for c in m.tool_calls %}{{ 'args: ' + c.function.arguments }}"
      "{% endfor %}{% endfor %}");
  EXPECT_FALSE(copies.traits().wants_argument_objects);
  EXPECT_EQ(Text(copies, Input(kMessages)), R"(args: {"city":"Paris"})");
  ChatInput object = Input(kMessages);
  object.messages[1]["tool_calls"][0]["function"]["arguments"] = {{"city", {"Paris", 1}}};
  EXPECT_EQ(Text(copies, object), R"(args: {"city": ["Paris", 1]})");
  EXPECT_EQ(Text(writes, object), R"({"city": ["Paris", 1]})");
}

TEST(ChatTemplate, KeepsArgumentsThatAreNoJson) {
  const ChatTemplate chat = MakeTemplate(
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
      "{% endfor %}{% endfor %}");
  EXPECT_EQ(Text(chat, Input(R"([{"role": "assistant", "tool_calls":
                       [{"function": {"name": "f", "arguments": "{broken"}}]}])")),
            R"("{broken")");
}

TEST(ChatTemplate, MarksOnlyTheTemplatesOwnTextAsTrusted) {
  const ChatTemplate chat =
      MakeTemplate("{{ bos_token }}[{{ messages[0].content }}]", "<s>", "</s>");
  const auto spans = chat.Render(Input(R"([{"role": "user", "content": "<s>[x]"}])"));
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_THAT(*spans,
              ElementsAre(jinja::RenderedSpan{"<s>[", true}, jinja::RenderedSpan{"<s>[x]", false},
                          jinja::RenderedSpan{"]", true}));
}

TEST(ChatTemplate, PassesTheTemplatesRefusalOn) {
  const ChatTemplate chat = MakeTemplate("{{ raise_exception('Roles must alternate') }}");
  const auto result = chat.Render(Input(R"([{"role": "user", "content": "x"}])"));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("Roles must alternate"));
}

TEST(ChatTemplate, NamesLineAndColumnOfATemplateThatCannotBeParsed) {
  const auto result = ChatTemplate::Create("line one\n  {% if x %}", "", "");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("line 2"));
}

TEST(ChatTemplate, RefusesJsonThatNestsTooDeep) {
  Json deep = "x";
  for (int i = 0; i < 100'000; ++i) deep = Json::array({std::move(deep)});
  ChatInput input = Input(R"([{"role": "user", "content": "x"}])");
  input.messages[0]["content"] = std::move(deep);
  EXPECT_THAT(Text(MakeTemplate(kChatMl), input), HasSubstr("nests deeper"));
}

TEST(ChatTemplate, PassesExtraVariablesAndTheDate) {
  const ChatTemplate chat = MakeTemplate(
      "{% if enable_thinking is false %}off{% endif %} {{ strftime_now('%d %b %Y') }}");
  ChatInput input = Input(R"([{"role": "user", "content": "x"}])");
  input.extra = Json{{"enable_thinking", false}};
  input.now = absl::FromUnixSeconds(1735734896);
  EXPECT_EQ(Text(chat, input), "off 01 Jan 2025");
}

// The history of a tool round as clients send it, through every template that is there.
TEST(ChatTemplate, RendersToolHistoriesOfRealTemplatesWithoutNoneOrPythonLists) {
  bool found = false;
  for (const char* name :
       {"Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct",
        "mistralai-Mistral-Nemo-Instruct-2407", "HuggingFaceTB-SmolLM3-3B"}) {
    const std::string source = SharedTemplate(name);
    if (source.empty()) continue;
    found = true;
    const ChatTemplate chat = MakeTemplate(source, "<s>", "</s>");
    EXPECT_TRUE(chat.traits().wants_argument_objects) << name;
    std::vector<std::string> texts;
    for (const char* content : {R"("content": null,)", "", R"("content": "",)"}) {
      ChatInput input = Input((std::string(R"([
          {"role": "user", "content": [{"text": "first"}, {"text": "second"}]},
          {"role": "assistant", )") +
                               content + R"( "tool_calls": [{"id": "abcdefghi", "type": "function",
             "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}]},
          {"role": "tool", "tool_call_id": "abcdefghi", "content": "7"},
          {"role": "assistant", "content": "It is 7.", "tool_calls": []},
          {"role": "user", "content": "thanks", "name": null}])")
                                  .c_str());
      texts.push_back(Text(chat, input));
      EXPECT_THAT(texts.back(), Not(StartsWith("error: "))) << name;
      EXPECT_THAT(texts.back(), Not(HasSubstr("None"))) << name;
      EXPECT_THAT(texts.back(), Not(HasSubstr("[{'type'"))) << name;
      EXPECT_THAT(texts.back(), Not(HasSubstr("\\\"city"))) << name;
      EXPECT_THAT(texts.back(), HasSubstr("firstsecond")) << name;
    }
    EXPECT_EQ(texts[0], texts[1]) << name;
    EXPECT_EQ(texts[0], texts[2]) << name;
    // SmolLM3's template leaves tool calls out of the history.
    if (std::string_view(name) != "HuggingFaceTB-SmolLM3-3B") {
      EXPECT_THAT(texts[0], HasSubstr("{\"city\": \"Paris\"}")) << name;
    }
  }
  if (!found) GTEST_SKIP() << "no templates in ../shared/data/templates";
}

TEST(ChatTemplate, WritesTheBosTextOfLlamaOnce) {
  const std::string source = SharedTemplate("meta-llama-Llama-3.1-8B-Instruct");
  if (source.empty()) GTEST_SKIP() << "no templates in ../shared/data/templates";
  const ChatTemplate chat = MakeTemplate(source, "<|begin_of_text|>", "<|eot_id|>");
  const std::string text = Text(chat, Input(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(text.find("<|begin_of_text|>"), 0U);
  EXPECT_EQ(text.find("<|begin_of_text|>", 1), std::string::npos);
}

}  // namespace
}  // namespace layercake::model
