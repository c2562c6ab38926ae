#include "model/gguf/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "model/gguf/split.h"
#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::GgufBuilder;
using testing::IsError;
using testing::TinyModelOptions;
using testing::Words;
using Bytes = std::vector<std::byte>;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ModelFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = absl::StrCat(
        "model_files_", ::testing::UnitTest::GetInstance()->current_test_info()->name(), "_",
        getpid());
    folder_ = std::filesystem::path(::testing::TempDir()) / name;
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Shard(uint32_t number, uint32_t count = 3) const {
    return FormatShardName(Path("tiny"), number, count);
  }
  // A good set of three.
  void WriteSet(const TinyModelOptions& options = {}) {
    parts_ = testing::BuildTinyModel(options).Split(3);
    for (uint32_t i = 0; i < 3; ++i) ASSERT_OK(parts_[i].WriteFile(Shard(i + 1)));
  }

  std::filesystem::path folder_;
  std::vector<GgufBuilder> parts_;
};

TEST(ShardName, ReadsAndWritesTheUsualForm) {
  const auto name = ParseShardName("dir/a-00002-of-00003.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "dir/a");
  EXPECT_EQ(name->number, 2u);
  EXPECT_EQ(name->count, 3u);
  EXPECT_EQ(FormatShardName(name->prefix, 2, 3), "dir/a-00002-of-00003.gguf");
  for (const char* other :
       {"a.gguf", "a-00000-of-00003.gguf", "a-00004-of-00003.gguf", "a-0002-of-00003.gguf",
        "a-00002-of-00003.bin", "a-0x002-of-00003.gguf", "a-+0002-of-00003.gguf", ""}) {
    EXPECT_FALSE(ParseShardName(other).has_value()) << other;
  }
}

TEST_F(ModelFilesTest, OpensASingleFile) {
  ASSERT_OK(testing::BuildTinyModel({}).WriteFile(Path("m.gguf")));
  const auto files = ModelFiles::Open(Path("m.gguf"));
  ASSERT_OK(files);
  EXPECT_EQ(files->shards().size(), 1u);
  EXPECT_TRUE(files->has_data());
  EXPECT_EQ(files->total_file_bytes(), std::filesystem::file_size(Path("m.gguf")));
  const auto bytes = files->TensorBytes("blk.3.ffn_up.weight");
  ASSERT_OK(bytes);
  EXPECT_EQ(bytes->size(), 64u * 96 * 4);
  EXPECT_THAT(files->TensorBytes("nothing"),
              IsError(absl::StatusCode::kNotFound, Words{"nothing"}));
}

// CASES A4 (i): any shard of a good set opens the whole set.
TEST_F(ModelFilesTest, OpensTheWholeSetFromAnyShard) {
  WriteSet();
  const Bytes whole_bytes = testing::BuildTinyModel({}).Build();
  const auto whole = GgufFile::Parse(whole_bytes, "whole");
  ASSERT_OK(whole);
  uint64_t fingerprint = 0;
  for (uint32_t number = 1; number <= 3; ++number) {
    const auto files = ModelFiles::Open(Shard(number));
    ASSERT_OK(files);
    EXPECT_EQ(files->shards().size(), 3u);
    EXPECT_TRUE(files->metadata().Has("general.architecture"));
    ASSERT_EQ(files->tensors().size(), whole->tensors().size());
    for (const TensorInfo& tensor : whole->tensors()) {
      const auto mine = files->TensorBytes(tensor.name);
      ASSERT_OK(mine);
      EXPECT_EQ(*mine, *whole->TensorBytes(tensor)) << tensor.name;
    }
    if (number > 1) {
      EXPECT_EQ(files->fingerprint(), fingerprint);
    }
    fingerprint = files->fingerprint();
  }
}

// CASES A4 (ii).
TEST_F(ModelFilesTest, NamesAMissingShard) {
  WriteSet();
  std::filesystem::remove(Shard(3));
  for (uint32_t number = 1; number <= 2; ++number) {
    EXPECT_THAT(ModelFiles::Open(Shard(number)),
                IsError(absl::StatusCode::kNotFound, Words{"number 3", Shard(3)}));
  }
}

// CASES A4 (iii).
TEST_F(ModelFilesTest, RefusesShardsThatDisagreeOnTheirCounts) {
  WriteSet();
  GgufBuilder edited = parts_[1];
  ASSERT_OK(edited.Remove("split.count").SetU16("split.count", 4).WriteFile(Shard(2)));
  for (uint32_t number = 1; number <= 3; ++number) {
    EXPECT_THAT(ModelFiles::Open(Shard(number)),
                IsError(kDataLoss, Words{Shard(2), "split.count = 4", "says 3"}));
  }
  edited = parts_[1];
  ASSERT_OK(edited.Remove("split.no").SetU16("split.no", 0).WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)),
              IsError(kDataLoss, Words{Shard(2), "split.no = 0", "shard 2"}));
  edited = parts_[1];
  ASSERT_OK(
      edited.Remove("split.tensors.count").SetI32("split.tensors.count", 7).WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)),
              IsError(kDataLoss, Words{Shard(2), "split.tensors.count = 7", "says 39"}));
  edited = parts_[1];
  ASSERT_OK(edited.RemoveTensor("blk.1.ffn_up.weight").WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)),
              IsError(kDataLoss, Words{"split.tensors.count = 39", "38 tensors"}));
  edited = parts_[1];
  ASSERT_OK(edited.Remove("split.count").Remove("split.no").WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(2)), IsError(kDataLoss, Words{Shard(2), "no split.count"}));
}

// CASES A4 (iv).
TEST_F(ModelFilesTest, RefusesAShardOfAnotherQuantisation) {
  TinyModelOptions options;
  options.n_layers = 6;
  options.matrix_type = TensorType::kQ4_0;
  WriteSet(options);
  ASSERT_OK(ModelFiles::Open(Shard(1)));
  options.matrix_type = TensorType::kQ8_0;
  ASSERT_OK(testing::BuildTinyModel(options).Split(3)[1].WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)),
              IsError(kInvalid, Words{Shard(2), "Q8_0", "Q4_0", "another quantisation"}));
}

TEST_F(ModelFilesTest, RefusesAShardCutAtOtherTensors) {
  WriteSet();
  // Cut in 4, then relabelled as one of 3: a tensor stands twice although the total is right.
  GgufBuilder other = testing::BuildTinyModel({}).Split(3)[0];
  other.Remove("split.no").SetU16("split.no", 1);
  ASSERT_OK(other.WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)), IsError(kDataLoss, Words{"token_embd.weight"}));
}

TEST_F(ModelFilesTest, RefusesShardsWhoseMetadataDisagree) {
  WriteSet();
  parts_[2].SetString("general.architecture", "qwen2");
  ASSERT_OK(parts_[2].WriteFile(Shard(3)));
  EXPECT_THAT(ModelFiles::Open(Shard(1)),
              IsError(kInvalid, Words{Shard(3), "general.architecture", "\"qwen2\"", "\"llama\""}));
}

// CASES A4 (v).
TEST_F(ModelFilesTest, RefusesShardsJoinedWithCat) {
  WriteSet();
  Bytes joined;
  for (const GgufBuilder& part : parts_) {
    const Bytes bytes = part.Build();
    joined.insert(joined.end(), bytes.begin(), bytes.end());
  }
  for (const std::string& path : {Path("joined.gguf"), Shard(1)}) {
    ASSERT_OK(testing::WriteBytes(path, joined));
    EXPECT_THAT(ModelFiles::Open(path), IsError(kDataLoss, Words{path, "joined with cat"}));
  }
}

TEST_F(ModelFilesTest, RefusesAShardWithoutItsName) {
  WriteSet();
  std::filesystem::rename(Shard(2), Path("two.gguf"));
  EXPECT_THAT(ModelFiles::Open(Path("two.gguf")),
              IsError(kInvalid, Words{"two.gguf", "shard 2 of 3", "-00002-of-00003.gguf"}));
  ASSERT_OK(testing::BuildTinyModel({}).WriteFile(Shard(2)));
  EXPECT_THAT(ModelFiles::Open(Shard(2)), IsError(kDataLoss, Words{"no split.count"}));
}

TEST_F(ModelFilesTest, CarriesItsHeadersToAnotherHost) {
  WriteSet();
  const auto files = ModelFiles::Open(Shard(1));
  ASSERT_OK(files);
  const Bytes blob = files->SerializeHeader();
  EXPECT_LT(blob.size(), files->total_file_bytes() / 2);
  const auto far = ModelFiles::FromHeader(blob);
  ASSERT_OK(far);
  EXPECT_FALSE(far->has_data());
  EXPECT_EQ(far->fingerprint(), files->fingerprint());
  EXPECT_EQ(far->total_tensor_bytes(), files->total_tensor_bytes());
  ASSERT_EQ(far->tensors().size(), files->tensors().size());
  for (size_t i = 0; i < far->tensors().size(); ++i) {
    EXPECT_EQ(far->tensors()[i].name, files->tensors()[i].name);
    EXPECT_EQ(far->tensors()[i].shard, files->tensors()[i].shard);
    EXPECT_EQ(far->tensors()[i].file_offset, files->tensors()[i].file_offset);
    EXPECT_EQ(far->tensors()[i].byte_size, files->tensors()[i].byte_size);
  }
  EXPECT_EQ(far->SerializeHeader(), blob);
  EXPECT_THAT(far->TensorBytes("output.weight"),
              IsError(absl::StatusCode::kFailedPrecondition, Words{"only the header"}));
}

TEST_F(ModelFilesTest, RefusesDamagedHeaders) {
  WriteSet();
  const Bytes blob = ModelFiles::Open(Shard(1))->SerializeHeader();
  for (size_t size = 0; size < blob.size(); size += 1 + size / 16) {
    const Bytes cut(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(ModelFiles::FromHeader(cut).ok()) << size;
  }
  Bytes longer = blob;
  longer.push_back(std::byte{0});
  EXPECT_THAT(ModelFiles::FromHeader(longer), IsError(kDataLoss, Words{"beyond its end"}));
  Bytes newer = blob;
  newer[4] = std::byte{9};
  EXPECT_THAT(ModelFiles::FromHeader(newer),
              IsError(absl::StatusCode::kUnimplemented, Words{"version 9"}));
}

TEST_F(ModelFilesTest, TellsCopiesApart) {
  TinyModelOptions options;
  ASSERT_OK(testing::BuildTinyModel(options).WriteFile(Path("a.gguf")));
  ASSERT_OK(testing::BuildTinyModel(options).WriteFile(Path("b.gguf")));
  options.seed = 2;  // other weights, the same header
  ASSERT_OK(testing::BuildTinyModel(options).WriteFile(Path("c.gguf")));
  options.matrix_type = TensorType::kF16;
  ASSERT_OK(testing::BuildTinyModel(options).WriteFile(Path("d.gguf")));
  const uint64_t a = ModelFiles::Open(Path("a.gguf"))->fingerprint();
  EXPECT_EQ(ModelFiles::Open(Path("b.gguf"))->fingerprint(), a);
  EXPECT_NE(ModelFiles::Open(Path("c.gguf"))->fingerprint(), a);
  EXPECT_NE(ModelFiles::Open(Path("d.gguf"))->fingerprint(), a);
}

// CASES A1: the coordinator (file) and a worker without a file (headers) reach the same verdict.
TEST_F(ModelFilesTest, JudgesAHeaderAsItJudgesTheFile) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  TinyModelOptions options;
  options.n_layers = 1;
  options.vocab_size = 260;
  const Bytes good = testing::BuildTinyModel(options).Build();
  const uint64_t header_bytes = GgufFile::Parse(good, "good")->data_offset();
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = good;
    bytes[random.Below(header_bytes)] ^= static_cast<std::byte>(1 + random.Below(255));
    const auto file = GgufFile::Parse(bytes, "m");
    const auto header = GgufFile::ParseHeader(
        Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes)),
        bytes.size(), "m");
    if (file.ok()) {
      ++accepted;
      EXPECT_EQ(file->tensors().size(), header.ok() ? header->tensors().size() : 0);
    } else {
      EXPECT_FALSE(header.ok());
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace layercake::model
