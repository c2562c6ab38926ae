#include "model/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace layercake::model {
namespace {

// The expressions are facts of the published tokenizers. None may need a stack frame or a
// backtracking point per character in a group: only single-character repeats are unbounded.

constexpr std::string_view kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kDigitsThenGpt2[] = {R"(\p{N})", kGpt2[0]};

constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Words change at a lower-to-upper border: upper* lower+, else upper+ lower*.
constexpr std::string_view kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)",
                                         R"([0-9][0-9][0-9])"};

constexpr std::string_view kDeepseekLlm[] = {
    R"([\r\n])",
    // Cased letters of the scripts that the model's authors listed.
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15})"
    R"(\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149})"
    R"(\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2})"
    R"(\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"
    R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)",
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    // Published as \s+$. The look-behind keeps the search from trying every space of a long run.
    R"((?<!\s)\s++\z)", R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N}+)"};

constexpr std::string_view kDeepseekV3[] = {
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kDeepseekCoder[] = {
    R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"};

struct Definition {
  std::string_view name;
  absl::Span<const std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;
  bool nfc = false;
};

constexpr Definition kDefinitions[] = {
    {.name = "codeshell", .patterns = kDigitsThenGpt2},
    {.name = "command-r", .patterns = kDigitsThenGpt2},
    {.name = "dbrx", .patterns = kLlama3},
    {.name = "deepseek-coder", .patterns = kDeepseekCoder},
    {.name = "deepseek-llm", .patterns = kDeepseekLlm},
    {.name = "deepseek-r1-qwen", .patterns = kQwen2},
    {.name = "deepseek-v3", .patterns = kDeepseekV3},
    {.name = "default", .patterns = kDefault},
    {.name = "exaone", .patterns = kDigitsThenGpt2},
    {.name = "falcon3", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "gpt-2", .patterns = kGpt2},
    {.name = "llama-bpe", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "pixtral", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "qwen2", .patterns = kQwen2, .nfc = true},
    {.name = "refact", .patterns = kDigitsThenGpt2},
    {.name = "smaug-bpe", .patterns = kLlama3},
    {.name = "smollm", .patterns = kDigitsThenGpt2},
    {.name = "stablelm2", .patterns = kQwen2},
    {.name = "starcoder", .patterns = kDigitsThenGpt2},
    {.name = "tekken", .patterns = kTekken, .ignore_merges = true, .add_bos = true},
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(error, text, sizeof(text)) < 0) return absl::StrCat("error ", error);
  return reinterpret_cast<const char*>(text);
}

// A match may look at each character of the text a few times (a run of spaces is scanned by three
// alternatives); more would mean that a pattern is not linear.
uint32_t MatchLimit(size_t bytes) {
  return static_cast<uint32_t>(
      std::min<size_t>(100'000 + 16 * bytes, std::numeric_limits<uint32_t>::max()));
}
constexpr uint32_t kHeapLimitKib = 16 << 10;

}  // namespace

// One compiled expression. Owns the PCRE2 code; matching it is const and thread-safe.
class PreTokenizer::Pattern {
 public:
  static absl::StatusOr<Pattern> Compile(std::string_view published) {
    // PCRE2's \s also takes U+180E, which is no white space since Unicode 6.3 and is none to the
    // engines that these expressions were written for.
    const std::string expression = absl::StrReplaceAll(
        std::string(published), {{R"(\s)", R"(\p{White_Space})"}, {R"(\S)", R"(\P{White_Space})"}});
    int error = 0;
    PCRE2_SIZE offset = 0;
    Pattern pattern;
    pattern.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                      expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                                      nullptr));
    if (pattern.code_ == nullptr) {
      return absl::InternalError(absl::StrCat("PCRE2 refused the pre-tokenizer expression ",
                                              expression, " at ", offset, ": ", ErrorText(error)));
    }
    // Best effort: without JIT (not built in, or memory that may not be executable) PCRE2
    // interprets the same expression, only slower.
    (void)pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE);
    return pattern;
  }

  // Appends the pieces of `text`.
  absl::Status Split(std::string_view text, pcre2_match_data* match, pcre2_match_context* context,
                     std::vector<std::string_view>* pieces) const {
    size_t at = 0;
    while (at < text.size()) {
      // The caller has checked the text; checking again for each piece would be quadratic.
      const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(), at, PCRE2_NO_UTF_CHECK, match, context);
      if (count == PCRE2_ERROR_NOMATCH) break;
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
      if (count < 0 || range[1] <= range[0]) {
        return absl::InternalError(absl::StrCat("cannot cut text of ", text.size(),
                                                " bytes into pieces at byte ", at, ": PCRE2 says ",
                                                count < 0 ? ErrorText(count) : "empty match"));
      }
      if (range[0] > at) pieces->push_back(text.substr(at, range[0] - at));
      pieces->push_back(text.substr(range[0], range[1] - range[0]));
      at = range[1];
    }
    if (at < text.size()) pieces->push_back(text.substr(at));
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  const auto* definition =
      std::find_if(std::begin(kDefinitions), std::end(kDefinitions),
                   [name](const Definition& candidate) { return candidate.name == name; });
  if (definition == std::end(kDefinitions)) {
    return absl::UnimplementedError(absl::StrCat(
        "tokenizer.ggml.pre \"", std::string(name), "\" is not supported; known are ",
        absl::StrJoin(kDefinitions, ", ",
                      [](std::string* out, const Definition& known) { out->append(known.name); })));
  }
  std::unique_ptr<PreTokenizer> pre_tokenizer(new PreTokenizer);
  pre_tokenizer->ignore_merges_ = definition->ignore_merges;
  pre_tokenizer->add_bos_by_default_ = definition->add_bos;
  pre_tokenizer->normalizes_to_nfc_ = definition->nfc;
  for (const std::string_view expression : definition->patterns) {
    LC_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(expression));
    pre_tokenizer->patterns_.push_back(std::move(pattern));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 std::vector<std::string_view>* pieces) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(
      pcre2_match_context_create(nullptr));
  if (match == nullptr || context == nullptr) {
    return absl::ResourceExhaustedError("no memory to match text; try again later");
  }
  pcre2_set_match_limit(context.get(), MatchLimit(text.size()));
  pcre2_set_depth_limit(context.get(), MatchLimit(text.size()));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  pieces->clear();
  if (!text.empty()) pieces->push_back(text);
  std::vector<std::string_view> cut;
  for (const Pattern& pattern : patterns_) {
    cut.clear();
    // A piece is matched as if it were the whole text: look-around ends at its borders.
    for (const std::string_view piece : *pieces) {
      LC_RETURN_IF_ERROR(pattern.Split(piece, match.get(), context.get(), &cut));
    }
    pieces->swap(cut);
  }
  return absl::OkStatus();
}

}  // namespace layercake::model
