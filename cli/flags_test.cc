#include "cli/flags.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One program with every kind of flag.
class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() : program_("cake", "Tests flags.") {
    FlagTable& serve = program_.Command("serve", "Serves.", [this] { return Ran("serve"); });
    serve.Positional("MODEL", &model_, true, "The model.");
    serve.Positional("PROMPT", &prompt_, false, "The prompt.");
    serve.Integer("--stages", &stages_, 1, 64, "Stages.");
    serve.Switch("--insecure", &insecure_, "Opens.");
    serve.Switch("--run-ahead", &run_ahead_, "Runs.");
    serve.Text("--listen", &listen_, "Where.");
    serve.ReadFromVariable("LAYERCAKE_GRPC_LISTEN");
    serve.List("--devices", &devices_, "Devices.");
    serve.IntegerList("--npl", &npl_, 1, 1024, "Streams.");
    serve.NumberList("--rates", &rates_, 0.5, 9, "Rates.");
    serve.Number("--share", &share_, 0, 1, "Share.");
    serve.OptionalNumber("--temperature", &temperature_, 0, 10, "Heat.");
    serve.OptionalUnsigned("--seed", &seed_, "Seed.");
    serve.OptionalInteger("--max-tokens", &max_tokens_, 1, 1000, "Tokens.");
    serve.Choice("--transport", &transport_, {"auto", "ucx"}, "Kind.");
    serve.Duration("--grace", &grace_, "Grace.");
    serve.Bytes("--host-memory", &host_memory_, "Bytes.");
    program_.Command("status", "Prints.", [this] { return Ran("status"); })
        .Text("--server", &server_, "Server.");
  }

  void TearDown() override {
    for (const std::string& file : files_) unlink(file.c_str());
  }

  int Ran(std::string command) {
    ran_ = std::move(command);
    return 42;
  }

  int Run(std::vector<const char*> arguments, std::map<std::string, std::string> variables = {}) {
    arguments.insert(arguments.begin(), "cake");
    out_.str("");
    err_.str("");
    ran_ = "";
    return program_.Run(static_cast<int>(arguments.size()), arguments.data(),
                        Environment(std::move(variables)), out_, err_);
  }

  std::string File(const std::string& text) {
    std::string path = ::testing::TempDir() + "layercake_flags_XXXXXX";
    const int fd = mkstemp(path.data());
    EXPECT_GE(fd, 0);
    close(fd);
    std::ofstream(path) << text;
    files_.push_back(path);
    return path;
  }

  Program program_;
  std::string ran_, model_, prompt_, listen_ = "127.0.0.1:9180", transport_ = "auto", server_;
  int stages_ = 1;
  bool insecure_ = false;
  bool run_ahead_ = true;
  std::vector<std::string> devices_;
  std::vector<double> rates_;
  double share_ = 0;
  std::vector<int> npl_;
  std::optional<float> temperature_;
  std::optional<uint64_t> seed_;
  std::optional<int> max_tokens_;
  absl::Duration grace_ = absl::Seconds(10);
  uint64_t host_memory_ = 0;
  std::ostringstream out_, err_;
  std::vector<std::string> files_;
};

TEST_F(FlagsTest, ReadsEveryKindOfFlagFromTheCommandLine) {
  EXPECT_EQ(Run({"serve",
                 "--stages",
                 "3",
                 "m.gguf",
                 "--insecure",
                 "--listen=0.0.0.0:1",
                 "--devices",
                 "cpu,cpu:1",
                 "--npl",
                 "1,2,4",
                 "--temperature",
                 "0",
                 "--seed",
                 "18446744073709551615",
                 "--max-tokens",
                 "7",
                 "--transport",
                 "ucx",
                 "--grace",
                 "1.5m",
                 "a prompt"}),
            42)
      << err_.str();
  EXPECT_EQ(ran_, "serve");
  EXPECT_EQ(model_, "m.gguf");
  EXPECT_EQ(prompt_, "a prompt");
  EXPECT_EQ(stages_, 3);
  EXPECT_TRUE(insecure_);
  EXPECT_EQ(listen_, "0.0.0.0:1");
  EXPECT_THAT(devices_, ElementsAre("cpu", "cpu:1"));
  EXPECT_THAT(npl_, ElementsAre(1, 2, 4));
  EXPECT_EQ(temperature_, 0.0f);
  EXPECT_EQ(seed_, ~uint64_t{0});
  EXPECT_EQ(max_tokens_, 7);
  EXPECT_EQ(transport_, "ucx");
  EXPECT_EQ(grace_, absl::Seconds(90));
}

TEST_F(FlagsTest, ReadsSizes) {
  const std::pair<const char*, uint64_t> sizes[] = {{"0", 0},
                                                    {"123456789", 123456789},
                                                    {"1.5K", 1536},
                                                    {"4M", uint64_t{4} << 20},
                                                    {"24G", uint64_t{24} << 30},
                                                    {"2T", uint64_t{2} << 40}};
  for (const auto& [text, bytes] : sizes) {
    EXPECT_EQ(Run({"serve", "m", "--host-memory", text}), 42) << err_.str();
    EXPECT_EQ(host_memory_, bytes) << text;
  }
  for (const char* text : {"", "G", "-1", "nan", "4GB", "1e30", "9999999T", "four"}) {
    EXPECT_EQ(Run({"serve", "m", "--host-memory", text}), 2) << text;
    EXPECT_THAT(err_.str(), HasSubstr("--host-memory"));
  }
}

TEST_F(FlagsTest, KeepsDefaultsAndAbsentValues) {
  EXPECT_EQ(Run({"serve", "-"}), 42);
  EXPECT_EQ(model_, "-");
  EXPECT_EQ(stages_, 1);
  EXPECT_EQ(temperature_, std::nullopt);
  EXPECT_EQ(listen_, "127.0.0.1:9180");
}

TEST_F(FlagsTest, FlagWinsOverVariableOverFile) {
  const std::string file = File("stages = 5\n");
  EXPECT_EQ(Run({"serve", "m", "--config", file.c_str()}), 42) << err_.str();
  EXPECT_EQ(stages_, 5);
  EXPECT_EQ(Run({"serve", "m", "--config", file.c_str()}, {{"LAYERCAKE_STAGES", "4"}}), 42);
  EXPECT_EQ(stages_, 4);
  EXPECT_EQ(
      Run({"serve", "m", "--config", file.c_str(), "--stages", "3"}, {{"LAYERCAKE_STAGES", "4"}}),
      42);
  EXPECT_EQ(stages_, 3);
}

TEST_F(FlagsTest, TheFileMayBeNamedByAVariableAndHaveSections) {
  const std::string file = File(
      "# for all commands\n"
      "server = a:1\n"
      "stages = 2\n"
      "[serve]\n"
      "stages = 6\n"
      "devices = cpu,cpu\n"
      "insecure = on\n");
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_CONFIG", file}}), 42) << err_.str();
  EXPECT_EQ(stages_, 6);
  EXPECT_THAT(devices_, ElementsAre("cpu", "cpu"));
  EXPECT_TRUE(insecure_);
  EXPECT_EQ(Run({"status"}, {{"LAYERCAKE_CONFIG", file}}), 42) << err_.str();
  EXPECT_EQ(server_, "a:1");
}

TEST_F(FlagsTest, RefusesUnknownKeysAndMissingFiles) {
  EXPECT_EQ(Run({"serve", "m", "--config", File("stagse = 3\n").c_str()}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("unknown key 'stagse'"));
  EXPECT_EQ(Run({"serve", "m", "--config", File("[status]\nstages = 3\n").c_str()}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("in section [status]"));
  EXPECT_EQ(Run({"serve", "m", "--config", "/no/such/file"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("/no/such/file"));
  EXPECT_THAT(ran_, IsEmpty());
}

// Kubernetes sets these for every Service called "layercake"; they once made a server listen on
// "tcp".
TEST_F(FlagsTest, NeverReadsWhatKubernetesInjects) {
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_PORT", "tcp://10.0.0.1:9180"},
                                 {"LAYERCAKE_SERVICE_HOST", "10.0.0.1"},
                                 {"LAYERCAKE_SERVICE_PORT", "9180"},
                                 {"LAYERCAKE_LISTEN", "ignored:1"}}),
            42);
  EXPECT_EQ(listen_, "127.0.0.1:9180");
  for (const std::string& variable : program_.Variables()) {
    EXPECT_FALSE(IsInjectedByKubernetes(variable)) << variable;
  }
}

TEST_F(FlagsTest, ReadsTheListenAddressFromItsOwnVariable) {
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_GRPC_LISTEN", "127.0.0.1:7"}}), 42);
  EXPECT_EQ(listen_, "127.0.0.1:7");
  EXPECT_THAT(program_.Variables(), Contains("LAYERCAKE_GRPC_LISTEN"));
}

TEST_F(FlagsTest, ReadsSwitchesByValue) {
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_INSECURE", "1"}}), 42);
  EXPECT_TRUE(insecure_);
  for (const char* off : {"0", "false", "off"}) {
    insecure_ = true;
    EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_INSECURE", off}}), 42);
    EXPECT_FALSE(insecure_) << off;
  }
  EXPECT_EQ(Run({"serve", "m", "--insecure"}, {{"LAYERCAKE_INSECURE", "0"}}), 42);
  EXPECT_TRUE(insecure_);
  EXPECT_EQ(Run({"serve", "m", "--insecure=false"}, {{"LAYERCAKE_INSECURE", "1"}}), 42);
  EXPECT_FALSE(insecure_);
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_INSECURE", "maybe"}}), kExitUsage);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("LAYERCAKE_INSECURE"), HasSubstr("maybe")));
}

TEST_F(FlagsTest, ASwitchThatIsOnByDefaultHasANameForOff) {
  EXPECT_EQ(Run({"serve", "m", "--no-run-ahead"}, {{"LAYERCAKE_RUN_AHEAD", "1"}}), 42);
  EXPECT_FALSE(run_ahead_);
  EXPECT_EQ(Run({"serve", "m", "--run-ahead"}, {{"LAYERCAKE_RUN_AHEAD", "0"}}), 42);
  EXPECT_TRUE(run_ahead_);
  EXPECT_EQ(Run({"serve", "m"}, {{"LAYERCAKE_RUN_AHEAD", "0"}}), 42);
  EXPECT_FALSE(run_ahead_);
  EXPECT_EQ(Run({"serve", "m", "--no-insecure"}), kExitUsage);
}

TEST_F(FlagsTest, NamesTheFlagAndTheValueThatAreWrong) {
  const struct {
    std::vector<const char*> arguments;
    const char* message;
  } cases[] = {
      {{"serve", "m", "--stages", "0"}, "--stages: '0' is not a whole number from 1 to 64"},
      {{"serve", "m", "--stages", "3x"}, "--stages: '3x'"},
      {{"serve", "m", "--stages", "99999999999"}, "--stages"},
      {{"serve", "m", "--temperature", "nan"}, "--temperature: 'nan'"},
      {{"serve", "m", "--seed", "-1"}, "--seed: '-1'"},
      {{"serve", "m", "--devices", "cpu,,cpu"}, "--devices: 'cpu,,cpu'"},
      {{"serve", "m", "--npl", "1,x"}, "--npl: 'x'"},
      {{"serve", "m", "--rates", "1,0.25"}, "--rates: '0.25' is not a number from 0.5 to 9"},
      {{"serve", "m", "--share", "1.5"}, "--share: '1.5' is not a number from 0 to 1"},
      {{"serve", "m", "--transport", "tcp"}, "one of auto|ucx"},
      {{"serve", "m", "--grace", "-1s"}, "--grace"},
      {{"serve"}, "MODEL"},
      {{"serve", "m", "--no-such-flag"}, "--no-such-flag"},
      {{"serve", "m", "p", "extra"}, "extra"},
      {{"bake"}, "bake"},
      {{}, "subcommand"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Run(c.arguments), kExitUsage) << c.message;
    EXPECT_THAT(err_.str(), HasSubstr(c.message));
    EXPECT_THAT(ran_, IsEmpty()) << c.message;
  }
}

TEST_F(FlagsTest, TheLastOfARepeatedFlagWins) {
  EXPECT_EQ(Run({"serve", "m", "--stages", "3", "--stages", "4"}), 42);
  EXPECT_EQ(stages_, 4);
}

TEST_F(FlagsTest, PrintsHelpAndVersion) {
  EXPECT_EQ(Run({"--version"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("cake 0."));
  EXPECT_EQ(Run({"serve", "--help"}), kExitOk);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("--max-tokens"), HasSubstr("[LAYERCAKE_MAX_TOKENS]"),
                                HasSubstr("MODEL")));
}

}  // namespace
}  // namespace layercake::cli
