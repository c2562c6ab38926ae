// `layercake inspect`: what a model file says, and whether it is whole.
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/model_path.h"
#include "model/gguf/model_files.h"
#include "model/inspect.h"

namespace layercake::cli {
namespace {

struct InspectFlags {
  std::string model;
  bool json = false;
};

int Inspect(const InspectFlags& flags, const Environment& environment) {
  const auto fail = [](const absl::Status& status) {
    std::cerr << "layercake inspect: " << status.message() << "\n";
    return kExitFailed;
  };
  const auto path = ResolveModelPath(flags.model, environment);
  if (!path.ok()) return fail(path.status());
  const auto files = model::ModelFiles::Open(*path);
  if (!files.ok()) return fail(files.status());
  std::cout << model::InspectModel(*files, {.json = flags.json}) << std::flush;
  const absl::Status checked = model::CheckModel(*files);
  return checked.ok() ? kExitOk : fail(checked);
}

}  // namespace

void AddInspectCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<InspectFlags>();
  FlagTable& table =
      program.Command("inspect", "Print and check a model file",
                      [flags, &environment] { return Inspect(*flags, environment); });
  table.Positional("MODEL", &flags->model, true,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]");
  table.Switch("--json", &flags->json, "Print JSON");
}

}  // namespace layercake::cli
