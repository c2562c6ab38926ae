// `layercake run`: one answer, or a conversation, with a chain of its own or a running server.
#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "cli/chain_flags.h"
#include "cli/chain_session.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/exit_code.h"
#include "cli/logging.h"
#include "cli/server_flags.h"
#include "model/gguf/model_files.h"
#include "model/gguf/tokenizer_metadata.h"

namespace layercake::cli {
namespace {

struct RunFlags {
  std::string model;
  std::string prompt;
  ServerFlags server;
  ChainFlags chain;
  std::string system;
  bool raw = false;
  std::optional<float> temperature;
  std::optional<uint64_t> seed;
  std::optional<int> max_tokens;
};

int Fail(const absl::Status& status, int code) {
  std::cerr << "layercake run: " << status.message() << "\n";
  return code;
}

// Before anything starts: a model without a template cannot chat.
absl::Status CheckTemplate(const std::string& path) {
  LC_ASSIGN_OR_RETURN(const model::ModelFiles files, model::ModelFiles::Open(path));
  LC_ASSIGN_OR_RETURN(const model::ChatTemplates templates,
                      model::LoadChatTemplates(files.metadata()));
  if (!templates.default_template.empty() || !templates.named.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " has no chat template; --raw continues plain text instead"));
}

ConversationOptions MakeConversationOptions(const RunFlags& flags) {
  ConversationOptions options;
  options.system = flags.system;
  options.raw = flags.raw;
  options.max_tokens = flags.max_tokens;
  if (flags.temperature) options.sampling.set_temperature(*flags.temperature);
  if (flags.seed) options.sampling.set_seed(*flags.seed);
  return options;
}

// Where an interrupt finds the conversation, as long as there is one.
struct Current {
  absl::Mutex mutex;
  Conversation* conversation ABSL_GUARDED_BY(mutex) = nullptr;

  void Set(Conversation* now) {
    absl::MutexLock lock(&mutex);
    conversation = now;
  }
  // True when Ctrl-C was meant for the conversation.
  bool Interrupt() {
    absl::MutexLock lock(&mutex);
    if (conversation == nullptr) return false;
    if (!conversation->Interrupt()) {
      std::cerr << "\n/bye or Ctrl-D ends the conversation.\n>>> " << std::flush;
    }
    return true;
  }
};

// The work of RunOnChain.
int Converse(const ConversationOptions& options, const std::string& prompt, LineInput& input,
             InferenceClient& client, Current& current) {
  Conversation conversation(options, client, std::cout, std::cerr);
  absl::Status status = conversation.CheckModel();
  if (status.ok()) {
    current.Set(&conversation);
    status = prompt.empty() ? conversation.Talk(input, isatty(STDIN_FILENO) == 1)
                            : conversation.Ask(prompt);
    current.Set(nullptr);
  }
  if (status.ok()) return kExitOk;
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return Fail(status, kExitFailed);
}

int Run(RunFlags flags, const Environment& environment) {
  SetUpLogging("layercake", flags.chain.log_level, environment);
  ConversationOptions options = MakeConversationOptions(flags);
  if (!flags.server.server.empty()) {
    // One argument is the prompt: the model is the server's.
    if (flags.prompt.empty()) std::swap(flags.prompt, flags.model);
    options.model = flags.model;
  }
  int code = kExitOk;
  const auto session = MakeChainSession(flags.server, flags.chain, flags.model, environment, &code);
  if (!session.ok()) return Fail(session.status(), code);
  if (session->server.empty() && !flags.raw) {
    const absl::Status has_template = CheckTemplate(session->chain.coordinator.model_path);
    if (!has_template.ok()) return Fail(has_template, kExitFailed);
  }
  auto input = LineInput::Create(STDIN_FILENO);
  if (!input.ok()) return Fail(input.status(), kExitFailed);

  const bool interactive = flags.prompt.empty();
  Current current;
  return RunOnChain(*session, environment,
                    {.run =
                         [&](InferenceClient& client) {
                           return Converse(options, flags.prompt, **input, client, current);
                         },
                     .interrupt = [&] { return interactive && current.Interrupt(); },
                     .stop = [&] { (*input)->Stop(); }});
}

}  // namespace

void AddRunCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<RunFlags>();
  flags->chain.log_level = "warn";
  flags->chain.coordinator.server.clients.address = "127.0.0.1:0";
  flags->chain.coordinator.shutdown_grace = absl::ZeroDuration();
  FlagTable& table = program.Command("run", "Answer a prompt, or hold a conversation",
                                     [flags, &environment] { return Run(*flags, environment); });
  table.Positional("MODEL", &flags->model, false,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]; not with --server");
  table.Positional("PROMPT", &flags->prompt, false, "Without one: a conversation");
  AddServerFlags(table, &flags->server, "Ask this running server, host:port");
  table.Text("--system", &flags->system, "System message");
  table.Switch("--raw", &flags->raw, "Continue the text as it is, without the chat template");
  table.OptionalNumber("--temperature", &flags->temperature, 0, 100, "0: the likeliest token");
  table.OptionalUnsigned("--seed", &flags->seed, "Seed of the sampling");
  table.OptionalInteger("--max-tokens", &flags->max_tokens, 1, 1 << 24, "Longest answer");
  AddChainFlags(table, &flags->chain);
  AddOwnWorkerFlags(table, &flags->chain);
  AddLogFlag(table, &flags->chain.log_level);
}

}  // namespace layercake::cli
