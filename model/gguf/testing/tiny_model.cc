#include "model/gguf/testing/tiny_model.h"

#include <cmath>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace layercake::model::testing {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kControl = 3;
constexpr int32_t kUnused = 5;

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// How byte-level BPE writes each byte as one printable character: printable Latin-1 as itself, the
// rest as 256, 257, ... in order.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    tokens.push_back(Utf8(printable ? byte : next++));
  }
  return tokens;
}

// "\u0120" is how byte-level BPE writes a blank.
constexpr const char* kMerges[][2] = {
    {"t", "h"},        {"th", "e"}, {"i", "n"},        {"\u0120", "t"}, {"\u0120", "a"},
    {"e", "r"},        {"o", "n"},  {"\u0120t", "he"}, {"h", "e"},      {"\u0120", "s"},
    {"a", "n"},        {"r", "e"},  {"\u0120", "w"},   {"o", "u"},      {"n", "d"},
    {"\u0120a", "nd"}, {"l", "l"},  {"\u0120", "o"},   {"in", "g"},     {"\u0120", "b"},
};

void SetTokenizer(const TinyModelOptions& options, GgufBuilder& builder) {
  std::vector<std::string> tokens = ByteTokens();
  std::vector<std::string> merges;
  constexpr uint32_t kSpecials = 3;
  for (const auto& merge : kMerges) {
    if (tokens.size() + kSpecials >= options.vocab_size) break;
    merges.push_back(absl::StrCat(merge[0], " ", merge[1]));
    tokens.push_back(absl::StrCat(merge[0], merge[1]));
  }
  std::vector<int32_t> types(tokens.size(), kNormal);
  for (uint32_t i = 0; tokens.size() + kSpecials < options.vocab_size; ++i) {
    tokens.push_back(absl::StrCat("[PAD", i, "]"));
    types.push_back(kUnused);
  }
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(special);
    types.push_back(kControl);
  }
  builder.SetString("tokenizer.ggml.model", "gpt2")
      .SetString("tokenizer.ggml.pre", options.pre_tokenizer)
      .SetStringArray("tokenizer.ggml.tokens", tokens)
      .SetI32Array("tokenizer.ggml.token_type", types)
      .SetStringArray("tokenizer.ggml.merges", merges)
      .SetU32("tokenizer.ggml.bos_token_id", options.vocab_size - 3)
      .SetU32("tokenizer.ggml.eos_token_id", options.vocab_size - 1)
      .SetBool("tokenizer.ggml.add_bos_token", false);
  if (!options.chat_template.empty()) {
    builder.SetString("tokenizer.chat_template", options.chat_template);
  }
}

void SetHyperparameters(const TinyModelOptions& options, GgufBuilder& builder) {
  const std::string& arch = options.architecture;
  builder.SetString("general.architecture", arch)
      .SetString("general.type", "model")
      .SetString("general.name", absl::StrCat("tiny random ", arch))
      .SetU32(arch + ".context_length", options.context_length)
      .SetU32(arch + ".embedding_length", options.hidden_size)
      .SetU32(arch + ".block_count", options.n_layers)
      .SetU32(arch + ".feed_forward_length", options.ffn_size)
      .SetU32(arch + ".attention.head_count", options.n_heads)
      .SetU32(arch + ".attention.head_count_kv", options.n_kv_heads)
      .SetF32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .SetF32(arch + ".rope.freq_base", options.rope_base);
  if (options.head_dim * options.n_heads != options.hidden_size) {
    builder.SetU32(arch + ".attention.key_length", options.head_dim)
        .SetU32(arch + ".attention.value_length", options.head_dim);
  }
  if (options.yarn_factor > 1.0) {
    builder.SetString(arch + ".rope.scaling.type", "yarn")
        .SetF32(arch + ".rope.scaling.factor", static_cast<float>(options.yarn_factor))
        .SetU32(arch + ".rope.scaling.original_context_length", options.context_length);
  }
}

class WeightWriter {
 public:
  WeightWriter(const TinyModelOptions& options, GgufBuilder& builder)
      : options_(options), builder_(builder), random_(options.seed) {}

  void AddGlobals() {
    const uint64_t hidden = options_.hidden_size;
    builder_.AddRandomTensor("token_embd.weight", options_.embedding_type,
                             {hidden, options_.vocab_size}, 1.0, random_);
    AddNorm("output_norm.weight", hidden);
    if (!options_.tied_output) {
      Matrix("output.weight", hidden, options_.vocab_size, options_.output_type);
    }
    if (options_.rope_factors) {
      std::vector<float> factors;
      const uint32_t n = options_.head_dim / 2;
      for (uint32_t j = 0; j < n; ++j) {
        factors.push_back(1.0f + 7.0f * static_cast<float>(j) / static_cast<float>(n));
      }
      builder_.AddF32Tensor("rope_freqs.weight", {n}, factors);
    }
  }

  void AddLayer(uint32_t layer) {
    const std::string blk = absl::StrCat("blk.", layer, ".");
    const uint64_t hidden = options_.hidden_size;
    const uint64_t ffn = options_.ffn_size;
    const uint64_t q = uint64_t{options_.n_heads} * options_.head_dim;
    const uint64_t kv = uint64_t{options_.n_kv_heads} * options_.head_dim;
    AddNorm(blk + "attn_norm.weight", hidden);
    AddQkv(blk, hidden, q, kv);
    if (options_.architecture == "qwen3") {
      AddNorm(blk + "attn_q_norm.weight", options_.head_dim);
      AddNorm(blk + "attn_k_norm.weight", options_.head_dim);
    }
    Matrix(blk + "attn_output.weight", q, hidden, options_.matrix_type);
    AddNorm(blk + "ffn_norm.weight", hidden);
    Matrix(blk + "ffn_gate.weight", hidden, ffn, options_.matrix_type);
    Matrix(blk + "ffn_up.weight", hidden, ffn, options_.matrix_type);
    Matrix(blk + "ffn_down.weight", ffn, hidden, options_.matrix_type);
    if (!options_.output_biases) return;
    Bias(blk + "attn_output.bias", hidden);
    Bias(blk + "ffn_gate.bias", ffn);
    Bias(blk + "ffn_up.bias", ffn);
    Bias(blk + "ffn_down.bias", hidden);
  }

 private:
  void AddQkv(const std::string& blk, uint64_t hidden, uint64_t q, uint64_t kv) {
    const bool biases = options_.architecture == "qwen2";
    if (options_.fused_qkv) {
      Matrix(blk + "attn_qkv.weight", hidden, q + 2 * kv, options_.matrix_type);
      if (biases) Bias(blk + "attn_qkv.bias", q + 2 * kv);
      return;
    }
    Matrix(blk + "attn_q.weight", hidden, q, options_.matrix_type);
    Matrix(blk + "attn_k.weight", hidden, kv, options_.matrix_type);
    Matrix(blk + "attn_v.weight", hidden, kv, options_.matrix_type);
    if (!biases) return;
    Bias(blk + "attn_q.bias", q);
    Bias(blk + "attn_k.bias", kv);
    Bias(blk + "attn_v.bias", kv);
  }

  // (rows, columns), scaled so that its product with a unit vector keeps about unit size.
  void Matrix(const std::string& name, uint64_t columns, uint64_t rows, TensorType type) {
    builder_.AddRandomTensor(name, type, {columns, rows},
                             1.0 / std::sqrt(static_cast<double>(columns)), random_);
  }
  void Bias(const std::string& name, uint64_t n) {
    builder_.AddRandomTensor(name, TensorType::kF32, {n}, 0.1, random_);
  }
  void AddNorm(const std::string& name, uint64_t n) {
    std::vector<float> values;
    for (uint64_t i = 0; i < n; ++i) {
      values.push_back(static_cast<float>(0.8 + 0.4 * random_.Unit()));
    }
    builder_.AddF32Tensor(name, {n}, values);
  }

  const TinyModelOptions& options_;
  GgufBuilder& builder_;
  base::SeededRandom random_;
};

}  // namespace

GgufBuilder BuildTinyModel(const TinyModelOptions& options) {
  GgufBuilder builder;
  SetHyperparameters(options, builder);
  SetTokenizer(options, builder);
  WeightWriter writer(options, builder);
  writer.AddGlobals();
  for (uint32_t layer = 0; layer < options.n_layers; ++layer) writer.AddLayer(layer);
  return builder;
}

}  // namespace layercake::model::testing
