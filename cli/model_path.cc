#include "cli/model_path.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace layercake::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kHubPrefix = "hf:";
// A snapshot or folder with more entries than this is not one that holds a model.
constexpr size_t kMaxEntries = 10'000;

// "name-of-00003" for "name-00002-of-00003.gguf"; nullopt for a file of its own.
std::optional<std::string> SplitSetOf(absl::string_view path) {
  constexpr size_t kTail = sizeof("-00001-of-00003") - 1;
  if (!absl::ConsumeSuffix(&path, ".gguf") || path.size() <= kTail) return std::nullopt;
  const absl::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  for (const absl::string_view digits : {tail.substr(1, 5), tail.substr(10, 5)}) {
    if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) return std::nullopt;
  }
  return absl::StrCat(path.substr(0, path.size() - kTail), tail.substr(6));
}

std::string NameOf(const std::string& path) { return fs::path(path).filename().string(); }

// Regular files (or links to them: the hub's cache is made of links).
template <class Iterator>
std::vector<std::string> FilesUnder(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (Iterator it(folder, error), end; !error && it != end && files.size() < kMaxEntries;
       it.increment(error)) {
    std::error_code ignored;
    if (fs::is_regular_file(it->path(), ignored)) files.push_back(it->path().string());
  }
  return files;
}

std::string ListOf(const std::vector<std::string>& lines) {
  return absl::StrCat("\n  ", absl::StrJoin(lines, "\n  "));
}

absl::StatusOr<std::string> TheModelInFolder(const std::string& folder) {
  const std::vector<std::string> models = ModelsAmong(FilesUnder<fs::directory_iterator>(folder));
  if (models.size() == 1) return models.front();
  if (models.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the folder ", folder, " holds no GGUF model (a file NAME.gguf)"));
  }
  return absl::InvalidArgumentError(absl::StrCat("the folder ", folder, " holds ", models.size(),
                                                 " models; name one of them:", ListOf(models)));
}

// --- The hub's cache: models--user--repo/{refs/main,snapshots/COMMIT/...} ------------------------

struct HubName {
  std::string repo;   // "user/repo"
  std::string quant;  // may be empty
};

absl::StatusOr<HubName> ParseHubName(absl::string_view model) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::StripPrefix(model, kHubPrefix), absl::MaxSplits(':', 1));
  const std::vector<std::string> names = absl::StrSplit(parts[0], '/');
  bool good = names.size() == 2 && (parts.size() == 1 || !parts[1].empty());
  for (const std::string& name : names) {
    // Names become parts of a path.
    good = good && !name.empty() && name[0] != '.' &&
           std::all_of(name.begin(), name.end(), [](char c) {
             return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                    c == '.';
           });
  }
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat("'", model,
                                                   "' is not of the form hf:user/repo or "
                                                   "hf:user/repo:quant, as in "
                                                   "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m"));
  }
  return HubName{.repo = parts[0], .quant = parts.size() == 2 ? parts[1] : ""};
}

std::string HowToDownload(const HubName& name) {
  const std::string pattern =
      name.quant.empty() ? "*.gguf" : absl::StrCat("*", name.quant, "*.gguf");
  return absl::StrCat("\nTo get it: huggingface-cli download ", name.repo, " --include '", pattern,
                      "'");
}

// The snapshot that refs/main names comes first and is searched alone when it is there: others are
// older downloads.
std::vector<std::string> SnapshotsToSearch(const std::string& repo_folder) {
  std::ifstream ref(repo_folder + "/refs/main");
  std::string commit;
  std::error_code error;
  if (ref && std::getline(ref, commit)) {
    const std::string snapshot =
        absl::StrCat(repo_folder, "/snapshots/", absl::StripAsciiWhitespace(commit));
    if (!absl::StrContains(commit, '/') && fs::is_directory(snapshot, error)) return {snapshot};
  }
  std::vector<std::string> snapshots;
  for (fs::directory_iterator it(repo_folder + "/snapshots", error), end; !error && it != end;
       it.increment(error)) {
    snapshots.push_back(it->path().string());
  }
  std::sort(snapshots.begin(), snapshots.end());
  return snapshots;
}

absl::StatusOr<std::string> ResolveHubName(absl::string_view model,
                                           const Environment& environment) {
  LC_ASSIGN_OR_RETURN(const HubName name, ParseHubName(model));
  const std::string hub = HuggingFaceHubFolder(environment);
  if (hub.empty()) {
    return absl::NotFoundError(absl::StrCat("cannot look for ", model,
                                            ": neither HF_HOME nor HOME says where the Hugging "
                                            "Face cache is"));
  }
  const std::string folder =
      absl::StrCat(hub, "/models--", absl::StrReplaceAll(name.repo, {{"/", "--"}}));
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat(model, " is not in the cache: looked for ", folder, HowToDownload(name)));
  }
  std::vector<std::string> models;
  for (const std::string& snapshot : SnapshotsToSearch(folder)) {
    for (std::string& path : ModelsAmong(FilesUnder<fs::recursive_directory_iterator>(snapshot))) {
      models.push_back(std::move(path));
    }
  }
  std::vector<std::string> fitting;
  for (const std::string& path : models) {
    if (name.quant.empty() || NameHasQuant(NameOf(path), name.quant)) fitting.push_back(path);
  }
  if (fitting.size() == 1) return fitting.front();
  if (!fitting.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        model, " fits ", fitting.size(), " models in the cache; add the quantisation (hf:",
        name.repo, ":QUANT) or give one of these paths:", ListOf(fitting)));
  }
  if (models.empty()) {
    return absl::NotFoundError(absl::StrCat("no GGUF model of ", name.repo, " lies under ", folder,
                                            "/snapshots", HowToDownload(name)));
  }
  return absl::NotFoundError(absl::StrCat("no model of ", name.repo, " in the cache has ",
                                          name.quant, " in its name; there are:", ListOf(models),
                                          HowToDownload(name)));
}

}  // namespace

std::vector<std::string> ModelsAmong(std::vector<std::string> paths) {
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> models;
  std::set<std::string> sets;
  for (std::string& path : paths) {
    if (!absl::EndsWith(path, ".gguf")) continue;
    if (absl::StrContains(absl::AsciiStrToLower(NameOf(path)), "mmproj")) continue;
    const auto set = SplitSetOf(path);
    if (set && !sets.insert(*set).second) continue;
    models.push_back(std::move(path));
  }
  return models;
}

bool NameHasQuant(absl::string_view file_name, absl::string_view quant) {
  const std::string name = absl::AsciiStrToLower(file_name);
  const std::string wanted = absl::AsciiStrToLower(quant);
  const auto borders = [&name](size_t at) {
    return at >= name.size() ||
           (!absl::ascii_isalnum(static_cast<unsigned char>(name[at])) && name[at] != '_');
  };
  for (size_t at = name.find(wanted); at != std::string::npos; at = name.find(wanted, at + 1)) {
    if ((at == 0 || borders(at - 1)) && borders(at + wanted.size())) return true;
  }
  return false;
}

absl::StatusOr<std::string> ResolveModelPath(absl::string_view model,
                                             const Environment& environment) {
  if (absl::StartsWith(model, kHubPrefix)) return ResolveHubName(model, environment);
  const std::string path(model);
  std::error_code error;
  if (fs::is_directory(path, error)) return TheModelInFolder(path);
  if (fs::exists(path, error)) return path;
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  std::string hint;
  if (parts.size() == 2 && !parts[0].empty() && parts[0][0] != '.' &&
      !absl::EndsWith(path, ".gguf")) {
    hint = absl::StrCat("; if it is a name on the Hugging Face hub, write hf:", path);
  }
  return absl::NotFoundError(absl::StrCat("there is no file or folder ", path, hint));
}

}  // namespace layercake::cli
