// Arithmetic, comparison and slicing, with Python's meaning. Errors are InvalidArgument.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

absl::StatusOr<Value> ApplyBinary(Runtime& runtime, BinaryOperator op, const Value& left,
                                  const Value& right);
absl::StatusOr<Value> ApplyUnary(UnaryOperator op, const Value& operand);
absl::StatusOr<bool> ApplyComparison(Runtime& runtime, ComparisonOperator op, const Value& left,
                                     const Value& right);
// `item in container`.
absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item);
// object[start:stop:step]; missing parts are empty or none.
absl::StatusOr<Value> ApplySlice(Runtime& runtime, const Value& object, const Value& start,
                                 const Value& stop, const Value& step);
// HTML escapes of & < > ' " as Markup writes them.
MarkedString EscapeHtml(const MarkedString& text);
// Offset of `needle` in `text` from `offset` on, in linear time; npos when there is none.
size_t FindText(std::string_view text, std::string_view needle, size_t offset);

}  // namespace layercake::model::jinja
