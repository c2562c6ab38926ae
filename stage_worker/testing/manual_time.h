// Clock, timers and executor of a test that owns time: nothing runs but what the test asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"

namespace layercake::stage_worker::testing {

// One thread.
class ManualTime final : public base::Clock, public base::Timers, public base::Executor {
 public:
  base::Instant Now() const override { return now_; }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }

  base::TimerId At(base::Instant when, base::Task task) override {
    const uint64_t id = ++last_timer_;
    timers_.emplace(std::make_pair(when, id), std::move(task));
    due_.emplace(id, when);
    return static_cast<base::TimerId>(id);
  }
  bool Cancel(base::TimerId id) override {
    const auto it = due_.find(static_cast<uint64_t>(id));
    if (it == due_.end()) return false;
    timers_.erase({it->second, it->first});
    due_.erase(it);
    return true;
  }
  bool Post(base::Task task) override {
    posted_.push_back(std::move(task));
    return true;
  }

  // Runs one posted task; false when there is none.
  bool RunOne() {
    if (posted_.empty()) return false;
    base::Task task = std::move(posted_.front());
    posted_.pop_front();
    task();
    return true;
  }
  void RunPosted() {
    while (RunOne()) {
    }
  }
  // Goes from timer to timer, running what is posted in between.
  void Advance(absl::Duration by) {
    const base::Instant end = now_ + by;
    RunPosted();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      now_ = std::max(now_, timers_.begin()->first.first);
      RunFirstTimer();
      RunPosted();
    }
    now_ = end;
  }
  // The process stood still: time goes on, and timers run late.
  void Stall(absl::Duration by) {
    now_ = now_ + by;
    while (!timers_.empty() && timers_.begin()->first.first <= now_) RunFirstTimer();
    RunPosted();
  }

 private:
  void RunFirstTimer() {
    auto node = timers_.extract(timers_.begin());
    due_.erase(node.key().second);
    node.mapped()();
  }

  base::Instant now_ = base::Instant::FromStart(absl::Seconds(1000));
  uint64_t last_timer_ = 0;
  std::map<std::pair<base::Instant, uint64_t>, base::Task> timers_;
  std::map<uint64_t, base::Instant> due_;
  std::deque<base::Task> posted_;
};

}  // namespace layercake::stage_worker::testing
