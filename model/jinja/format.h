// Python's three ways to format text, as far as chat templates use them. Inserted text keeps its
// origin.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

// `format % values`: %s %r %d %i %f %e %g %x %X %o %c with flags, width and precision, and
// %(name)s.
absl::StatusOr<Value> PercentFormat(Runtime& runtime, const MarkedString& format,
                                    const Value& values);

// `format.format(...)`: {} {0} {name} {0.key} {name[key]}, !s and !r, and the usual format specs.
absl::StatusOr<Value> BraceFormat(Runtime& runtime, const MarkedString& format,
                                  const Arguments& arguments);

// `time.strftime(format)` for a naive local time, as Python's datetime prints it.
absl::StatusOr<std::string> FormatLocalTime(std::string_view format, absl::Time time,
                                            absl::TimeZone timezone);

}  // namespace layercake::model::jinja
