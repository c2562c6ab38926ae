#include "cli/environment.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

Environment Env(std::map<std::string, std::string> variables) {
  return Environment(std::move(variables));
}

TEST(Environment, TreatsEmptyVariablesAsUnset) {
  const Environment environment = Env({{"A", ""}, {"B", "b"}});
  EXPECT_EQ(environment.Get("A"), std::nullopt);
  EXPECT_EQ(environment.Get("B"), "b");
  EXPECT_EQ(environment.GetOr("A", "fallback"), "fallback");
  EXPECT_EQ(environment.Get("C"), std::nullopt);
}

TEST(Environment, TakesASnapshotOfTheProcess) {
  ASSERT_EQ(setenv("LAYERCAKE_ENVIRONMENT_TEST", "a=b", 1), 0);
  const Environment environment = Environment::FromProcess();
  ASSERT_EQ(unsetenv("LAYERCAKE_ENVIRONMENT_TEST"), 0);
  EXPECT_EQ(environment.Get("LAYERCAKE_ENVIRONMENT_TEST"), "a=b");
}

TEST(Environment, NamesTheVariableOfAFlag) {
  EXPECT_EQ(VariableOfFlag("--max-tokens"), "LAYERCAKE_MAX_TOKENS");
  EXPECT_EQ(VariableOfFlag("--stages"), "LAYERCAKE_STAGES");
}

TEST(Environment, KnowsWhatKubernetesInjects) {
  for (const char* name :
       {"LAYERCAKE_PORT", "LAYERCAKE_SERVICE_HOST", "LAYERCAKE_SERVICE_PORT",
        "LAYERCAKE_SERVICE_PORT_GRPC", "LAYERCAKE_PORT_9180_TCP", "LAYERCAKE_PORT_9180_TCP_ADDR",
        "LAYERCAKE_COORDINATOR_SERVICE_HOST", "LAYERCAKE_COORDINATOR_PORT"}) {
    EXPECT_TRUE(IsInjectedByKubernetes(name)) << name;
  }
  for (const char* name : {"LAYERCAKE_GRPC_LISTEN", "LAYERCAKE_COORDINATOR", "LAYERCAKE_TRANSPORT",
                           "LAYERCAKE_SUPPORT", "PATH"}) {
    EXPECT_FALSE(IsInjectedByKubernetes(name)) << name;
  }
}

TEST(Environment, ReadsOnAndOffByValue) {
  for (const char* on : {"1", "true", "on", "yes", "TRUE", "On"}) {
    ASSERT_TRUE(ParseOnOff(on).ok()) << on;
    EXPECT_TRUE(*ParseOnOff(on)) << on;
  }
  for (const char* off : {"0", "false", "off", "no", "False", "OFF"}) {
    ASSERT_TRUE(ParseOnOff(off).ok()) << off;
    EXPECT_FALSE(*ParseOnOff(off)) << off;
  }
  for (const char* neither : {"", "2", "tcp://10.0.0.1:80", "o n"}) {
    EXPECT_FALSE(ParseOnOff(neither).ok()) << neither;
  }
}

TEST(Environment, FindsTheCacheFolders) {
  EXPECT_EQ(CacheFolder(Env({{"HOME", "/h"}})), "/h/.cache");
  EXPECT_EQ(CacheFolder(Env({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}})), "/c");
  EXPECT_EQ(CacheFolder(Env({{"HOME", "/h"}, {"XDG_CACHE_HOME", "relative"}})), "/h/.cache");
  EXPECT_EQ(CacheFolder(Env({})), "");
  EXPECT_EQ(HuggingFaceHubFolder(Env({{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_EQ(HuggingFaceHubFolder(Env({{"HOME", "/h"}, {"HF_HOME", "/hf"}})), "/hf/hub");
  EXPECT_EQ(HuggingFaceHubFolder(Env({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/hub"}})), "/hub");
}

TEST(Environment, DecoratesOnlyTerminalsThatWantIt) {
  EXPECT_TRUE(WantsDecoration(Env({{"TERM", "xterm"}}), true));
  EXPECT_FALSE(WantsDecoration(Env({{"TERM", "xterm"}}), false));
  EXPECT_FALSE(WantsDecoration(Env({{"TERM", "xterm"}, {"NO_COLOR", "1"}}), true));
  EXPECT_FALSE(WantsDecoration(Env({{"TERM", "dumb"}}), true));
}

TEST(Environment, FindsTheLeaderOfALeaderWorkerSet) {
  EXPECT_EQ(LeaderAddress(Env({})), "");
  EXPECT_EQ(LeaderAddress(Env({{"LWS_LEADER_ADDRESS", "cake-0.cake.default"}})),
            "cake-0.cake.default:9181");
}

TEST(Environment, AddsAPortOnlyWhereThereIsNone) {
  EXPECT_EQ(WithDefaultPort("host", 7), "host:7");
  EXPECT_EQ(WithDefaultPort("host:9", 7), "host:9");
  EXPECT_EQ(WithDefaultPort("::1", 7), "[::1]:7");
  EXPECT_EQ(WithDefaultPort("[::1]", 7), "[::1]:7");
  EXPECT_EQ(WithDefaultPort("[::1]:9", 7), "[::1]:9");
}

}  // namespace
}  // namespace layercake::cli
