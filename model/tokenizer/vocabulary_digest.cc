#include "model/tokenizer/vocabulary_digest.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/strings/escaping.h"

namespace layercake::model {
namespace {

constexpr std::string_view kVersion = "layercake vocabulary 1";

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// Feeds values to a SHA-256; remembers the first failure.
class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new()) {
    ok_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }

  void Bytes(std::string_view bytes) {
    ok_ = ok_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1;
  }

  void Number(uint64_t value) {
    std::array<char, 8> bytes;
    for (char& byte : bytes) {
      byte = static_cast<char>(value & 0xFF);
      value >>= 8;
    }
    Bytes({bytes.data(), bytes.size()});
  }

  void Text(std::string_view text) {
    Number(text.size());
    Bytes(text);
  }

  template <typename T, typename Add>
  void List(const std::vector<T>& list, Add add) {
    Number(list.size());
    for (const T& item : list) add(item);
  }

  template <typename T, typename Add>
  void Optional(const std::optional<T>& value, Add add) {
    Bytes(std::string_view(value ? "\1" : "\0", 1));
    if (value) add(*value);
  }

  absl::StatusOr<std::string> Finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> hash;
    unsigned int size = 0;
    ok_ = ok_ && EVP_DigestFinal_ex(context_.get(), hash.data(), &size) == 1;
    if (!ok_) return absl::InternalError("OpenSSL could not compute a SHA-256");
    return absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, FreeDigest> context_;
  bool ok_ = false;
};

}  // namespace

absl::StatusOr<std::string> VocabularySha256(const TokenizerSpec& spec) {
  Digest digest;
  const auto text = [&](std::string_view value) { digest.Text(value); };
  const auto number = [&](int64_t value) { digest.Number(static_cast<uint64_t>(value)); };
  const auto score = [&](float value) { digest.Number(std::bit_cast<uint32_t>(value)); };
  digest.Text(kVersion);
  digest.Text(spec.model);
  digest.Optional(spec.pre, text);
  digest.List(spec.tokens, text);
  digest.List(spec.token_types, number);
  digest.List(spec.scores, score);
  digest.List(spec.merges, text);
  for (const auto* id : {&spec.bos_id, &spec.eos_id, &spec.eot_id, &spec.eom_id, &spec.unknown_id,
                         &spec.padding_id, &spec.fim_pad_id, &spec.fim_rep_id, &spec.fim_sep_id}) {
    digest.Optional(*id, number);
  }
  for (const auto* flag : {&spec.add_bos, &spec.add_eos, &spec.add_space_prefix}) {
    digest.Optional(*flag, number);
  }
  return digest.Finish();
}

}  // namespace layercake::model
