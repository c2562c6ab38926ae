// What a model file says about its tokenizer, as plain values, so that the tokenizer needs no GGUF
// and the GGUF reader needs no tokenizer. Nothing here is checked: Tokenizer::Create checks all.
// Plain data; any thread may read a const one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace layercake::model {

// Index into TokenizerSpec::tokens.
using TokenId = int32_t;

// Values of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Special ids are 64 bits wide and hold the file's own value (GGUF writes u32, so "minus one"
// arrives as 4294967295): the range check belongs to Tokenizer::Create, which names key and value.
struct TokenizerSpec {
  std::string model;               // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SPM)
  std::optional<std::string> pre;  // tokenizer.ggml.pre; absent is not the same as "default"
  std::vector<std::string> tokens;  // tokenizer.ggml.tokens, (n_vocab), raw bytes as in the file

  // (n_vocab) or empty. Values outside TokenType are kept as they are.
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type; empty = all normal
  std::vector<float> scores;         // tokenizer.ggml.scores; "llama" needs them
  std::vector<std::string> merges;   // tokenizer.ggml.merges, "left right"; "gpt2" needs them

  std::optional<int64_t> bos_id;      // tokenizer.ggml.bos_token_id
  std::optional<int64_t> eos_id;      // tokenizer.ggml.eos_token_id
  std::optional<int64_t> eot_id;      // tokenizer.ggml.eot_token_id
  std::optional<int64_t> eom_id;      // tokenizer.ggml.eom_token_id
  std::optional<int64_t> unknown_id;  // tokenizer.ggml.unknown_token_id
  std::optional<int64_t> padding_id;  // tokenizer.ggml.padding_token_id
  std::optional<int64_t> fim_pad_id;  // tokenizer.ggml.fim_pad_token_id
  std::optional<int64_t> fim_rep_id;  // tokenizer.ggml.fim_rep_token_id
  std::optional<int64_t> fim_sep_id;  // tokenizer.ggml.fim_sep_token_id

  // Absent = the default of the model and pre-tokenizer.
  std::optional<bool> add_bos;           // tokenizer.ggml.add_bos_token
  std::optional<bool> add_eos;           // tokenizer.ggml.add_eos_token
  std::optional<bool> add_space_prefix;  // tokenizer.ggml.add_space_prefix
};

}  // namespace layercake::model
