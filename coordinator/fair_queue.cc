#include "coordinator/fair_queue.h"

#include <algorithm>

namespace layercake::coordinator {

void FairQueue::Push(SequenceId id, const std::string& client, Priority priority,
                     base::Instant deadline) {
  Class& wanted = ClassOf(priority);
  // Who was away starts where the others are: no credit for that time.
  if (wanted.ready.empty()) {
    wanted.served = std::max(wanted.served, now_);
    for (const Class& other : classes_) {
      if (!other.ready.empty()) wanted.served = std::max(wanted.served, other.served);
    }
  }
  Client& mine = wanted.clients[client];
  if (mine.waiting.empty()) {
    const double others = wanted.ready.empty() ? 0 : wanted.ready.begin()->first;
    mine.served = std::max({mine.served, wanted.now, others});
    wanted.ready.emplace(mine.served, client);
  }
  ++mine.requests;
  mine.waiting.push_back(id);
  waiting_.emplace(id, Waiting{client, priority, deadline});
  deadlines_.emplace(deadline, id);
}

std::optional<SequenceId> FairQueue::Front() const {
  const Class* best = nullptr;
  for (const Class& one : classes_) {
    if (one.ready.empty()) continue;
    if (best == nullptr || one.served < best->served) best = &one;
  }
  if (best == nullptr) return std::nullopt;
  return best->clients.at(best->ready.begin()->second).waiting.front();
}

bool FairQueue::Remove(SequenceId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  const Waiting& entry = found->second;
  Class& wanted = ClassOf(entry.priority);
  Client& mine = wanted.clients.at(entry.client);
  mine.waiting.erase(std::find(mine.waiting.begin(), mine.waiting.end(), id));
  if (mine.waiting.empty()) wanted.ready.erase({mine.served, entry.client});
  deadlines_.erase({entry.deadline, id});
  waiting_.erase(found);
  return true;
}

void FairQueue::Charge(const std::string& client, Priority priority, double tokens) {
  Class& wanted = ClassOf(priority);
  now_ = std::max(now_, wanted.served);
  wanted.served += tokens / kWeights[static_cast<size_t>(priority)];
  const auto found = wanted.clients.find(client);
  if (found == wanted.clients.end()) return;
  Client& mine = found->second;
  if (!mine.waiting.empty()) wanted.ready.erase({mine.served, client});
  wanted.now = std::max(wanted.now, mine.served);
  mine.served += tokens;
  if (!mine.waiting.empty()) wanted.ready.emplace(mine.served, client);
}

void FairQueue::Done(const std::string& client, Priority priority) {
  Class& wanted = ClassOf(priority);
  const auto found = wanted.clients.find(client);
  if (found != wanted.clients.end() && --found->second.requests == 0) wanted.clients.erase(found);
}

std::vector<SequenceId> FairQueue::Expire(base::Instant now) {
  std::vector<SequenceId> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    Remove(expired.back());
  }
  return expired;
}

base::Instant FairQueue::next_deadline() const {
  return deadlines_.empty() ? base::Instant::Infinite() : deadlines_.begin()->first;
}

}  // namespace layercake::coordinator
