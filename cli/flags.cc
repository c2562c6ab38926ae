#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <exception>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cli/exit_code.h"
#include "proto/protocol_version.h"

namespace layercake::cli {
namespace {

constexpr char kConfigFlag[] = "--config";
constexpr char kConfigVariable[] = "LAYERCAKE_CONFIG";

absl::Status Refuse(const std::string& text, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ", wanted));
}

absl::Status ParseNumber(const std::string& text, double min, double max, double* target) {
  double value = 0;
  // Written so that NaN is refused too.
  if (!absl::SimpleAtod(text, &value) || !(value >= min && value <= max)) {
    return Refuse(text, absl::StrCat("a number from ", min, " to ", max));
  }
  *target = value;
  return absl::OkStatus();
}

absl::Status ParseInteger(const std::string& text, int min, int max, int* value) {
  if (!absl::SimpleAtoi(text, value) || *value < min || *value > max) {
    return Refuse(text, absl::StrCat("a whole number from ", min, " to ", max));
  }
  return absl::OkStatus();
}

}  // namespace

// --- FlagTable ---------------------------------------------------------------------------------

void FlagTable::Add(absl::string_view name, std::string value_name, absl::string_view help,
                    std::function<absl::Status(const std::string&)> set) {
  const std::string variable = VariableOfFlag(name);
  LC_CHECK(!IsInjectedByKubernetes(variable), "flag ", name, " would read ", variable);
  flags_.push_back({.name = std::string(name),
                    .variable = variable,
                    .value_name = std::move(value_name),
                    .on = false,
                    .help = std::string(help),
                    .set = std::move(set)});
}

void FlagTable::Switch(absl::string_view name, bool* target, absl::string_view help) {
  Add(name, "", help, [target](const std::string& text) -> absl::Status {
    LC_ASSIGN_OR_RETURN(*target, ParseOnOff(text));
    return absl::OkStatus();
  });
  flags_.back().on = *target;
}

void FlagTable::Text(absl::string_view name, std::string* target, absl::string_view help) {
  Add(name, "TEXT", help, [target](const std::string& text) {
    *target = text;
    return absl::OkStatus();
  });
}

void FlagTable::Choice(absl::string_view name, std::string* target,
                       std::vector<std::string> choices, absl::string_view help) {
  const std::string names = absl::StrJoin(choices, "|");
  Add(name, names, help, [target, names](const std::string& text) {
    for (absl::string_view choice : absl::StrSplit(names, '|')) {
      if (text != choice) continue;
      *target = text;
      return absl::OkStatus();
    }
    return Refuse(text, absl::StrCat("one of ", names));
  });
}

void FlagTable::List(absl::string_view name, std::vector<std::string>* target,
                     absl::string_view help) {
  Add(name, "A,B,...", help, [target](const std::string& text) {
    target->clear();
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      if (item.empty()) return Refuse(text, "a comma-separated list without empty items");
      target->emplace_back(item);
    }
    return absl::OkStatus();
  });
}

void FlagTable::IntegerList(absl::string_view name, std::vector<int>* target, int min, int max,
                            absl::string_view help) {
  Add(name, "N,N,...", help, [target, min, max](const std::string& text) {
    target->clear();
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      int value = 0;
      LC_RETURN_IF_ERROR(ParseInteger(std::string(item), min, max, &value));
      target->push_back(value);
    }
    return absl::OkStatus();
  });
}

void FlagTable::NumberList(absl::string_view name, std::vector<double>* target, double min,
                           double max, absl::string_view help) {
  Add(name, "X,X,...", help, [target, min, max](const std::string& text) {
    target->clear();
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      LC_RETURN_IF_ERROR(ParseNumber(std::string(item), min, max, &target->emplace_back()));
    }
    return absl::OkStatus();
  });
}

void FlagTable::Integer(absl::string_view name, int* target, int min, int max,
                        absl::string_view help) {
  Add(name, "N", help,
      [target, min, max](const std::string& text) { return ParseInteger(text, min, max, target); });
}

void FlagTable::OptionalInteger(absl::string_view name, std::optional<int>* target, int min,
                                int max, absl::string_view help) {
  Add(name, "N", help, [target, min, max](const std::string& text) {
    return ParseInteger(text, min, max, &target->emplace());
  });
}

void FlagTable::OptionalUnsigned(absl::string_view name, std::optional<uint64_t>* target,
                                 absl::string_view help) {
  Add(name, "N", help, [target](const std::string& text) {
    if (!absl::SimpleAtoi(text, &target->emplace())) {
      return Refuse(text, "a whole number from 0 to 18446744073709551615");
    }
    return absl::OkStatus();
  });
}

void FlagTable::Number(absl::string_view name, double* target, double min, double max,
                       absl::string_view help) {
  Add(name, "X", help,
      [target, min, max](const std::string& text) { return ParseNumber(text, min, max, target); });
}

void FlagTable::OptionalNumber(absl::string_view name, std::optional<float>* target, float min,
                               float max, absl::string_view help) {
  Add(name, "X", help, [target, min, max](const std::string& text) {
    float value = 0;
    // Written so that NaN is refused too.
    if (!absl::SimpleAtof(text, &value) || !(value >= min && value <= max)) {
      return Refuse(text, absl::StrCat("a number from ", min, " to ", max));
    }
    *target = value;
    return absl::OkStatus();
  });
}

void FlagTable::Duration(absl::string_view name, absl::Duration* target, absl::string_view help) {
  Add(name, "TIME", help, [target](const std::string& text) {
    double seconds = 0;
    absl::Duration value;
    if (absl::SimpleAtod(text, &seconds)) {
      value = absl::Seconds(seconds);
    } else if (!absl::ParseDuration(text, &value)) {
      return Refuse(text, "a duration such as 30s, 1.5m or a number of seconds");
    }
    if (value < absl::ZeroDuration()) return Refuse(text, "a duration of zero or more");
    *target = value;
    return absl::OkStatus();
  });
}

void FlagTable::Bytes(absl::string_view name, uint64_t* target, absl::string_view help) {
  Add(name, "SIZE", help, [target](const std::string& text) {
    constexpr absl::string_view kUnits = "KMGT";
    constexpr double kMost = 1ull << 62;
    absl::string_view number = text;
    double unit = 1;
    const size_t place = text.empty() ? absl::string_view::npos : kUnits.find(text.back());
    if (place != absl::string_view::npos) {
      unit = std::ldexp(1.0, 10 * (static_cast<int>(place) + 1));
      number.remove_suffix(1);
    }
    double value = 0;
    // Written so that a NaN is refused too.
    if (!absl::SimpleAtod(number, &value) || !(value >= 0 && value * unit <= kMost)) {
      return Refuse(text, "a size such as 512M, 4G or a number of bytes");
    }
    *target = static_cast<uint64_t>(value * unit);
    return absl::OkStatus();
  });
}

void FlagTable::ReadFromVariable(absl::string_view variable) {
  LC_CHECK(!flags_.empty() && !IsInjectedByKubernetes(variable), "variable ", variable);
  flags_.back().variable = std::string(variable);
}

void FlagTable::Positional(absl::string_view name, std::string* target, bool required,
                           absl::string_view help) {
  arguments_.push_back({.name = std::string(name),
                        .help = std::string(help),
                        .required = required,
                        .target = target});
}

// --- Program -----------------------------------------------------------------------------------

struct Program::Parser {
  CLI::App app;
  CLI::App* selected = nullptr;  // after parsing
  std::map<const CommandEntry*, CLI::App*> apps;
  std::map<const CommandEntry*, std::vector<std::string>> words;  // positional, in order

  CLI::App* Add(CommandEntry& command, const std::string& summary) {
    CLI::App* target = command.name.empty() ? &app : app.add_subcommand(command.name, summary);
    apps[&command] = target;
    for (const FlagTable::Flag& flag : command.table.flags_) {
      const std::string help = absl::StrCat(flag.help, " [", flag.variable, "]");
      if (flag.value_name.empty()) {
        const std::string off =
            flag.on ? absl::StrCat(",!--no-", absl::StripPrefix(flag.name, "--")) : std::string();
        target->add_flag(flag.name + off, help);
      } else {
        target->add_option(flag.name)->description(help)->type_name(flag.value_name);
      }
      target->get_option(flag.name)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    target->add_option(kConfigFlag)
        ->description(
            absl::StrCat("Read flags from an INI file: key = value [", kConfigVariable, "]"))
        ->type_name("FILE");
    for (const FlagTable::Argument& argument : command.table.arguments_) {
      CLI::Option* option = target->add_option(argument.name)->description(argument.help);
      if (argument.required) option->required();
    }
    return target;
  }

  // The text given on the command line; nullopt when the option is absent.
  std::optional<std::string> Given(const CommandEntry& command, const std::string& name) const {
    const CLI::Option* option = apps.at(&command)->get_option(name);
    if (option->count() == 0) return std::nullopt;
    return option->results().back();
  }
};

Program::Program(std::string name, std::string summary)
    : name_(std::move(name)), summary_(std::move(summary)) {}

Program::~Program() = default;

FlagTable& Program::Command(std::string name, std::string summary, std::function<int()> run) {
  commands_.push_back(
      {.name = std::move(name), .summary = std::move(summary), .run = std::move(run), .table = {}});
  return commands_.back().table;
}

FlagTable& Program::Main(std::function<int()> run) { return Command("", summary_, std::move(run)); }

int Program::Run(int argc, const char* const* argv, const Environment& environment,
                 std::ostream& out, std::ostream& err) {
  Parser parser;
  parser.app.name(name_);
  parser.app.description(summary_);
  parser.app.set_version_flag("--version", absl::StrCat(name_, " ", kSoftwareVersion));
  const std::string first = argc > 1 ? argv[1] : "";
  bool subcommands = false;
  bool first_is_one = false;
  for (CommandEntry& command : commands_) {
    parser.Add(command, command.summary);
    subcommands = subcommands || !command.name.empty();
    first_is_one = first_is_one || command.name == first;
  }
  if (subcommands) {
    parser.app.require_subcommand(1);
    if (!first.empty() && first[0] != '-' && !first_is_one) {
      err << name_ << ": there is no command '" << first << "'; see " << name_ << " --help\n";
      return kExitUsage;
    }
  }
  try {
    parser.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parser.app.exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& error) {
    err << name_ << ": " << error.what() << "\n";
    return kExitUsage;
  }
  for (CommandEntry& command : commands_) {
    if (!command.name.empty() && !parser.apps.at(&command)->parsed()) continue;
    const std::string config =
        parser.Given(command, kConfigFlag).value_or(environment.GetOr(kConfigVariable, ""));
    absl::Status status = ApplyFlags(command, parser, environment, config);
    if (status.ok()) status = ApplyArguments(command, parser);
    if (!status.ok()) {
      err << name_ << ": " << status.message() << "\n";
      return kExitUsage;
    }
    return command.run();
  }
  return kExitUsage;  // not reached: CLI11 wants a subcommand
}

std::vector<std::string> Program::Variables() const {
  std::vector<std::string> names = {kConfigVariable};
  for (const CommandEntry& command : commands_) {
    for (const FlagTable::Flag& flag : command.table.flags_) names.push_back(flag.variable);
  }
  return names;
}

absl::Status Program::ApplyFlags(CommandEntry& command, Parser& parser,
                                 const Environment& environment, const std::string& config_path) {
  std::vector<FileEntry> entries;
  if (!config_path.empty()) {
    LC_RETURN_IF_ERROR(ReadConfig(config_path, &entries));
    LC_RETURN_IF_ERROR(CheckConfigKeys(config_path, entries));
  }
  for (FlagTable::Flag& flag : command.table.flags_) {
    std::optional<std::string> value = parser.Given(command, flag.name);
    std::string source = flag.name;
    if (!value && (value = environment.Get(flag.variable))) source = flag.variable;
    if (!value) {
      // The command's own section wins over the lines before any section.
      for (const bool own_section : {false, true}) {
        for (const FileEntry& entry : entries) {
          if (absl::StrCat("--", entry.key) != flag.name) continue;
          if (entry.section != (own_section ? command.name : "")) continue;
          value = entry.value;
          source = absl::StrCat(config_path, ": ", entry.key);
        }
      }
    }
    if (!value) continue;
    const absl::Status set = flag.set(*value);
    if (!set.ok()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", set.message()));
  }
  return absl::OkStatus();
}

absl::Status Program::ApplyArguments(CommandEntry& command, Parser& parser) {
  for (const FlagTable::Argument& argument : command.table.arguments_) {
    if (auto text = parser.Given(command, argument.name)) *argument.target = *std::move(text);
  }
  return absl::OkStatus();
}

absl::Status Program::ReadConfig(const std::string& path, std::vector<FileEntry>* entries) const {
  std::ifstream file(path);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read the file ", path));
  std::vector<CLI::ConfigItem> items;
  try {
    CLI::ConfigBase format;
    // No list is ever split here: each flag splits its own.
    format.arrayDelimiter('\x01');
    items = format.from_config(file);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section
    entries->push_back({.section = absl::StrJoin(item.parents, "."),
                        .key = item.name,
                        .value = absl::StrJoin(item.inputs, ",")});
  }
  return absl::OkStatus();
}

absl::Status Program::CheckConfigKeys(const std::string& path,
                                      const std::vector<FileEntry>& entries) const {
  for (const FileEntry& entry : entries) {
    bool known = false;
    for (const CommandEntry& command : commands_) {
      if (!entry.section.empty() && entry.section != command.name) continue;
      for (const FlagTable::Flag& flag : command.table.flags_) {
        known = known || flag.name == absl::StrCat("--", entry.key);
      }
    }
    if (known) continue;
    const std::string where =
        entry.section.empty() ? "" : absl::StrCat(" in section [", entry.section, "]");
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": unknown key '", entry.key, "'", where,
                     "; keys are the names of flags without the dashes"));
  }
  return absl::OkStatus();
}

}  // namespace layercake::cli
