// An engine that keeps what the services hand to it, for tests to answer by hand.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/engine.h"

namespace layercake::coordinator::testing {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Thread-safe.
class FakeEngine final : public Engine {
 public:
  struct Submitted {
    PreparedRequest request;
    std::shared_ptr<RequestSink> sink;
  };
  struct Session {
    std::unique_ptr<CoordinatorLink> link;
    std::string peer;
  };

  void Submit(PreparedRequest request, std::shared_ptr<RequestSink> sink) override {
    absl::MutexLock lock(&mutex_);
    submitted_.push_back({std::move(request), std::move(sink)});
  }
  void Drop(std::shared_ptr<RequestSink> sink) override {
    absl::MutexLock lock(&mutex_);
    dropped_.push_back(std::move(sink));
  }
  void Abort(std::vector<std::string> request_ids) override {
    absl::MutexLock lock(&mutex_);
    for (std::string& id : request_ids) aborted_.push_back(std::move(id));
  }
  void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) override {
    if (silent_) return;
    v1::GetStatusResponse response;
    response.set_state(v1::CHAIN_STATE_SERVING);
    done(std::move(response));
  }
  void GetLoads(absl::AnyInvocable<void(v1::GetLoadsResponse)> done) override {
    if (silent_) return;
    v1::GetLoadsResponse response;
    response.set_running(3);
    done(std::move(response));
  }
  void AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer) override {
    absl::MutexLock lock(&mutex_);
    sessions_.push_back({std::move(link), std::move(peer)});
  }

  // The oldest one that nobody took yet; without a sink when none came in time.
  Submitted WaitForSubmit() { return WaitForFront(&submitted_); }
  Session WaitForSession() { return WaitForFront(&sessions_); }
  bool WaitForDrop(const std::shared_ptr<RequestSink>& sink) {
    absl::MutexLock lock(&mutex_);
    const auto seen = [this, &sink] {
      mutex_.AssertHeld();
      for (const auto& dropped : dropped_) {
        if (dropped == sink) return true;
      }
      return false;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&seen), kPatience);
  }
  size_t submitted_count() {
    absl::MutexLock lock(&mutex_);
    return submitted_.size();
  }
  std::vector<std::string> aborted() {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }
  // From then on, questions are let go without an answer. Set before the services run.
  void set_silent() { silent_ = true; }

 private:
  template <class T>
  T WaitForFront(std::deque<T>* queue) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this, queue] {
      mutex_.AssertHeld();
      return !queue->empty();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) return {};
    T front = std::move(queue->front());
    queue->pop_front();
    return front;
  }

  bool silent_ = false;
  absl::Mutex mutex_;
  std::deque<Submitted> submitted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<RequestSink>> dropped_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> aborted_ ABSL_GUARDED_BY(mutex_);
  std::deque<Session> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace layercake::coordinator::testing
