#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "model/gguf/testing/tiny_model.h"
#include "nlohmann/json.hpp"

namespace layercake::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What a stream says while this lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream& stream_;
  std::streambuf* const before_;
};

// Over a model of 8 layers and a context of 512 tokens.
class PlanCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "layercake_plan_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    model_ = folder_ + "/tiny.gguf";
    model::testing::TinyModelOptions options;
    options.n_layers = 8;
    ASSERT_TRUE(model::testing::BuildTinyModel(options).WriteFile(model_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Plan(std::vector<std::string> arguments) {
    const Environment environment({});
    Program program("layercake", "Test.");
    AddPlanCommand(program, environment);
    std::vector<const char*> argv = {"layercake", "plan"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    const Captured out(std::cout);
    const Captured err(std::cerr);
    const int code =
        program.Run(static_cast<int>(argv.size()), argv.data(), environment, std::cout, std::cerr);
    out_ = out.text();
    err_ = err.text();
    return code;
  }
  std::vector<std::string> Simulate(std::vector<std::string> more, const char* gbs = "0.2") {
    std::vector<std::string> arguments = {model_,
                                          "--simulate",
                                          "--layers",
                                          "0-1,2-3,4-5,6-7",
                                          "--memory-gbs",
                                          gbs,
                                          "--tflops",
                                          "0.05",
                                          "--prompt-tokens",
                                          "16-64",
                                          "--output-tokens",
                                          "16-64",
                                          "--duration",
                                          "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(out_);
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  std::string folder_;
  std::string model_;
  std::string out_;
  std::string err_;
};

TEST_F(PlanCommandTest, SaysWhatEachStageHolds) {
  ASSERT_EQ(Plan({model_, "--stages", "3"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("8 layers"), HasSubstr("3 stages"), HasSubstr("tiny")));
  EXPECT_THAT(out_, AllOf(HasSubstr("Give --memory"), Not(HasSubstr("SIMULATED"))));
  ASSERT_EQ(Plan({model_, "--layers", "0-4,5-7", "--memory", "2,3", "--json"}), kExitOk) << err_;
  ASSERT_EQ(Lines().size(), 1u);
  const nlohmann::json plan = Lines()[0];
  EXPECT_EQ(plan["kind"], "plan");
  ASSERT_EQ(plan["stages"].size(), 2u);
  EXPECT_EQ(plan["stages"][0]["layers"], "0-4");
  // Two kv heads of 16 f16 values, keys and values, in 5 layers.
  EXPECT_EQ(plan["stages"][0]["kv_bytes_per_token"], 5 * 2 * 2 * 32);
  EXPECT_EQ(plan["stages"][0]["memory_bytes"], uint64_t{2} << 30);
  EXPECT_GT(plan["stages"][0]["buffer_bytes"], 0);
  // The second stage has more room for fewer layers; the chain's blocks fit both.
  const int64_t first = plan["stages"][0]["kv_capacity_tokens"];
  const int64_t second = plan["stages"][1]["kv_capacity_tokens"];
  EXPECT_GT(second, first);
  EXPECT_LE(plan["kv_blocks"].get<int64_t>() * plan["kv_block_tokens"].get<int64_t>(), first);
}

TEST_F(PlanCommandTest, FillsWhatTheCacheMayTakeOfTheLargestStage) {
  ASSERT_EQ(Plan({model_, "--layers", "0-4,5-7", "--kv-memory", "1M", "--json"}), kExitOk) << err_;
  // A block of 16 tokens takes 5 * 2 * 2 * 32 * 16 bytes on the first stage.
  EXPECT_EQ(Lines()[0]["kv_blocks"], 102);
}

TEST_F(PlanCommandTest, EndsWithItsOwnCodeWhereTheModelDoesNotFit) {
  EXPECT_EQ(Plan({model_, "--memory", "0.1"}), kExitDoesNotFit);
  EXPECT_THAT(err_, HasSubstr("smaller --context"));
  EXPECT_EQ(out_, "");
}

TEST_F(PlanCommandTest, NamesWhatIsWrongAndWhatToDo) {
  const struct {
    std::vector<std::string> arguments;
    const char* message;
  } cases[] = {
      {{"--stages", "9"}, "9"},
      {{"--layers", "0-3,5-7"}, "0-3,5-7"},
      {{"--stages", "3", "--layers", "0-3,4-7"}, "--stages"},
      {{"--context", "1024"}, "trained for 512"},
      {{"--kv-memory", "100K"}, "--kv-memory makes 6 blocks: one context of 512"},
      {{"--kv-memory", "100"}, "one block of the KV cache takes 16384"},
      {{"--kv-memory", "1M", "--kv-blocks", "64"}, "give one of them"},
      {{"--cards", "h100"}, "h200, l40s, 4090, 3090, a30"},
      {{"--stages", "3", "--memory", "8,9"}, "--memory gives 2 values for 3 stages"},
      {{"--memory", "-1"}, "--memory: '-1'"},
      {{"--memory-gbs", "0"}, "--memory-gbs: '0'"},
      {{"--simulate"}, "--cards, or give both --memory-gbs and --tflops"},
      {{"--simulate", "--tflops", "1"}, "stage 0"},
      {{"--simulate", "--cards", "a30", "--streams", "2", "--rate", "3"}, "give one of them"},
      {{"--simulate", "--cards", "a30", "--prompt-tokens", "9-3"}, "--prompt-tokens \"9-3\""},
      {{"--simulate", "--cards", "a30", "--output-tokens", "many"}, "--output-tokens \"many\""},
      {{"--simulate", "--cards", "a30", "--prompt-tokens", "500"}, "context of 512"},
      {{"--simulate", "--cards", "a30", "--rate", "5000"}, "more than 100000 requests"},
      {{"--efficiency", "1.1"}, "--efficiency: '1.1'"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> arguments = {model_};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    EXPECT_EQ(Plan(arguments), kExitUsage) << c.message;
    EXPECT_THAT(err_, HasSubstr(c.message));
  }
}

TEST_F(PlanCommandTest, AFileThatIsNoModelIsNotTheCommandLinesFault) {
  const std::string path = folder_ + "/bad.gguf";
  std::ofstream(path) << "GGUF but not one";
  EXPECT_EQ(Plan({path}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("bad.gguf"));
}

TEST_F(PlanCommandTest, ASimulationSaysThatItIsOneAndWhatItAssumes) {
  ASSERT_EQ(Plan(Simulate({"--streams", "8"})), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("SIMULATED: no device has run"), HasSubstr("at 70 %"),
                          HasSubstr("8 clients"), HasSubstr("layer split"), HasSubstr("seed 1")));
}

TEST_F(PlanCommandTest, FourEqualStagesWithManyStreamsBeatTheLayerSplit) {
  ASSERT_EQ(Plan(Simulate({"--streams", "64", "--json"})), kExitOk) << err_;
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["policy"], "layercake");
  EXPECT_EQ(lines[2]["policy"], "layer_split");
  EXPECT_GT(lines[1]["tokens_per_second"], 1.5 * lines[2]["tokens_per_second"].get<double>());
  EXPECT_LT(lines[1]["between_tokens_p50_seconds"], lines[2]["between_tokens_p50_seconds"]);
  for (size_t i = 1; i <= 2; ++i) {
    EXPECT_EQ(lines[i]["failed"], 0);
    EXPECT_LE(lines[i]["between_tokens_p50_seconds"], lines[i]["between_tokens_p99_seconds"]);
    EXPECT_LE(lines[i]["first_token_p50_seconds"], lines[i]["first_token_p99_seconds"]);
    EXPECT_LE(lines[i]["kv_used"], lines[i]["kv_peak"]);
    ASSERT_EQ(lines[i]["busy"].size(), 4u);
    double sum = 0;
    for (const double busy : lines[i]["busy"]) {
      EXPECT_GT(busy, 0);
      EXPECT_LE(busy, 1);
      sum += busy;
    }
    // One batch that walks keeps one stage busy at a time.
    EXPECT_EQ(sum <= 1.001, i == 2) << sum;
  }
}

TEST_F(PlanCommandTest, TheSameSeedGivesTheSameFiguresAndAnotherOneOthers) {
  std::string first;
  for (const char* seed : {"5", "5", "6"}) {
    ASSERT_EQ(Plan(Simulate({"--rate", "40", "--shared-prefix", "0.5", "--json", "--seed", seed})),
              kExitOk)
        << err_;
    if (first.empty()) first = out_;
    EXPECT_EQ(first == out_, std::string(seed) == "5") << "seed " << seed;
  }
}

TEST_F(PlanCommandTest, AFasterCardGivesMoreTokens) {
  double before = 0;
  for (const char* rate : {"0.2", "0.4"}) {
    ASSERT_EQ(Plan(Simulate({"--streams", "4", "--json"}, rate)), kExitOk) << err_;
    const double tokens = Lines()[1]["tokens_per_second"];
    EXPECT_GT(tokens, 1.3 * before);
    before = tokens;
  }
}

}  // namespace
}  // namespace layercake::cli
