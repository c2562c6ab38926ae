#include <iostream>

#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace layercake::cli;  // NOLINT: this file is a list of that namespace's commands
  const Environment environment = Environment::FromProcess();
  Program program("layercake", "Serves a language model cut by layers over several workers.");
  AddServeCommand(program, environment);
  AddRunCommand(program, environment);
  AddBenchCommand(program, environment);
  AddInspectCommand(program, environment);
  AddTokenizeCommand(program, environment);
  AddPlanCommand(program, environment);
  AddStatusCommand(program, environment);
  return program.Run(argc, argv, environment, std::cout, std::cerr);
}
