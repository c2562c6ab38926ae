// Early return on error for absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define LC_CONCAT_INNER_(a, b) a##b
#define LC_CONCAT_(a, b) LC_CONCAT_INNER_(a, b)

// Returns from the calling function when `expr`, an absl::Status, is an error.
#define LC_RETURN_IF_ERROR(expr)        \
  do {                                  \
    ::absl::Status lc_status_ = (expr); \
    if (!lc_status_.ok()) [[unlikely]]  \
      return lc_status_;                \
  } while (false)

// Evaluates `expr`, an absl::StatusOr<T>; returns its error or assigns its value to `lhs`.
#define LC_ASSIGN_OR_RETURN(lhs, expr) \
  LC_ASSIGN_OR_RETURN_IMPL_(LC_CONCAT_(lc_status_or_, __LINE__), lhs, expr)
#define LC_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) [[unlikely]]                     \
    return std::move(tmp).status();               \
  lhs = *std::move(tmp)
