// Small models with random weights, for the tests of every folder that loads one.
#pragma once

#include <cstdint>
#include <string>

#include "model/gguf/testing/gguf_builder.h"

namespace layercake::model::testing {

struct TinyModelOptions {
  std::string architecture = "llama";  // llama, qwen2 or qwen3
  uint32_t n_layers = 4;
  uint32_t hidden_size = 64;
  uint32_t ffn_size = 96;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 16;  // written as attention.key_length when it is not hidden / heads
  uint32_t context_length = 512;
  // At least 260. The vocabulary is byte-level BPE: 256 bytes, merges of common English pairs, then
  // unused fillers, then <|endoftext|> (bos), <|im_start|>, <|im_end|> (eos) as the last three.
  uint32_t vocab_size = 320;
  TensorType matrix_type = TensorType::kF32;  // of every 2-D weight but the next two
  TensorType embedding_type = TensorType::kF32;
  TensorType output_type = TensorType::kF32;
  bool tied_output = false;
  bool fused_qkv = false;      // blk.N.attn_qkv instead of q, k, v
  bool rope_factors = false;   // rope_freqs.weight
  bool output_biases = false;  // llama only: attn_output.bias and ffn_*.bias
  double yarn_factor = 0.0;    // > 1 writes rope.scaling.* of type yarn
  float rope_base = 10000.0f;
  std::string pre_tokenizer = "gpt-2";
  // tokenizer.chat_template; empty writes none.
  std::string chat_template =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  uint64_t seed = 1;
};

// Biases and q/k norms as the architecture has them. Rows must be whole blocks of the types asked
// for (CHECKs otherwise). Equal options give equal bytes.
GgufBuilder BuildTinyModel(const TinyModelOptions& options);

}  // namespace layercake::model::testing
