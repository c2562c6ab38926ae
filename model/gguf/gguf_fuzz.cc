// Hostile GGUF bytes: whatever parses must be readable to the last byte. The first byte chooses
// between a file and the blob of headers that a worker without a file gets.
#include <cstddef>
#include <cstdint>

#include "model/gguf/metadata_text.h"
#include "model/gguf/model_files.h"
#include "model/gguf/tokenizer_metadata.h"

namespace layercake::model {
namespace {

// Keeps the compiler from dropping reads.
volatile uint64_t g_sink = 0;

void ReadAll(const ModelFiles& files) {
  uint64_t sum = files.fingerprint() + files.total_tensor_bytes();
  for (const MetadataEntry& entry : files.metadata().entries()) {
    sum += FormatMetadataValue(entry, 8, 64).size();
    sum += files.metadata().GetU32PerLayer(entry.key, 4).ok() ? 1 : 0;
    sum += files.metadata().GetFloat(entry.key).ok() ? 1 : 0;
    sum += files.metadata().GetString(entry.key).ok() ? 1 : 0;
    sum += files.metadata().GetStringArray(entry.key).ok() ? 1 : 0;
    sum += files.metadata().GetIntArray(entry.key).ok() ? 1 : 0;
    sum += files.metadata().GetFloatArray(entry.key).ok() ? 1 : 0;
  }
  for (const TensorInfo& tensor : files.tensors()) {
    const auto bytes = files.TensorBytes(tensor.name);
    if (!bytes.ok() || bytes->empty()) continue;
    sum += std::to_integer<uint64_t>(bytes->front()) + std::to_integer<uint64_t>(bytes->back());
  }
  const auto spec = LoadTokenizerSpec(files.metadata());
  if (spec.ok()) sum += spec->tokens.size();
  const auto templates = LoadChatTemplates(files.metadata());
  if (templates.ok()) sum += templates->named.size();
  g_sink = sum;
}

}  // namespace
}  // namespace layercake::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using layercake::model::GgufFile;
  using layercake::model::ModelFiles;
  if (size == 0) return 0;
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    auto file = GgufFile::Parse(bytes, "fuzz.gguf");
    if (!file.ok()) return 0;
    std::vector<GgufFile> shards;
    shards.push_back(*std::move(file));
    const auto files = ModelFiles::FromShards(std::move(shards));
    if (!files.ok()) return 0;
    layercake::model::ReadAll(*files);
    const auto again = ModelFiles::FromHeader(files->SerializeHeader());
    if (!again.ok()) __builtin_trap();
    return 0;
  }
  const auto files = ModelFiles::FromHeader(bytes);
  if (files.ok()) layercake::model::ReadAll(*files);
  return 0;
}
