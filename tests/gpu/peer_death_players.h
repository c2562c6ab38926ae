// The processes of peer_death_benchmark as its parent sees them.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/gpu/bounded_process.h"
#include "tests/gpu/peer_death_answer.h"

namespace layercake::testing {

inline constexpr absl::Duration kPatience = absl::Seconds(6);

// One process with one device (peer_death_actor.h). It starts beside others: the first Ask waits
// for its greeting.
//
// Thread rule: one thread.
class Player {
 public:
  Player(int device, const base::Clock& clock);

  // The greeting: a context, streams, loaded kernels.
  Answer Ready();
  // The answer to `command`; what it said when it started, when that went wrong. Who was silent
  // once is not asked again.
  Answer Ask(const std::string& command, absl::Duration limit = kPatience);
  // One more answer to what was asked.
  Answer Next(absl::Duration limit = kPatience);

  void Stop();
  void Continue();
  // SIGKILL, and until it is gone: "gone after 0.130 s", or that it was not within the patience.
  std::string Kill();

 private:
  BoundedProcess process_;
  Answer greeting_;
  bool greeted_ = false;
  bool heard_ = true;  // every answer has come so far
};

// An exporter, and an importer that has mapped its block, each with a block of `bytes`.
struct Pair {
  Pair(int exporter_device, int importer_device, size_t bytes, const base::Clock& clock);

  Player exporter;
  Player importer;
  std::string failure;  // empty: all of it is there
};

// "0.130 s".
std::string Seconds(absl::Duration duration);

}  // namespace layercake::testing
