// The commands of `layercake`, each in a file of its own: it adds its flags to the program and runs
// when it is chosen. `environment` outlives the program.
// Thread rule: main's thread.
#pragma once

#include "cli/environment.h"
#include "cli/flags.h"

namespace layercake::cli {

void AddServeCommand(Program& program, const Environment& environment);
void AddRunCommand(Program& program, const Environment& environment);
void AddBenchCommand(Program& program, const Environment& environment);
void AddInspectCommand(Program& program, const Environment& environment);
void AddTokenizeCommand(Program& program, const Environment& environment);
void AddPlanCommand(Program& program, const Environment& environment);
void AddStatusCommand(Program& program, const Environment& environment);

}  // namespace layercake::cli
