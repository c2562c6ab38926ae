// Flags, their variables and the configuration file, in one table: the value on the command line
// wins over the variable, the variable over the file, the file over the default.
//
// CLI11 splits the command line, prints help and reads the file; it stays inside flags.cc (its one
// header costs seconds to compile). Thread rule: used in main's thread, before anything starts.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/environment.h"

namespace layercake::cli {

// The flags and positional arguments of one command. Targets must outlive the program's Run; what
// they hold when added is the default.
class FlagTable {
 public:
  // `name` is "--max-tokens". A switch may be given as --stream, --stream=false, and by variable or
  // file as any of ParseOnOff's words. One that is on by default also as --no-stream.
  void Switch(absl::string_view name, bool* target, absl::string_view help);
  void Text(absl::string_view name, std::string* target, absl::string_view help);
  void Choice(absl::string_view name, std::string* target, std::vector<std::string> choices,
              absl::string_view help);
  // Comma-separated; empty items are refused.
  void List(absl::string_view name, std::vector<std::string>* target, absl::string_view help);
  void IntegerList(absl::string_view name, std::vector<int>* target, int min, int max,
                   absl::string_view help);
  void NumberList(absl::string_view name, std::vector<double>* target, double min, double max,
                  absl::string_view help);
  void Integer(absl::string_view name, int* target, int min, int max, absl::string_view help);
  void OptionalInteger(absl::string_view name, std::optional<int>* target, int min, int max,
                       absl::string_view help);
  void OptionalUnsigned(absl::string_view name, std::optional<uint64_t>* target,
                        absl::string_view help);
  void Number(absl::string_view name, double* target, double min, double max,
              absl::string_view help);
  void OptionalNumber(absl::string_view name, std::optional<float>* target, float min, float max,
                      absl::string_view help);
  // "30s", "1.5m", or a number of seconds; not negative.
  void Duration(absl::string_view name, absl::Duration* target, absl::string_view help);
  // "512M", "4G", "1.5T" (powers of 1024), or a number of bytes.
  void Bytes(absl::string_view name, uint64_t* target, absl::string_view help);
  // Another variable than the name's own, for the flag added last.
  void ReadFromVariable(absl::string_view variable);

  // In the order added; a required one may not follow an optional one.
  void Positional(absl::string_view name, std::string* target, bool required,
                  absl::string_view help);

 private:
  friend class Program;
  struct Flag {
    std::string name;  // with dashes
    std::string variable;
    std::string value_name;  // "TEXT"; empty for a switch
    bool on = false;         // a switch that is on by default
    std::string help;
    std::function<absl::Status(const std::string&)> set;
  };
  struct Argument {
    std::string name;
    std::string help;
    bool required = false;
    std::string* target = nullptr;
  };
  void Add(absl::string_view name, std::string value_name, absl::string_view help,
           std::function<absl::Status(const std::string&)> set);

  std::vector<Flag> flags_;
  std::vector<Argument> arguments_;
};

class Program {
 public:
  Program(std::string name, std::string summary);
  ~Program();

  // A subcommand; `run` gives the exit code. The reference stays valid.
  FlagTable& Command(std::string name, std::string summary, std::function<int()> run);
  // The program itself, when it has no subcommands.
  FlagTable& Main(std::function<int()> run);

  // Parses and runs. Help and version go to `out`, errors to `err`; exit code 2 for what the user
  // got wrong, with the flag, the variable or the file and line's key named.
  int Run(int argc, const char* const* argv, const Environment& environment, std::ostream& out,
          std::ostream& err);

  // Every variable that some flag reads.
  std::vector<std::string> Variables() const;

 private:
  struct CommandEntry {
    std::string name;  // empty: the program itself
    std::string summary;
    std::function<int()> run;
    FlagTable table;
  };
  struct Parser;  // holds CLI11's objects
  struct FileEntry {
    std::string section;
    std::string key;
    std::string value;
  };

  absl::Status ReadConfig(const std::string& path, std::vector<FileEntry>* entries) const;
  absl::Status CheckConfigKeys(const std::string& path,
                               const std::vector<FileEntry>& entries) const;
  absl::Status ApplyFlags(CommandEntry& command, Parser& parser, const Environment& environment,
                          const std::string& config_path);
  absl::Status ApplyArguments(CommandEntry& command, Parser& parser);

  const std::string name_;
  const std::string summary_;
  std::deque<CommandEntry> commands_;  // addresses stay
};

}  // namespace layercake::cli
