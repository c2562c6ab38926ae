// What the user calls MODEL: a file, a folder that holds one model, or hf:user/repo[:quant], which
// is looked up in the Hugging Face hub's cache on this machine. Nothing is ever downloaded.
// Thread rule: plain functions; they read the file system.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/environment.h"

namespace layercake::cli {

// The path of a GGUF file (of the first shard, for a split set). NotFound says what was looked at
// and how to get the model; InvalidArgument lists the choices when several models fit.
absl::StatusOr<std::string> ResolveModelPath(absl::string_view model,
                                             const Environment& environment);

// `paths` with each split set ("name-00001-of-00003.gguf", ...) reduced to its first shard that is
// there, vision towers (mmproj) and files that are not GGUF left out. Sorted.
std::vector<std::string> ModelsAmong(std::vector<std::string> paths);

// Whether a file's name carries the quantisation `quant` as a word of its own, in any case:
// "Q4_K" is in "Model-q4_k.gguf" but not in "Model-Q4_K_M.gguf".
bool NameHasQuant(absl::string_view file_name, absl::string_view quant);

}  // namespace layercake::cli
