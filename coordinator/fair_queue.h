// The requests that wait for admission, and who comes next.
//
// Two classes, interactive and batch, share by weight; inside a class, clients share evenly by the
// tokens that were computed for them; of one client, the first come is the first served. A client
// that was away gets no credit for it. Nobody waits for ever: each admission is charged to its
// client and class, so the others come before the next one of the same.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "coordinator/ids.h"

namespace layercake::coordinator {

enum class Priority : uint8_t { kInteractive = 0, kBatch = 1 };

// Pure: time is an argument. Every operation takes logarithmic time.
class FairQueue {
 public:
  // One more request of this client, waiting until `deadline`.
  void Push(SequenceId id, const std::string& client, Priority priority, base::Instant deadline);
  // Who is to be admitted next; nullopt when nobody waits.
  std::optional<SequenceId> Front() const;
  // False when it does not wait (any more).
  bool Remove(SequenceId id);
  // Work was done for this client.
  void Charge(const std::string& client, Priority priority, double tokens);
  // One request that was pushed has ended, however it did.
  void Done(const std::string& client, Priority priority);

  // Those whose deadline has passed, in that order; they do not wait any more. Done is still to be
  // called for each.
  std::vector<SequenceId> Expire(base::Instant now);
  base::Instant next_deadline() const;
  int size() const { return static_cast<int>(waiting_.size()); }

 private:
  static constexpr int kClasses = 2;
  // Interactive requests get this many tokens for one of the batch class while both wait.
  static constexpr std::array<double, kClasses> kWeights = {8, 1};

  struct Client {
    double served = 0;
    int requests = 0;  // pushed and not Done
    std::deque<SequenceId> waiting;
  };
  struct Class {
    double served = 0;
    double now = 0;  // what the client that was charged last had been served before
    std::map<std::string, Client> clients;
    std::set<std::pair<double, std::string>> ready;  // clients that wait, the least served first
  };
  struct Waiting {
    std::string client;
    Priority priority{};
    base::Instant deadline;
  };

  Class& ClassOf(Priority priority) { return classes_[static_cast<size_t>(priority)]; }

  std::array<Class, kClasses> classes_;
  double now_ = 0;  // what the class that was charged last had been served before
  absl::flat_hash_map<SequenceId, Waiting> waiting_;  // never iterated
  std::set<std::pair<base::Instant, SequenceId>> deadlines_;
};

}  // namespace layercake::coordinator
