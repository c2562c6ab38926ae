// Clock, Executor and Timers in virtual time, in one thread: what the production EventLoop is to a
// process, this is to a test or a simulation. Nothing waits; time moves when there is nothing left
// to run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"

namespace layercake::base {

class VirtualLoop final : public Clock, public Executor, public Timers {
 public:
  Instant Now() const override { return now_; }
  absl::Time WallNow() const override { return absl::UnixEpoch() + now_.since_start(); }

  bool Post(Task task) override {
    posted_.push_back(std::move(task));
    return true;
  }

  TimerId At(Instant when, Task task) override {
    const uint64_t id = next_timer_++;
    timers_.emplace(std::make_pair(when, id), std::move(task));
    due_.emplace(id, when);
    return static_cast<TimerId>(id);
  }

  bool Cancel(TimerId id) override {
    const auto due = due_.find(static_cast<uint64_t>(id));
    if (due == due_.end()) return false;
    timers_.erase({due->second, due->first});
    due_.erase(due);
    return true;
  }

  // Runs what is posted, and what that posts, without moving time.
  void RunPosted() {
    while (!posted_.empty()) {
      Task task = std::move(posted_.front());
      posted_.pop_front();
      task();
    }
  }

  // Runs everything due up to now + `duration`, in order of time; then it is that late.
  void Advance(absl::Duration duration) {
    const Instant end = now_ + duration;
    RunPosted();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      auto first = timers_.begin();
      now_ = std::max(now_, first->first.first);
      Task task = std::move(first->second);
      due_.erase(first->first.second);
      timers_.erase(first);
      task();
      RunPosted();
    }
    now_ = end;
  }

  // Time passes and nobody runs: a stall of this process.
  void Stall(absl::Duration duration) { now_ = now_ + duration; }

 private:
  Instant now_;
  uint64_t next_timer_ = 1;
  std::deque<Task> posted_;
  std::map<std::pair<Instant, uint64_t>, Task> timers_;
  absl::flat_hash_map<uint64_t, Instant> due_;  // of each timer
};

}  // namespace layercake::base
