// What `layercake inspect` prints, and the full check of a model file behind it. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/gguf/model_files.h"
#include "model/model_config.h"

namespace layercake::model {

// Configuration, weights of all layers, tokenizer arrays, rope factors. A file without tensors
// (vocabulary only) is checked for its tokenizer alone and gives a config only when it has one.
absl::Status CheckModel(const ModelFiles& files);

struct InspectOptions {
  bool json = false;
  bool list_tensors = true;
  size_t max_array_items = 6;     // of a metadata array
  size_t max_string_bytes = 100;  // of a metadata string
};

// Never fails: what is wrong is CheckModel's to say, and the text ends with it.
std::string InspectModel(const ModelFiles& files, const InspectOptions& options);

}  // namespace layercake::model
