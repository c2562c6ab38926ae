// What CUDA does when a process dies whose device memory another one has mapped, or stops, or runs
// into an error; and how soon its memory is free again. One line for each event.
//
//   peer_death_benchmark [EXPORTER IMPORTER]      indices of devices, default 0 1; "0 0" works too
//
// Every process, and every kernel, ends by itself; the whole within 40 s.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/peer_death_actor.h"
#include "tests/gpu/peer_death_device.h"
#include "tests/gpu/peer_death_players.h"

namespace layercake::testing {
namespace {

constexpr size_t kGiB = size_t{1} << 30;
constexpr absl::Duration kNoNewRow = absl::Seconds(32);
constexpr absl::Duration kEndOfAll = absl::Seconds(40);
// Until what was launched runs.
constexpr absl::Duration kUnderWay = absl::Milliseconds(100);

struct Setting {
  int exporter = 0;
  int importer = 1;
  const base::Clock& clock;
};

bool Ok(const Answer& answer) { return answer.came && answer.code == 0; }

// What a survivor can still do with a mapping, which it closes.
std::string Survives(Player& importer) {
  return absl::StrCat("the importer's calls: ",
                      DescribeAll({{"copy", importer.Ask("copy")},
                                   {"stores", importer.Ask("store 5")},
                                   {"reading them back", importer.Ask("read 5")},
                                   {"own memory and kernels", importer.Ask("own")},
                                   {"close", importer.Ask("close")},
                                   {"own again", importer.Ask("own")}}));
}

std::string ExporterKilled(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB / 4, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const std::string gone = pair.exporter.Kill();
  return absl::StrCat(gone, "; ", Survives(pair.importer));
}

std::string ExporterKilledInCopies(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer begun = pair.importer.Ask("queue 4000 1 9");
  if (!Ok(begun)) return absl::StrCat("copies: ", Describe(begun));
  const base::Instant began = setting.clock.Now();
  PauseFor(kUnderWay, setting.clock);
  const std::string gone = pair.exporter.Kill();
  const absl::Duration killed = setting.clock.Now() - began;
  const Answer queued = pair.importer.Next();
  const Answer done = pair.importer.Ask("sync");
  const absl::Duration all = setting.clock.Now() - began;
  return absl::StrCat(gone, ", ", Seconds(killed), " into ", Seconds(all), " of 4,000 copies (",
                      begun.words, "): ", DescribeAll({{"queueing", queued}, {"copies", done}}),
                      "; ", Survives(pair.importer));
}

std::string ExporterKilledInStores(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB / 4, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer begun = pair.importer.Ask("storefor 0.6");
  if (!Ok(begun)) return absl::StrCat("stores: ", Describe(begun));
  PauseFor(kUnderWay, setting.clock);
  const std::string gone = pair.exporter.Kill();
  const Answer done = pair.importer.Next();
  return absl::StrCat(gone, "; stores for 0.6 s: ", Describe(done), "; ", Survives(pair.importer));
}

std::string ExporterTraps(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB / 4, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer trap = pair.exporter.Ask("trap");
  const Answer sticky = pair.exporter.Ask("own");
  return absl::StrCat("exporter: ", Describe(trap), ", then ", Describe(sticky), "; ",
                      Survives(pair.importer));
}

std::string ExporterFrees(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const auto room = [&] {
    double bytes = 0;
    const Answer answer = pair.exporter.Ask("room");
    return Ok(answer) && absl::SimpleAtod(answer.words, &bytes) ? bytes / kGiB : -1;
  };
  const double before = room();
  const Answer freed = pair.exporter.Ask("free");
  const double after = room();
  const std::string seen = Survives(pair.importer);
  return absl::StrFormat("free of 1 GiB: %s; %s; GiB free: %.2f, after free %.2f, after close %.2f",
                         Describe(freed), seen, before, after, room());
}

std::string SenderStopped(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer begun = pair.importer.Ask("queue 900 1.5 42");
  if (!Ok(begun)) return absl::StrCat("copies: ", Describe(begun));
  const base::Instant began = setting.clock.Now();
  const Answer queued = pair.importer.Next();
  pair.importer.Stop();
  const absl::Duration stopped = setting.clock.Now() - began;
  const Answer before = pair.exporter.Ask("look 42");
  const Answer last = pair.exporter.Ask("await 42 4");
  const absl::Duration seen = setting.clock.Now() - began;
  pair.importer.Continue();
  return absl::StrCat("900 copies (", begun.words, ") queued: ", Describe(queued), ", stopped at ",
                      Seconds(stopped), Ok(before) ? ", too late" : ", under way", "; the last ",
                      Ok(last) ? absl::StrCat("arrived at ", Seconds(seen))
                               : absl::StrCat("did not arrive: ", Describe(last)),
                      "; continued: ", Describe(pair.importer.Ask("sync")));
}

std::string ImporterKilledInCopies(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer begun = pair.importer.Ask("queue 4000 1 9");
  if (!Ok(begun)) return absl::StrCat("copies: ", Describe(begun));
  PauseFor(kUnderWay, setting.clock);
  const std::string gone = pair.importer.Kill();
  return absl::StrCat(gone, "; the exporter's calls: ",
                      DescribeAll({{"reading the block", pair.exporter.Ask("look 1")},
                                   {"own memory and kernels", pair.exporter.Ask("own")},
                                   {"free", pair.exporter.Ask("free")},
                                   {"own again", pair.exporter.Ask("own")}}));
}

std::string KernelSpins(const Setting& setting) {
  Pair pair(setting.exporter, setting.importer, kGiB / 4, setting.clock);
  if (!pair.failure.empty()) return pair.failure;
  const Answer calls = pair.importer.Ask("calls", absl::Seconds(12));
  return Ok(calls) ? calls.words : Describe(calls);
}

struct Killed {
  bool mapped = false;  // by an importer that lives on
  bool spins = false;   // a kernel of its own
};

// How soon a process that starts when another is killed can have the memory of that one. Free
// memory is what a third process on the device sees.
std::string MemoryBack(const Setting& setting, const Killed& how) {
  Player observer(setting.exporter, setting.clock);
  const Answer room = observer.Ask("room");
  double free = 0;
  if (!Ok(room) || !absl::SimpleAtod(room.words, &free)) return Describe(room);
  // More than contexts take, so that "free again" means this block.
  const size_t bytes = std::min(10 * kGiB, static_cast<size_t>(free / 4)) / kGiB * kGiB;
  if (bytes < 4 * kGiB) return "too little memory is free";
  const std::string wanted = absl::StrCat(static_cast<size_t>(free) - bytes / 2);
  Player exporter(setting.exporter, setting.clock);
  Player importer(setting.importer, setting.clock);
  const Answer handle = exporter.Ask(absl::StrCat("allocate ", bytes));
  if (!Ok(handle)) return absl::StrCat("the block: ", Describe(handle));
  const Answer mapped =
      how.mapped ? importer.Ask(absl::StrCat("map ", handle.words, " ", bytes)) : importer.Ready();
  if (!Ok(mapped)) return absl::StrCat("the importer: ", Describe(mapped));
  if (how.spins && !Ok(exporter.Ask("spin 4"))) return "the kernel could not be launched";
  PauseFor(kUnderWay, setting.clock);

  const base::Instant killed = setting.clock.Now();
  const auto since = [&] { return Seconds(setting.clock.Now() - killed); };
  const std::string gone = exporter.Kill();
  Player newcomer(setting.exporter, setting.clock);
  const std::string limit = how.mapped ? " 0.4" : " 3";
  std::string seen = absl::StrCat(gone, "; ", bytes / kGiB, " GiB ");
  const Answer back = observer.Ask(absl::StrCat("awaitroom ", wanted, limit));
  absl::StrAppend(&seen, Ok(back) ? absl::StrCat("free at ", since()) : "not free");
  const Answer start = newcomer.Ready();
  const Answer taken = newcomer.Ask(absl::StrCat("take ", wanted, limit));
  absl::StrAppend(&seen, ", a new process ",
                  Ok(taken) ? absl::StrCat("has them at ", since()) : "cannot have them",
                  absl::StrFormat(" (its start took %.2f s)", start.milliseconds / 1e3));
  if (!how.mapped) return seen;
  absl::StrAppend(&seen, "; at ", since(),
                  " the importer closes: ", Describe(importer.Ask("close")));
  const Answer closed = observer.Ask(absl::StrCat("awaitroom ", wanted, " 3"));
  const Answer again = newcomer.Ask(absl::StrCat("take ", wanted, " 3"));
  return absl::StrCat(seen, ", free ", Ok(closed) ? "after " : "not within ",
                      absl::StrFormat("%.1f ms", closed.milliseconds),
                      Ok(again) ? ", and the new process has them" : ", and not for the new one");
}

std::string PinnedMemoryBack(const Setting& setting, bool spins) {
  Player process(setting.exporter, setting.clock);
  const Answer pinned = process.Ask(absl::StrCat("pin ", kGiB));
  if (!Ok(pinned)) return absl::StrCat("pinning: ", Describe(pinned));
  if (spins && !Ok(process.Ask("spin 4"))) return "the kernel could not be launched";
  PauseFor(kUnderWay, setting.clock);
  return absl::StrCat(process.Kill(),
                      absl::StrFormat(" (pinning took %.2f s)", pinned.milliseconds / 1e3));
}

struct Event {
  const char* name;
  std::function<std::string(const Setting&)> play;
};

std::vector<Event> Events() {
  return {
      {"exporter killed", ExporterKilled},
      {"exporter killed, copies in flight", ExporterKilledInCopies},
      {"exporter killed, stores in flight", ExporterKilledInStores},
      {"exporter runs into a trap", ExporterTraps},
      {"exporter frees what is mapped", ExporterFrees},
      {"sender stopped, copies queued", SenderStopped},
      {"importer killed, copies in flight", ImporterKilledInCopies},
      {"a kernel spins for 0.6 s beside each call", KernelSpins},
      {"killed, 10 GiB of device memory", [](const Setting& s) { return MemoryBack(s, {}); }},
      {"the same, a kernel spins",
       [](const Setting& s) { return MemoryBack(s, {.mapped = false, .spins = true}); }},
      {"the same, an importer has it mapped",
       [](const Setting& s) { return MemoryBack(s, {.mapped = true, .spins = false}); }},
      {"the same, mapped, and a kernel spins",
       [](const Setting& s) { return MemoryBack(s, {.mapped = true, .spins = true}); }},
      {"killed, 1 GiB of pinned memory",
       [](const Setting& s) { return PinnedMemoryBack(s, false); }},
      {"the same, and a kernel spins", [](const Setting& s) { return PinnedMemoryBack(s, true); }},
  };
}

int Main(int exporter, int importer) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was seen is printed, whatever ends this
  const absl::StatusOr<int> devices = CountCudaDevices();
  if (!devices.ok()) {
    std::printf("%s\n", devices.status().ToString().c_str());
    return 1;
  }
  if (std::max(exporter, importer) >= *devices) {
    std::printf("devices %d and %d are asked for, and there are %d: \"0 0\" puts both on one\n",
                exporter, importer, *devices);
    return 1;
  }
  EndWithParent(kEndOfAll);
  const base::SystemClock clock;
  const base::Instant began = clock.Now();
  std::printf("exporter on device %d, importer on device %d\n", exporter, importer);
  for (const Event& event : Events()) {
    const bool time_left = clock.Now() - began < kNoNewRow;
    const std::string seen =
        time_left ? event.play({exporter, importer, clock}) : "left out, no time";
    std::printf("%-42s %s\n", event.name, seen.c_str());
  }
  std::printf("%s in all\n", Seconds(clock.Now() - began).c_str());
  return 0;
}

}  // namespace
}  // namespace layercake::testing

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  int exporter = 0;
  int importer = 1;
  if (words.size() == 2 && words[0] == "--actor" && absl::SimpleAtoi(words[1], &exporter)) {
    return layercake::testing::RunPeerDeathActor(exporter);
  }
  const bool right =
      words.empty() || (words.size() == 2 && absl::SimpleAtoi(words[0], &exporter) &&
                        absl::SimpleAtoi(words[1], &importer) && std::min(exporter, importer) >= 0);
  if (!right) {
    std::fprintf(stderr, "usage: peer_death_benchmark [EXPORTER IMPORTER]\n");
    return 2;
  }
  return layercake::testing::Main(exporter, importer);
}
