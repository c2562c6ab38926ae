#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::GgufBuilder;
using testing::IsError;
using testing::Words;
using Bytes = std::vector<std::byte>;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::StatusOr<GgufFile> Parse(const Bytes& bytes) { return GgufFile::Parse(bytes, "test.gguf"); }

// One F32 tensor {64, 8}: 2,048 bytes.
GgufBuilder SmallFile() {
  GgufBuilder builder;
  builder.SetString("general.architecture", "llama").SetU32("llama.block_count", 2);
  builder.AddF32Tensor("weight", {64, 8}, std::vector<float>(512, 1.5f));
  return builder;
}

template <typename T>
void Patch(Bytes& bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

std::byte* FindText(Bytes& bytes, absl::string_view text) {
  const absl::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return bytes.data() + all.find(text);
}

uint64_t PeakResidentKib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6));
  }
  return 0;
}

TEST(Gguf, ReadsVersionsTwoAndThree) {
  for (const uint32_t version : {2u, 3u}) {
    const Bytes bytes = SmallFile().set_version(version).Build();
    const auto file = Parse(bytes);
    ASSERT_OK(file);
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->alignment(), 32u);
    EXPECT_EQ(file->data_offset() % 32, 0u);
    ASSERT_EQ(file->tensors().size(), 1u);
    const TensorInfo& tensor = file->tensors()[0];
    EXPECT_EQ(tensor.name, "weight");
    EXPECT_EQ(tensor.DescribeShape(), "{64, 8}");
    EXPECT_EQ(tensor.byte_size, 2048u);
    EXPECT_EQ(tensor.file_offset, file->data_offset());
    EXPECT_EQ(file->FindTensor("weight"), &tensor);
    EXPECT_EQ(file->FindTensor("other"), nullptr);
    const auto data = file->TensorBytes(tensor);
    ASSERT_OK(data);
    float first = 0;
    std::memcpy(&first, data->data(), 4);
    EXPECT_EQ(first, 1.5f);
  }
}

TEST(Gguf, ReadsAFileFromDiskAndSaysWhichOneIsMissing) {
  const std::string path = ::testing::TempDir() + "/gguf_small.gguf";
  ASSERT_OK(SmallFile().WriteFile(path));
  ASSERT_OK(GgufFile::Open(path));
  EXPECT_THAT(GgufFile::Open(path + ".none"),
              IsError(absl::StatusCode::kNotFound, Words{path + ".none"}));
  EXPECT_THAT(GgufFile::Open(::testing::TempDir()),
              IsError(absl::StatusCode::kInvalidArgument, Words{"not a file"}));
  ASSERT_OK(testing::WriteBytes(path, {}));
  EXPECT_THAT(GgufFile::Open(path), IsError(kDataLoss, Words{"empty"}));
}

TEST(Gguf, GivesEveryKindOfMetadataBack) {
  GgufBuilder builder;
  builder.SetU8("u8", 200)
      .SetU16("u16", 60000)
      .SetU32("u32", 4000000000u)
      .SetI32("i32", -5)
      .SetU64("u64", ~uint64_t{0})
      .SetF32("f32", 0.5f)
      .SetBool("yes", true)
      .SetString("text", "hello")
      .SetStringArray("words", std::vector<std::string>{"a", "", "ccc"})
      .SetI32Array("ints", std::vector<int32_t>{1, -2, 3})
      .SetF32Array("floats", std::vector<float>{0.25f, -1.0f});
  const Bytes bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_OK(file);
  const Metadata& metadata = file->metadata();
  EXPECT_EQ(*metadata.GetU32("u8"), 200u);
  EXPECT_EQ(*metadata.GetU32("u16"), 60000u);
  EXPECT_EQ(*metadata.GetU64("u32"), 4000000000u);
  EXPECT_EQ(*metadata.GetI64("i32"), -5);
  EXPECT_EQ(*metadata.GetU64("u64"), ~uint64_t{0});
  EXPECT_EQ(*metadata.GetFloat("f32"), 0.5);
  EXPECT_EQ(*metadata.GetFloat("i32"), -5.0);
  EXPECT_TRUE(*metadata.GetBool("yes"));
  EXPECT_EQ(*metadata.GetString("text"), "hello");
  EXPECT_THAT(*metadata.GetStringArray("words"), ::testing::ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*metadata.GetIntArray("ints"), ::testing::ElementsAre(1, -2, 3));
  EXPECT_THAT(*metadata.GetFloatArray("floats"), ::testing::ElementsAre(0.25f, -1.0f));
  EXPECT_EQ(*metadata.GetU32Or("none", 7), 7u);
  EXPECT_EQ(*metadata.GetStringOr("none", "x"), "x");
  EXPECT_THAT(*metadata.GetU32PerLayer("u8", 3), ::testing::ElementsAre(200, 200, 200));
}

TEST(Gguf, NamesKeyAndTypeWhenMetadataIsOtherThanAsked) {
  GgufBuilder builder;
  builder.SetI32("negative", -5)
      .SetU64("large", uint64_t{1} << 40)
      .SetString("text", "hello")
      .SetI32Array("ints", std::vector<int32_t>{1, -2, 3});
  const Bytes bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_OK(file);
  const Metadata& metadata = file->metadata();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(metadata.GetU32("none"), IsError(absl::StatusCode::kNotFound, Words{"none"}));
  EXPECT_THAT(metadata.GetU32("text"), IsError(kInvalid, Words{"text", "string", "integer"}));
  EXPECT_THAT(metadata.GetU64("negative"), IsError(kInvalid, Words{"negative", "-5"}));
  EXPECT_THAT(metadata.GetU32("large"), IsError(kInvalid, Words{"large", "1099511627776"}));
  EXPECT_THAT(metadata.GetString("ints"), IsError(kInvalid, Words{"an array of 3 i32"}));
  EXPECT_THAT(metadata.GetU32("ints"), IsError(kInvalid, Words{"ints", "one value"}));
  EXPECT_THAT(metadata.GetStringArray("ints"), IsError(kInvalid, Words{"array of strings"}));
  EXPECT_THAT(metadata.GetU32Or("text", 1), IsError(kInvalid, Words{"text"}));
  EXPECT_THAT(metadata.GetU32PerLayer("ints", 4), IsError(kInvalid, Words{"expected 4"}));
  EXPECT_THAT(metadata.GetU32PerLayer("ints", 3), IsError(kInvalid, Words{"-2"}));
}

// CASES A1: products that wrap to a small, plausible size.
TEST(Gguf, RefusesAWrappingDimension) {
  struct Case {
    uint64_t dimension;
    Words words;
  };
  const Case cases[] = {
      // 64 * (2^58 + 8) wraps to 512 elements.
      {(uint64_t{1} << 58) + 8, {"weight", "dimension 1", "288230376151711752", "63 bits"}},
      // 64 * (2^56 + 8) elements fit, their 4 bytes each wrap to 2,048.
      {(uint64_t{1} << 56) + 8, {"weight", "72057594037927944", "64 bits"}},
      {~uint64_t{0}, {"weight", "dimension 1", "18446744073709551615"}},
      {uint64_t{1} << 63, {"weight", "dimension 1"}},
      {0, {"weight", "dimension 1", "at least 1"}},
      // Fits everything but the file.
      {9, {"weight", "{64, 9}", "2304 bytes", "end of the file"}},
  };
  const Bytes good = SmallFile().Build();
  for (const Case& one : cases) {
    Bytes bytes = good;
    // name, n_dims, ne[0], ne[1]
    std::byte* name = FindText(bytes, "weight");
    Patch(bytes, static_cast<size_t>(name - bytes.data()) + 6 + 4 + 8, one.dimension);
    EXPECT_THAT(Parse(bytes), IsError(kDataLoss, one.words));
  }
}

TEST(Gguf, RefusesARunningTotalThatWraps) {
  // Two tensors of 0x7FFFFFFFFFFFFFC0 bytes each: every one fits 64 bits, their sum does not.
  for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0}) {
    GgufBuilder builder;
    const TensorBlock block = TensorBlockOf(type);
    const uint64_t elements = 0x7FFFFFFFFFFFFFC0u / block.bytes * block.elements / 32 * 32;
    builder.AddRawTensorInfo("a", static_cast<uint32_t>(type), {elements}, 0);
    builder.AddRawTensorInfo("b", static_cast<uint32_t>(type), {elements}, 0x7FFFFFFFFFFFFFC0u);
    EXPECT_THAT(Parse(builder.Build()), IsError(kDataLoss, Words{"a"}));
    // The same with a file that claims to be large enough (a header whose data lies elsewhere).
    builder.RemoveTensor("b").AddRawTensorInfo("b", static_cast<uint32_t>(type), {elements}, 0);
    builder.AddRawTensorInfo("c", static_cast<uint32_t>(type), {elements}, 0);
    EXPECT_THAT(GgufFile::ParseHeader(builder.Build(), ~uint64_t{0}, "claims.gguf"),
                IsError(kDataLoss, Words{"c", "64 bits"}));
  }
  // As upstream's parsers were tested: type I8, which is no weight type of ours.
  GgufBuilder builder;
  builder.AddRawTensorInfo("a", 24, {0x7FFFFFFFFFFFFFC0u}, 0);
  builder.AddRawTensorInfo("b", 24, {0x7FFFFFFFFFFFFFC0u}, 0x7FFFFFFFFFFFFFC0u);
  EXPECT_THAT(Parse(builder.Build()), IsError(kUnimplemented, Words{"a", "I8 (id 24)"}));
}

TEST(Gguf, RefusesOffsetsThatAreUnalignedOrBeyondTheFile) {
  struct Case {
    uint64_t offset;
    Words words;
  };
  const Case cases[] = {
      {1, {"offset of tensor t", "multiple of the alignment 32"}},
      {1 << 20, {"tensor t", "1048576", "end of the file"}},
      {~uint64_t{31}, {"tensor t", "end of the file"}},
  };
  for (const Case& one : cases) {
    GgufBuilder builder = SmallFile();
    builder.AddRawTensorInfo("t", 0, {8}, one.offset);
    EXPECT_THAT(Parse(builder.Build()), IsError(kDataLoss, one.words));
  }
  // Overlapping ranges are odd but harmless.
  GgufBuilder builder = SmallFile();
  builder.AddRawTensorInfo("view", 0, {8}, 64);
  ASSERT_OK(Parse(builder.Build()));
}

// CASES A2: lengths, counts, version and ids believed as written.
TEST(Gguf, RefusesLengthsAndCountsBeyondTheFileInConstantMemory) {
  const uint64_t before_kib = PeakResidentKib();
  // (i) 32 bytes: one key of length 0xFFFFFFFFFFFF.
  GgufBuilder empty;
  Bytes bytes = empty.set_key_count(1).Build();
  bytes.resize(32);
  Patch<uint64_t>(bytes, 24, 0xFFFFFFFFFFFFu);
  EXPECT_THAT(Parse(bytes), IsError(kDataLoss, Words{"n_kv", "= 1 at byte 16"}));
  bytes.resize(64);
  EXPECT_THAT(Parse(bytes), IsError(kDataLoss, Words{"length of metadata key 0", "281474976710655",
                                                     "byte 24", "32 bytes"}));
  // (ii) a string array that claims 2^40 items; (and other types whose bytes would wrap)
  for (const uint32_t element_type : {8u, 0u, 4u, 10u}) {
    for (const uint64_t count : {uint64_t{1} << 40, uint64_t{1} << 61, ~uint64_t{0}}) {
      Bytes value(12 + 100);
      Patch(value, 0, element_type);
      Patch(value, 4, count);
      GgufBuilder builder;
      builder.SetRaw("array", static_cast<uint32_t>(MetadataType::kArray), value);
      EXPECT_THAT(Parse(builder.Build()),
                  IsError(kDataLoss, Words{"element count of metadata key array",
                                           absl::StrCat("= ", count, " at byte 45")}));
    }
  }
  // (iii) counts of 2^64-1.
  EXPECT_THAT(Parse(SmallFile().set_key_count(~uint64_t{0}).Build()),
              IsError(kDataLoss, Words{"n_kv = 18446744073709551615 at byte 16"}));
  EXPECT_THAT(Parse(SmallFile().set_tensor_count(~uint64_t{0}).Build()),
              IsError(kDataLoss, Words{"n_tensors = 18446744073709551615 at byte 8"}));
  EXPECT_THAT(Parse(SmallFile().set_tensor_count(uint64_t{1} << 62).Build()),
              IsError(kDataLoss, Words{"n_tensors"}));
  EXPECT_LT(PeakResidentKib(), before_kib + 32 * 1024);
}

TEST(Gguf, RefusesOtherVersionsAndByteOrdersByName) {
  for (const uint32_t version : {0u, 1u, 4u, 0x7FFFFFFFu}) {
    EXPECT_THAT(Parse(SmallFile().set_version(version).Build()),
                IsError(kUnimplemented,
                        Words{absl::StrCat("version = ", version, " at byte 4"), "unsupported"}));
  }
  EXPECT_THAT(Parse(SmallFile().set_version(0x03000000).Build()),
              IsError(kUnimplemented, Words{"version", "big-endian"}));
  Bytes bytes = SmallFile().Build();
  std::memcpy(bytes.data(), "FUGG", 4);
  EXPECT_THAT(Parse(bytes), IsError(kDataLoss, Words{"big-endian"}));
  std::memcpy(bytes.data(),
              "\x7F"
              "ELF",
              4);
  EXPECT_THAT(Parse(bytes), IsError(kDataLoss, Words{"magic", "not a GGUF file"}));
  std::memcpy(bytes.data(), "vers", 4);
  EXPECT_THAT(Parse(bytes), IsError(kDataLoss, Words{"LFS"}));
}

TEST(Gguf, RefusesDuplicateKeysAndTensors) {
  EXPECT_THAT(Parse(SmallFile().SetU32("llama.block_count", 3).Build()),
              IsError(kDataLoss, Words{"llama.block_count", "twice"}));
  EXPECT_THAT(Parse(SmallFile().AddF32Tensor("weight", {8}, std::vector<float>(8)).Build()),
              IsError(kDataLoss, Words{"weight", "twice"}));
}

TEST(Gguf, RefusesMalformedMetadata) {
  const Bytes word(4, std::byte{9});
  EXPECT_THAT(Parse(SmallFile().SetRaw("odd", 13, word).Build()),
              IsError(kDataLoss, Words{"type of metadata key odd = 13"}));
  EXPECT_THAT(Parse(SmallFile().SetRaw("flag", 7, Bytes(1, std::byte{2})).Build()),
              IsError(kDataLoss, Words{"flag = 2"}));
  Bytes nested(12);
  nested[0] = std::byte{9};
  EXPECT_THAT(Parse(SmallFile().SetRaw("nested", 9, nested).Build()),
              IsError(kUnimplemented, Words{"nested", "arrays of arrays"}));
  nested[0] = std::byte{77};
  EXPECT_THAT(Parse(SmallFile().SetRaw("nested", 9, nested).Build()),
              IsError(kDataLoss, Words{"element type of metadata key nested = 77"}));
  EXPECT_THAT(Parse(SmallFile().SetU32("", 1).Build()), IsError(kDataLoss, Words{"never empty"}));
}

TEST(Gguf, HoldsAlignmentToPowersOfTwo) {
  for (const uint32_t alignment : {8u, 32u, 64u, 4096u}) {
    const Bytes bytes = SmallFile().set_alignment(alignment).Build();
    const auto file = Parse(bytes);
    ASSERT_OK(file);
    EXPECT_EQ(file->alignment(), alignment);
    EXPECT_EQ(file->data_offset() % alignment, 0u);
  }
  for (const uint32_t alignment : {0u, 1u, 4u, 33u, 48u, 0x80000000u}) {
    EXPECT_THAT(Parse(SmallFile().SetU32("general.alignment", alignment).Build()),
                IsError(kDataLoss, Words{"general.alignment", absl::StrCat("= ", alignment)}));
  }
  EXPECT_THAT(Parse(SmallFile().SetString("general.alignment", "32").Build()),
              IsError(kDataLoss, Words{"general.alignment", "string"}));
}

TEST(Gguf, RefusesNamesAndDimensionCountsBeyondTheLimits) {
  EXPECT_THAT(Parse(SmallFile().AddRawTensorInfo(std::string(256, 'n'), 0, {8}, 0).Build()),
              IsError(kDataLoss, Words{"length of name of tensor 1 = 256"}));
  EXPECT_THAT(Parse(SmallFile().AddRawTensorInfo("", 0, {8}, 0).Build()),
              IsError(kDataLoss, Words{"tensor 1", "never empty"}));
  EXPECT_THAT(Parse(SmallFile().AddRawTensorInfo("deep", 0, {1, 1, 1, 1, 1}, 0).Build()),
              IsError(kDataLoss, Words{"n_dims of tensor deep = 5"}));
  // Control characters never reach a terminal.
  const absl::Status status =
      Parse(SmallFile().AddRawTensorInfo("\x1b[31mred", 0, {0}, 0).Build()).status();
  EXPECT_EQ(status.message().find('\x1b'), absl::string_view::npos) << status;
}

// CASES A6: the type of each tensor decides; unknown or removed ids are refused up front.
TEST(Gguf, RefusesUnsupportedTensorTypesByNameAndId) {
  struct Case {
    uint32_t id;
    std::string name;
  };
  const Case cases[] = {{36, "IQ4_NL_4_4, removed (id 36)"},
                        {40, "NVFP4 (id 40)"},
                        {42, "Q2_0 (id 42)"},
                        {255, "unknown type (id 255)"},
                        {4, "Q4_2, removed (id 4)"},
                        {0xFFFFFFFF, "unknown type (id 4294967295)"}};
  for (const Case& one : cases) {
    EXPECT_THAT(Parse(SmallFile().AddRawTensorInfo("blk.0.odd", one.id, {32}, 0).Build()),
                IsError(kUnimplemented, Words{"blk.0.odd", one.name, "not supported"}));
  }
  ASSERT_OK(Parse(SmallFile().AddRawTensorInfo("fine", 39, {32}, 0).Build()));
}

TEST(Gguf, RefusesRowsThatAreNotWholeBlocks) {
  // Qwen2.5-0.5B's rows (896) cannot be K-quants, whatever general.file_type says.
  EXPECT_THAT(Parse(SmallFile().AddRawTensorInfo("blk.0.ffn_up.weight", 12, {896, 1}, 0).Build()),
              IsError(kDataLoss, Words{"blk.0.ffn_up.weight", "896", "Q4_K"}));
}

TEST(Gguf, ReadsEverySupportedTypeInOneFile) {
  base::SeededRandom random(7);
  GgufBuilder builder;
  builder.SetU32("general.file_type", 15);
  std::vector<TensorType> types;
  for (uint32_t id = 0; id < 64; ++id) {
    const auto type = TensorTypeFromGgufId(id);
    if (!type) continue;
    types.push_back(*type);
    builder.AddRandomTensor(absl::StrCat("t", id), *type, {512, 3}, 0.1, random);
  }
  const Bytes bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_OK(file);
  ASSERT_EQ(file->tensors().size(), types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    EXPECT_EQ(file->tensors()[i].type, types[i]);
    EXPECT_EQ(file->tensors()[i].byte_size, *RowBytes(types[i], 512) * 3);
  }
}

TEST(Gguf, ParsesAHeaderWhoseDataLiesElsewhere) {
  const Bytes bytes = testing::BuildTinyModel({}).Build();
  const auto whole = Parse(bytes);
  ASSERT_OK(whole);
  const auto header = whole->header_bytes();
  EXPECT_EQ(header.size(), whole->data_offset());
  const auto far =
      GgufFile::ParseHeader(Bytes(header.begin(), header.end()), bytes.size(), "far.gguf");
  ASSERT_OK(far);
  ASSERT_EQ(far->tensors().size(), whole->tensors().size());
  for (size_t i = 0; i < far->tensors().size(); ++i) {
    EXPECT_EQ(far->tensors()[i].name, whole->tensors()[i].name);
    EXPECT_EQ(far->tensors()[i].file_offset, whole->tensors()[i].file_offset);
  }
  EXPECT_FALSE(far->has_data());
  EXPECT_THAT(far->TensorBytes(far->tensors()[0]),
              IsError(absl::StatusCode::kFailedPrecondition, Words{"only the header"}));
  // A file size that the tensors do not fit.
  EXPECT_THAT(
      GgufFile::ParseHeader(Bytes(header.begin(), header.end()), bytes.size() - 64, "far.gguf"),
      IsError(kDataLoss, Words{"end of the file"}));
}

TEST(Gguf, RefusesEveryTruncation) {
  testing::TinyModelOptions options;
  options.n_layers = 1;
  options.hidden_size = 32;
  options.ffn_size = 32;
  options.n_heads = 2;
  options.n_kv_heads = 1;
  options.vocab_size = 260;
  const Bytes bytes = testing::BuildTinyModel(options).Build();
  const auto whole = Parse(bytes);
  ASSERT_OK(whole);
  for (size_t size = 0; size < bytes.size(); size += size < whole->data_offset() ? 7 : 997) {
    // A copy of exact size, so that ASan sees a read beyond the end.
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    if (size >= whole->data_end()) continue;
    EXPECT_THAT(Parse(cut), IsError(kDataLoss, Words{})) << size;
  }
}

TEST(Gguf, SurvivesRandomDamage) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  const Bytes good = SmallFile().SetStringArray("a", std::vector<std::string>{"x", "yy"}).Build();
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = good;
    const uint64_t flips = 1 + random.Below(4);
    for (uint64_t i = 0; i < flips; ++i) {
      bytes[random.Below(256)] = static_cast<std::byte>(random.Below(256));
    }
    const auto file = Parse(bytes);
    if (!file.ok()) continue;
    ++accepted;
    for (const TensorInfo& tensor : file->tensors()) {
      const auto data = file->TensorBytes(tensor);
      ASSERT_OK(data);
      EXPECT_EQ(data->size(), tensor.byte_size);
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 20000);
}

}  // namespace
}  // namespace layercake::model
