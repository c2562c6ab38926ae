#include "cli/model_path.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

Environment Env(std::map<std::string, std::string> variables) {
  return Environment(std::move(variables));
}

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "layercake_model_path_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Make(const std::string& relative, const std::string& text = "x") {
    const fs::path path = fs::path(folder_) / relative;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  std::string Hub(const std::string& relative) {
    return Make("hf/hub/models--user--repo/" + relative);
  }

  std::string Resolve(const std::string& model) {
    const auto path = ResolveModelPath(model, environment());
    EXPECT_TRUE(path.ok()) << path.status();
    return path.value_or("");
  }
  absl::Status Refusal(const std::string& model) {
    return ResolveModelPath(model, environment()).status();
  }
  Environment environment() const { return Env({{"HF_HOME", folder_ + "/hf"}}); }

  std::string folder_;
};

TEST_F(ModelPathTest, TakesAFileAsItIs) {
  const std::string file = Make("odd name.bin");
  EXPECT_EQ(Resolve(file), file);
}

TEST_F(ModelPathTest, TakesTheOneModelOfAFolder) {
  Make("one/README.md");
  Make("one/mmproj-model-f16.gguf");
  const std::string file = Make("one/model.gguf");
  EXPECT_EQ(Resolve(folder_ + "/one"), file);
}

TEST_F(ModelPathTest, ASplitSetCountsAsOneModel) {
  const std::string first = Make("split/m-00001-of-00002.gguf");
  Make("split/m-00002-of-00002.gguf");
  EXPECT_EQ(Resolve(folder_ + "/split"), first);
  Make("split/m-00001-of-00003.gguf");
  EXPECT_THAT(std::string(Refusal(folder_ + "/split").message()), HasSubstr("holds 2 models"));
}

TEST_F(ModelPathTest, ListsTheModelsOfAFolderWithSeveral) {
  Make("two/a.gguf");
  Make("two/b.gguf");
  const absl::Status status = Refusal(folder_ + "/two");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/two/a.gguf"), HasSubstr("/two/b.gguf")));
}

TEST_F(ModelPathTest, SaysThatAFolderHasNoModelOrThatThereIsNothing) {
  Make("none/file.txt");
  EXPECT_EQ(Refusal(folder_ + "/none").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Refusal(folder_ + "/missing.gguf").message()),
              AllOf(HasSubstr("/missing.gguf"), Not(HasSubstr("hf:"))));
}

TEST_F(ModelPathTest, HintsAtTheHubForABareName) {
  EXPECT_THAT(std::string(Refusal("user/repo").message()), HasSubstr("write hf:user/repo"));
}

TEST_F(ModelPathTest, FindsAHubModelByItsQuantisation) {
  const std::string q4 = Hub("snapshots/abc/Model-Q4_K_M.gguf");
  const std::string q8 = Hub("snapshots/abc/sub/Model-Q8_0.gguf");
  Hub("snapshots/abc/mmproj-Q8_0.gguf");
  EXPECT_EQ(Resolve("hf:user/repo:q4_k_m"), q4);
  EXPECT_EQ(Resolve("hf:user/repo:Q8_0"), q8);
  const absl::Status several = Refusal("hf:user/repo");
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), AllOf(HasSubstr(q4), HasSubstr(q8)));
  const absl::Status absent = Refusal("hf:user/repo:Q4_K");
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr(q4), HasSubstr("huggingface-cli download user/repo --include "
                                             "'*Q4_K*.gguf'")));
}

TEST_F(ModelPathTest, PrefersTheSnapshotOfRefsMain) {
  Hub("snapshots/old/Model-Q8_0.gguf");
  const std::string current = Hub("snapshots/new/Model-Q8_0.gguf");
  EXPECT_EQ(Refusal("hf:user/repo").code(), absl::StatusCode::kInvalidArgument);
  Make("hf/hub/models--user--repo/refs/main", "new\n");
  EXPECT_EQ(Resolve("hf:user/repo"), current);
}

TEST_F(ModelPathTest, FollowsTheLinksOfTheHubsCache) {
  const std::string blob = Hub("blobs/0123");
  const fs::path link = fs::path(folder_) / "hf/hub/models--user--repo/snapshots/c/M-Q8_0.gguf";
  fs::create_directories(link.parent_path());
  fs::create_symlink("../../blobs/0123", link);
  EXPECT_EQ(Resolve("hf:user/repo"), link.string());
}

TEST_F(ModelPathTest, SaysWhereItLookedAndHowToDownload) {
  const absl::Status status = Refusal("hf:user/other:Q4_0");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_ + "/hf/hub/models--user--other"),
                    HasSubstr("huggingface-cli download user/other")));
}

TEST_F(ModelPathTest, RefusesNamesThatAreNoHubNames) {
  for (const char* name : {"hf:", "hf:user", "hf:user/repo:", "hf:../repo", "hf:user/..",
                           "hf:a/b/c", "hf:user/re po"}) {
    EXPECT_EQ(Refusal(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(ModelsAmong, KeepsTheFirstShardOfEachSet) {
  EXPECT_THAT(ModelsAmong({"b-00002-of-00002.gguf", "a.gguf", "b-00001-of-00002.gguf", "c.bin",
                           "b-0001-of-0002.gguf", "MMPROJ.gguf"}),
              ElementsAre("a.gguf", "b-00001-of-00002.gguf", "b-0001-of-0002.gguf"));
}

TEST(NameHasQuant, MatchesWholeWordsInAnyCase) {
  EXPECT_TRUE(NameHasQuant("Model-q4_k.gguf", "Q4_K"));
  EXPECT_TRUE(NameHasQuant("Model.Q4_K.gguf", "q4_k"));
  EXPECT_FALSE(NameHasQuant("Model-Q4_K_M.gguf", "Q4_K"));
  EXPECT_FALSE(NameHasQuant("Model-IQ4_K.gguf", "Q4_K"));
  EXPECT_TRUE(NameHasQuant("Q4_K_M-Q4_K.gguf", "Q4_K"));
}

}  // namespace
}  // namespace layercake::cli
