#include "tests/gpu/peer_death_answer.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace layercake::testing {

std::string FormatAnswer(const Answer& answer) {
  return absl::StrFormat("%d %.3f %s", answer.code, answer.milliseconds, answer.words);
}

Answer ParseAnswer(const std::optional<std::string>& line) {
  Answer answer;
  if (!line.has_value()) return answer;
  const std::vector<std::string> parts = absl::StrSplit(*line, absl::MaxSplits(' ', 2));
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &answer.code) ||
      !absl::SimpleAtod(parts[1], &answer.milliseconds)) {
    return Answer{};
  }
  answer.words = parts[2];
  answer.came = true;
  return answer;
}

std::string Describe(const Answer& answer) {
  if (!answer.came) return "no answer";
  if (answer.code == 0) return "ok";
  if (answer.code == kWrong) return absl::StrCat("wrong (", answer.words, ")");
  return absl::StrCat("error ", answer.code, " (", answer.words, ")");
}

std::string DescribeAll(const std::vector<std::pair<std::string, Answer>>& answers) {
  const auto ok = [](const Answer& answer) { return answer.came && answer.code == 0; };
  const bool all = std::all_of(answers.begin(), answers.end(),
                               [&](const auto& answer) { return ok(answer.second); });
  std::vector<std::string> words;
  for (const auto& [what, answer] : answers) {
    words.push_back(all          ? what
                    : ok(answer) ? absl::StrCat(what, " ok")
                                 : absl::StrCat(what, ": ", Describe(answer)));
  }
  return all ? absl::StrCat("all ok (", absl::StrJoin(words, ", "), ")")
             : absl::StrJoin(words, ", ");
}

}  // namespace layercake::testing
