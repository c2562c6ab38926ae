#include "tests/gpu/peer_death_players.h"

#include <signal.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace layercake::testing {

Player::Player(int device, const base::Clock& clock)
    : process_({"/proc/self/exe", "--actor", absl::StrCat(device)}, clock) {}

Answer Player::Ready() {
  if (!std::exchange(greeted_, true)) greeting_ = Next();
  return greeting_;
}

Answer Player::Ask(const std::string& command, absl::Duration limit) {
  const Answer ready = Ready();
  if (!ready.came || ready.code != 0) return ready;
  if (!heard_ || !process_.Write(command)) return {};
  return Next(limit);
}

Answer Player::Next(absl::Duration limit) {
  if (!heard_) return {};
  const Answer answer = ParseAnswer(process_.ReadLine(limit));
  heard_ = answer.came;
  return answer;
}

void Player::Stop() { process_.Signal(SIGSTOP); }

void Player::Continue() { process_.Signal(SIGCONT); }

std::string Player::Kill() {
  process_.Signal(SIGKILL);
  const std::optional<absl::Duration> gone = process_.AwaitEnd(kPatience);
  return gone.has_value() ? absl::StrCat("gone after ", Seconds(*gone))
                          : absl::StrCat("still there after ", Seconds(kPatience));
}

Pair::Pair(int exporter_device, int importer_device, size_t bytes, const base::Clock& clock)
    : exporter(exporter_device, clock), importer(importer_device, clock) {
  const Answer handle = exporter.Ask(absl::StrCat("allocate ", bytes));
  if (!handle.came || handle.code != 0) {
    failure = absl::StrCat("the exporter's block: ", Describe(handle));
    return;
  }
  const Answer own = importer.Ask(absl::StrCat("allocate ", bytes));
  if (!own.came || own.code != 0) {
    failure = absl::StrCat("the importer's block: ", Describe(own));
    return;
  }
  const Answer mapped = importer.Ask(absl::StrCat("map ", handle.words, " ", bytes));
  if (!mapped.came || mapped.code != 0) failure = absl::StrCat("mapping: ", Describe(mapped));
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.3f s", absl::ToDoubleSeconds(duration));
}

}  // namespace layercake::testing
