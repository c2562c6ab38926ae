// EXPECT_THAT(status, IsError(code, {"words", "in", "the message"})) for Status and StatusOr.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"

namespace layercake::model::testing {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& status) {
  return status.status();
}

MATCHER_P2(IsError, code, words, "") {
  const absl::Status& status = ToStatus(arg);
  *result_listener << status.ToString();
  if (status.code() != code) return false;
  for (const std::string& word : std::vector<std::string>(words)) {
    if (!absl::StrContains(status.message(), word)) {
      *result_listener << "\nlacks \"" << word << "\"";
      return false;
    }
  }
  return true;
}

using Words = std::vector<std::string>;

}  // namespace layercake::model::testing

#define ASSERT_OK(expr)                                                               \
  do {                                                                                \
    const absl::Status lc_test_status_ = ::layercake::model::testing::ToStatus(expr); \
    ASSERT_TRUE(lc_test_status_.ok()) << lc_test_status_;                             \
  } while (false)
