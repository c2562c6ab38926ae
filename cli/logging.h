// Where log lines go: standard error, one line each, colours only where they are wanted.
// Thread rule: main's thread, before others start.
#pragma once

#include <string>

#include "cli/environment.h"
#include "cli/flags.h"

namespace layercake::cli {

// --log-level.
void AddLogFlag(FlagTable& table, std::string* level);

// `level` is one of AddLogFlag's choices. `program` begins every line.
void SetUpLogging(const std::string& program, const std::string& level,
                  const Environment& environment);

}  // namespace layercake::cli
