#include "model/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::IsError;
using testing::Words;

TEST(ModelSource, ReadsTensorsOfALocalFileInPlaceAndInPieces) {
  const std::string path = ::testing::TempDir() + "/model_source.gguf";
  ASSERT_OK(testing::BuildTinyModel({}).WriteFile(path));
  auto files = ModelFiles::Open(path);
  ASSERT_OK(files);
  LocalModelSource source(*std::move(files));
  const auto mapped = source.Map("blk.1.attn_q.weight");
  ASSERT_TRUE(mapped.has_value());
  ASSERT_EQ(mapped->size(), 64u * 64 * 4);
  std::vector<std::byte> copy(mapped->size(), std::byte{0xAA});
  for (size_t at = 0; at < copy.size(); at += 1000) {
    const size_t length = std::min<size_t>(1000, copy.size() - at);
    ASSERT_OK(source.Read("blk.1.attn_q.weight", at, absl::MakeSpan(copy).subspan(at, length)));
  }
  EXPECT_EQ(absl::MakeConstSpan(copy), *mapped);
  EXPECT_EQ(source.files().metadata().GetString("general.architecture").value(), "llama");
}

TEST(ModelSource, RefusesUnknownTensorsAndRangesBeyondTheEnd) {
  const std::string path = ::testing::TempDir() + "/model_source_ranges.gguf";
  ASSERT_OK(testing::BuildTinyModel({}).WriteFile(path));
  LocalModelSource source(*ModelFiles::Open(path));
  std::vector<std::byte> out(16);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_FALSE(source.Map("none").has_value());
  EXPECT_THAT(source.Read("none", 0, absl::MakeSpan(out)),
              IsError(absl::StatusCode::kNotFound, Words{"none"}));
  const uint64_t size = 64 * 4;
  EXPECT_TRUE(source.Read("output_norm.weight", size - 16, absl::MakeSpan(out)).ok());
  EXPECT_TRUE(source.Read("output_norm.weight", size, {}).ok());
  for (const uint64_t offset : {size - 15, size, size + 1, ~uint64_t{0}, ~uint64_t{15}}) {
    EXPECT_THAT(source.Read("output_norm.weight", offset, absl::MakeSpan(out)),
                IsError(kInvalid, Words{"output_norm.weight", "256"}));
  }
}

}  // namespace
}  // namespace layercake::model
