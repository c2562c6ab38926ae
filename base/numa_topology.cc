#include "base/numa_topology.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace layercake::base {
namespace {

std::optional<std::string> ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Nothing where there is no such file or it holds something else.
std::optional<std::vector<int>> ReadList(const std::string& path) {
  const std::optional<std::string> line = ReadLine(path);
  if (!line.has_value()) return std::nullopt;
  absl::StatusOr<std::vector<int>> list = ParseCpuList(*line);
  if (!list.ok()) return std::nullopt;
  return *std::move(list);
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::vector<int> cpus;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return cpus;
  for (const absl::string_view range : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    const bool one = range.find('-') == absl::string_view::npos;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(one ? ends.first : ends.second, &last) || first < 0 || last < first ||
        last >= kMaxCpus) {
      return absl::InvalidArgumentError(absl::StrCat("\"", range, "\" in \"", text,
                                                     "\" is no range of numbers below ", kMaxCpus));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string FormatCpuList(absl::Span<const int> cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[first]);
    if (last > first) absl::StrAppend(&text, "-", cpus[last]);
    first = last + 1;
  }
  return text;
}

NumaFacts ReadNumaFacts(const std::string& sysfs, absl::string_view pci_bus_id) {
  NumaFacts facts;
  const std::optional<std::string> node = ReadLine(
      absl::StrCat(sysfs, "/bus/pci/devices/", absl::AsciiStrToLower(pci_bus_id), "/numa_node"));
  int number = -1;
  if (node.has_value() && absl::SimpleAtoi(*node, &number) && number >= 0) {
    facts.device_node = number;
  }
  const std::string folder = absl::StrCat(sysfs, "/devices/system/node/");
  for (const int id : ReadList(absl::StrCat(folder, "online")).value_or(std::vector<int>())) {
    std::optional<std::vector<int>> cpus = ReadList(absl::StrCat(folder, "node", id, "/cpulist"));
    if (cpus.has_value()) facts.nodes.push_back({.id = id, .cpus = *std::move(cpus)});
  }
  return facts;
}

NumaChoice ChooseNumaPlacement(absl::string_view device, const NumaFacts& facts,
                               absl::Span<const int> allowed) {
  const auto nothing = [&](absl::string_view why) {
    return NumaChoice{.placement = std::nullopt,
                      .reason = absl::StrCat(device, ": threads and memory where they are: ", why)};
  };
  if (!facts.device_node.has_value()) return nothing("the machine does not say its NUMA node");
  if (facts.nodes.size() < 2) return nothing("the machine has one NUMA node");
  const int id = *facts.device_node;
  const auto node = std::find_if(facts.nodes.begin(), facts.nodes.end(),
                                 [id](const NumaNode& n) { return n.id == id; });
  if (node == facts.nodes.end()) return nothing(absl::StrCat("its NUMA node ", id, " is unknown"));
  NumaPlacement placement = {.node = id, .cpus = {}};
  std::set_intersection(node->cpus.begin(), node->cpus.end(), allowed.begin(), allowed.end(),
                        std::back_inserter(placement.cpus));
  if (placement.cpus.empty()) {
    return nothing(
        absl::StrCat("it is on NUMA node ", id, ", none of whose CPUs this process may use"));
  }
  std::string reason = absl::StrCat(device, " is on NUMA node ", id, ": threads on CPUs ",
                                    FormatCpuList(placement.cpus));
  return {.placement = std::move(placement), .reason = std::move(reason)};
}

}  // namespace layercake::base
