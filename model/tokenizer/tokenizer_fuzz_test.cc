#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/random.h"
#include "model/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size);

namespace layercake::model {
namespace {

TEST(TokenizerFuzz, HoldsItsPromisesOverRandomInputs) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(kSeed);
  base::SeededRandom random(kSeed);
  const char* kPieces[] = {
      "hello", " world", "<tool",        "_call>",   "<|im_end|>",      "<s>", "<unk>", "  ",
      "\r\n",  "333",    "\xE2\x96\x81", "\xCC\x81", "\xF0\x9F\x98\x80"};
  for (int round = 0; round < 20'000; ++round) {
    std::string input;
    input += static_cast<char>(random.Below(256));
    input += static_cast<char>(random.Below(256));
    const bool raw = random.Below(4) == 0;
    for (uint64_t i = random.Below(12); i > 0; --i) {
      const uint64_t kind = random.Below(3);
      if (raw) {
        input += static_cast<char>(random.Below(256));
      } else if (kind == 0) {
        AppendUtf8(static_cast<uint32_t>(random.Below(0xD800)), &input);
      } else {
        input += kPieces[random.Below(std::size(kPieces))];
      }
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
}

}  // namespace
}  // namespace layercake::model
