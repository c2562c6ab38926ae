#include "coordinator/chat_input.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

v1::Chat ChatOf(const std::string& text) {
  v1::Chat chat;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &chat)) << text;
  return chat;
}

TEST(ChatInput, KeepsEveryPartOfAConversationInOrder) {
  const auto input = ToChatInput(ChatOf(R"(
    messages { role: "user" parts { text: "first" } parts { text: "second" } }
    messages { role: "assistant"
               tool_calls { id: "a1" name: "get" arguments: "{\"b\": 1, \"a\": 2}" }
               tool_calls { name: "now" } reasoning_content: "hm" }
    messages { role: "tool" content: "" tool_call_id: "a1" name: "get" }
    tools: "{\"type\": \"function\"}"
    template_variables: "{\"enable_thinking\": false}"
    add_generation_prompt: false)"));
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->messages.dump(),
            R"([{"role":"user","content":[{"type":"text","text":"first"},)"
            R"({"type":"text","text":"second"}]},)"
            R"({"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[)"
            R"({"id":"a1","type":"function","function":{"name":"get",)"
            R"("arguments":"{\"b\": 1, \"a\": 2}"}},)"
            R"({"type":"function","function":{"name":"now","arguments":"{}"}}]},)"
            R"({"role":"tool","content":"","name":"get","tool_call_id":"a1"}])");
  EXPECT_EQ(input->tools.dump(), R"([{"type":"function"}])");
  EXPECT_EQ(input->extra.dump(), R"({"enable_thinking":false})");
  EXPECT_FALSE(input->add_generation_prompt);
}

TEST(ChatInput, NoToolsIsNull) {
  const auto input = ToChatInput(ChatOf(R"(messages { role: "user" content: "x" })"));
  ASSERT_TRUE(input.ok());
  EXPECT_TRUE(input->tools.is_null());
  EXPECT_TRUE(input->extra.empty());
  EXPECT_TRUE(input->add_generation_prompt);
}

TEST(ChatInput, NamesWhatIsWrong) {
  const struct {
    const char* chat;
    const char* param;
  } rows[] = {
      {"", "messages"},
      {R"(messages { content: "x" })", "messages[0].role"},
      {R"(messages { role: "user" } messages { role: "us\377er" })", "messages[1].role"},
      {R"(messages { role: "user" content: "\355\240\275" })", "messages[0].content"},
      {R"(messages { role: "user" content: "x" parts { text: "y" } })", "messages[0].content"},
      {R"(messages { role: "user" parts { } })", "messages[0].content[0]"},
      {R"(messages { role: "user" parts { text: "a" } parts { text: "\300\200" } })",
       "messages[0].content[1]"},
      {R"(messages { role: "user" name: "\377" })", "messages[0].name"},
      {R"(messages { role: "user" tool_call_id: "\377" })", "messages[0].tool_call_id"},
      {R"(messages { role: "user" reasoning_content: "\377" })", "messages[0].reasoning_content"},
      {R"(messages { role: "a" tool_calls { } })", "messages[0].tool_calls[0].name"},
      {R"(messages { role: "a" tool_calls { name: "f" } tool_calls { name: "f" arguments: "5" } })",
       "messages[0].tool_calls[1].arguments"},
      {R"(messages { role: "u" } tools: "{}" tools: "[]")", "tools[1]"},
      {R"(messages { role: "u" } tools: "{\"a\":")", "tools[0]"},
      {R"(messages { role: "u" } template_variables: "nonsense")", "template_variables"},
  };
  for (const auto& row : rows) {
    const auto input = ToChatInput(ChatOf(row.chat));
    EXPECT_EQ(ReasonOf(input.status()), ErrorReason::kInvalidParameter) << row.chat;
    EXPECT_EQ(ParamOf(input.status()), row.param) << row.chat << ": " << input.status();
  }
}

TEST(ChatInput, RefusesJsonThatIsTooDeepOrNamesAKeyTwice) {
  const std::string deep = R"({"a":)" + std::string(100'000, '[');
  EXPECT_FALSE(ParseJsonObject(deep, 64, "p").ok());
  EXPECT_TRUE(ParseJsonObject(R"({"a":[[1]]})", 3, "p").ok());
  EXPECT_FALSE(ParseJsonObject(R"({"a":[[[1]]]})", 3, "p").ok());
  EXPECT_TRUE(ParseJsonObject(R"({"a":"[[[[[[{{{{\"[["})", 3, "p").ok());

  EXPECT_THAT(
      std::string(ParseJsonObject(R"({"a":1,"b":{"c":1,"c":2}})", 9, "p").status().message()),
      ::testing::HasSubstr("\"c\" twice"));
  EXPECT_FALSE(ParseJsonObject(R"({"":1,"":2})", 9, "p").ok());
  EXPECT_TRUE(ParseJsonObject(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", 9, "p").ok());
  EXPECT_FALSE(ParseJsonObject(R"({"a":1e999})", 9, "p").ok());
  EXPECT_FALSE(ParseJsonObject("{\"a\":\"\xFF\"}", 9, "p").ok());
  EXPECT_FALSE(ParseJsonObject("", 9, "p").ok());
}

}  // namespace
}  // namespace layercake::coordinator
