#include "model/tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

// Longest canonical decomposition of one character; Unicode's longest has 4 code points.
constexpr size_t kMaxDecomposition = 16;

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering: each run of characters of non-zero class, stably by class. utf8proc's own
// ordering is an insertion sort, quadratic in the length of a run of combining marks.
void OrderCombiningMarks(std::vector<utf8proc_int32_t>* code_points) {
  auto run = code_points->begin();
  while (run != code_points->end()) {
    if (CombiningClass(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, code_points->end(),
                                  [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    if (end - run > 1) {
      std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return CombiningClass(a) < CombiningClass(b);
      });
    }
    run = end;
  }
}

}  // namespace

bool IsTriviallyNfc(std::string_view text) {
  // U+0300, the first character with another normal form, begins with byte 0xCC.
  return std::all_of(text.begin(), text.end(),
                     [](char byte) { return static_cast<uint8_t>(byte) < 0xCC; });
}

absl::StatusOr<std::string> NormalizeNfc(std::string_view text) {
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot normalise text: invalid UTF-8 at byte ", at));
    }
    at += step.length;
    utf8proc_int32_t decomposed[kMaxDecomposition];
    int boundary_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(step.code_point), decomposed, kMaxDecomposition,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary_class);
    if (count < 0 || static_cast<size_t>(count) > kMaxDecomposition) {
      return absl::InternalError(
          absl::StrCat("utf8proc could not decompose U+", absl::Hex(step.code_point)));
    }
    code_points.insert(code_points.end(), decomposed, decomposed + count);
  }
  OrderCombiningMarks(&code_points);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0 || static_cast<size_t>(length) > code_points.size()) {
    return absl::InternalError(absl::StrCat("utf8proc could not compose: ", length));
  }
  code_points.resize(static_cast<size_t>(length));
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t code_point : code_points) {
    AppendUtf8(static_cast<uint32_t>(code_point), &out);
  }
  return out;
}

}  // namespace layercake::model
