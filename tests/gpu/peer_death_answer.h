// What one process of peer_death_benchmark answers another: the line on the pipe, and how it is
// told to people. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace layercake::testing {

struct Answer {
  bool came = false;        // else: not in time, or its process had ended
  int code = 0;             // a cudaError_t, or kWrong
  double milliseconds = 0;  // what it took
  std::string words;        // a handle, a number, or the error's name
};
// No error, and not what was expected.
inline constexpr int kWrong = -1;

std::string FormatAnswer(const Answer& answer);
// An answer that did not come where there is no line, or none of these.
Answer ParseAnswer(const std::optional<std::string>& line);

// "ok", "error 719 (unspecified launch failure)", "wrong (...)", "no answer".
std::string Describe(const Answer& answer);

// "all ok (copy, stores)", or each of them: "copy ok, stores: error 719 (...)".
std::string DescribeAll(const std::vector<std::pair<std::string, Answer>>& answers);

}  // namespace layercake::testing
