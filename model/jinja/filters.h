// Table entries of filters, shared by the two files that define them.
#pragma once

#include <string_view>

#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

struct NamedFilter {
  std::string_view name;
  Native native;
};

// A filter that takes nothing beside the value.
template <Native kFilter>
absl::StatusOr<Value> PlainFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const absl::StatusOr<Bound> none = Bind("the filter", arguments, {});
  return none.ok() ? kFilter(runtime, self, arguments) : none.status();
}

// A filter that works on sequences and mappings, or null.
Native FindSequenceFilter(std::string_view name);

}  // namespace layercake::model::jinja
