// `layercake tokenize`: the ids of a text, as the model would see them.
#include <iostream>
#include <iterator>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/model_path.h"
#include "model/gguf/model_files.h"
#include "model/gguf/tokenizer_metadata.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::string input = "-";
  bool ids = false;
  bool no_bos = false;
  bool special = false;
};

absl::Status PrintTokens(const TokenizeFlags& flags, const Environment& environment) {
  LC_ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(flags.model, environment));
  LC_ASSIGN_OR_RETURN(const model::ModelFiles files, model::ModelFiles::Open(path));
  LC_ASSIGN_OR_RETURN(model::TokenizerSpec spec, model::LoadTokenizerSpec(files.metadata()));
  LC_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::Create(std::move(spec)));
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  LC_ASSIGN_OR_RETURN(
      const std::vector<model::TokenId> ids,
      tokenizer->Encode(text, {.add_special = !flags.no_bos, .parse_special = flags.special}));
  if (flags.ids) {
    std::cout << absl::StrJoin(ids, " ") << "\n";
    return absl::OkStatus();
  }
  for (const model::TokenId id : ids) {
    LC_ASSIGN_OR_RETURN(const std::string_view piece,
                        tokenizer->TokenToPiece(id, /*show_control=*/true));
    std::cout << id << "\t\"" << absl::Utf8SafeCEscape({piece.data(), piece.size()}) << "\"\n";
  }
  return absl::OkStatus();
}

int Tokenize(const TokenizeFlags& flags, const Environment& environment) {
  if (flags.input != "-") {
    std::cerr << "layercake tokenize: the text comes from standard input; write '-' for it, not '"
              << flags.input << "'\n";
    return kExitUsage;
  }
  const absl::Status status = PrintTokens(flags, environment);
  if (status.ok()) return kExitOk;
  std::cerr << "layercake tokenize: " << status.message() << "\n";
  return kExitFailed;
}

}  // namespace

void AddTokenizeCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<TokenizeFlags>();
  FlagTable& table =
      program.Command("tokenize", "Print the tokens of a text from standard input",
                      [flags, &environment] { return Tokenize(*flags, environment); });
  table.Positional("MODEL", &flags->model, true,
                   "A GGUF file (vocabulary alone is enough), a folder, or hf:user/repo[:quant]");
  table.Positional("INPUT", &flags->input, false, "'-': standard input");
  table.Switch("--ids", &flags->ids, "Print the ids alone, on one line");
  table.Switch("--no-bos", &flags->no_bos, "Add no token at the beginning or the end");
  table.Switch("--special", &flags->special, "Read special tokens in the text as such");
}

}  // namespace layercake::cli
