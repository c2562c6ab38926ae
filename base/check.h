// For programmer errors only: a broken promise inside the process, where going on would answer
// wrong. Never for input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace layercake::base {

[[noreturn]] inline void FailCheck(const char* file, int line, const char* condition,
                                   const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace layercake::base

// LC_CHECK(condition, values for the message...)
#define LC_CHECK(condition, ...)                                                                 \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::layercake::base::FailCheck(__FILE__, __LINE__, #condition, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)
