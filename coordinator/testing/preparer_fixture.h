// A request preparer over a small vocabulary, with everything that it refers to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/random.h"
#include "coordinator/request_preparer.h"
#include "model/chat/chat_template.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/testing/tiny_model.h"
#include "model/gguf/tokenizer_metadata.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::coordinator::testing {

class FixedClock final : public base::Clock {
 public:
  base::Instant Now() const override { return {}; }
  absl::Time WallNow() const override { return absl::FromUnixSeconds(1'750'000'000); }
};

// BOS is <|endoftext|>, the end of a turn <|im_end|>.
class PreparerFixture {
 public:
  struct Setup {
    bool add_bos = false;
    // The tiny model's own (ChatML) when absent, none when empty.
    std::optional<std::string> chat_template = std::nullopt;
    RequestPreparerOptions options = {};
  };

  explicit PreparerFixture(Setup setup) {
    const std::vector<std::byte> bytes = model::testing::BuildTinyModel({}).Build();
    const model::GgufFile file = model::GgufFile::Parse(bytes, "tiny").value();
    model::TokenizerSpec spec = model::LoadTokenizerSpec(file.metadata()).value();
    spec.add_bos = setup.add_bos;
    tokenizer_ = model::Tokenizer::Create(std::move(spec)).value();
    const std::string source = setup.chat_template.value_or(
        model::LoadChatTemplates(file.metadata()).value().default_template);
    if (!source.empty()) {
      chat_template_ = model::ChatTemplate::Create(source, "<|endoftext|>", "<|im_end|>").value();
    }
    if (setup.options.context_tokens == 0) setup.options.context_tokens = 64;
    if (setup.options.model.name().empty()) setup.options.model.set_name("tiny");
    preparer_ =
        std::make_unique<RequestPreparer>(*tokenizer_, chat_template_ ? &*chat_template_ : nullptr,
                                          clock_, random_, std::move(setup.options));
  }
  PreparerFixture() : PreparerFixture(Setup{}) {}

  const RequestPreparer& operator*() const { return *preparer_; }
  const RequestPreparer* operator->() const { return preparer_.get(); }
  const model::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  FixedClock clock_;
  base::SeededRandom random_{7};
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::optional<model::ChatTemplate> chat_template_;
  std::unique_ptr<RequestPreparer> preparer_;
};

}  // namespace layercake::coordinator::testing
