// A fingerprint of a vocabulary definition. Pure function; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

// SHA-256, in lower-case hexadecimal, over all fields of `spec` in the order of their declaration:
// strings and lists with their lengths before them, numbers as 8 bytes little-endian (floats as
// their bits), an absent optional as one zero byte and a present one after a one. Starts with a
// version word, so that a new field can never give an old digest. Internal when OpenSSL fails.
absl::StatusOr<std::string> VocabularySha256(const TokenizerSpec& spec);

}  // namespace layercake::model
