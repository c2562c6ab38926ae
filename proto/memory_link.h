// A Session in one process: two ends, one executor, messages delivered in order by posts.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "base/executor.h"
#include "proto/link.h"

namespace layercake {

// What both ends share. One direction of one Session.
template <class Message>
struct MemoryPipe {
  std::deque<Message> waiting;
  bool closed = false;  // by the writer
  absl::Status reason;
};

template <class Out, class In>
class MemoryLink final : public Link<Out, In> {
 public:
  using Callbacks = typename Link<Out, In>::Callbacks;

  MemoryLink(base::Executor& executor, std::shared_ptr<MemoryPipe<Out>> out,
             std::shared_ptr<MemoryPipe<In>> in, std::shared_ptr<MemoryLink*> self,
             std::shared_ptr<MemoryLink<In, Out>*> peer)
      : executor_(executor),
        out_(std::move(out)),
        in_(std::move(in)),
        self_(std::move(self)),
        peer_(std::move(peer)) {
    *self_ = this;
  }
  ~MemoryLink() override {
    Close(absl::UnavailableError("the link was dropped"));
    *self_ = nullptr;
  }

  void Start(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    started_ = true;
    PostDelivery(executor_, self_);
  }
  absl::Status Send(const Out& message) override {
    if (out_->closed) return absl::UnavailableError("the link is closed");
    out_->waiting.push_back(message);
    PostDelivery(executor_, peer_);
    return absl::OkStatus();
  }
  void Close(absl::Status reason) override {
    started_ = false;
    if (std::exchange(out_->closed, true)) return;
    out_->reason = std::move(reason);
    PostDelivery(executor_, peer_);
  }

 private:
  friend class MemoryLink<In, Out>;
  template <class L>
  static void PostDelivery(base::Executor& executor, std::shared_ptr<L*> link) {
    std::ignore = executor.Post([link] {
      if (*link != nullptr) (*link)->Deliver();
    });
  }
  void Deliver() {
    while (started_ && !in_->waiting.empty()) {
      In message = std::move(in_->waiting.front());
      in_->waiting.pop_front();
      const std::shared_ptr<MemoryLink*> self = self_;
      callbacks_.on_message(std::move(message));
      if (*self == nullptr) return;
    }
    if (started_ && in_->closed) {
      started_ = false;
      callbacks_.on_closed(in_->reason);
    }
  }

  base::Executor& executor_;
  const std::shared_ptr<MemoryPipe<Out>> out_;
  const std::shared_ptr<MemoryPipe<In>> in_;
  const std::shared_ptr<MemoryLink*> self_;
  const std::shared_ptr<MemoryLink<In, Out>*> peer_;
  Callbacks callbacks_;
  bool started_ = false;
};

// The coordinator's end and the worker's end.
inline std::pair<std::unique_ptr<CoordinatorLink>, std::unique_ptr<WorkerLink>> MakeMemoryLinks(
    base::Executor& executor) {
  using Down = MemoryLink<v1::ToWorker, v1::FromWorker>;
  using Up = MemoryLink<v1::FromWorker, v1::ToWorker>;
  auto to_worker = std::make_shared<MemoryPipe<v1::ToWorker>>();
  auto from_worker = std::make_shared<MemoryPipe<v1::FromWorker>>();
  auto down = std::make_shared<Down*>(nullptr);
  auto up = std::make_shared<Up*>(nullptr);
  return {std::make_unique<Down>(executor, to_worker, from_worker, down, up),
          std::make_unique<Up>(executor, from_worker, to_worker, up, down)};
}

}  // namespace layercake
