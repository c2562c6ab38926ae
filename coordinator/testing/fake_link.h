// A Session whose other end is the test.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "proto/link.h"

namespace layercake::coordinator {

// What the test keeps of a link that the chain owns.
struct FakeWorkerEnd {
  CoordinatorLink::Callbacks callbacks;
  std::vector<v1::ToWorker> received;
  std::optional<absl::Status> closed;  // by the coordinator
  bool broken = false;                 // Send fails

  void Say(v1::FromWorker message) { callbacks.on_message(std::move(message)); }
  // The last message of one case, or null.
  const v1::ToWorker* Last(v1::ToWorker::MessageCase message_case) const {
    for (auto it = received.rbegin(); it != received.rend(); ++it) {
      if (it->message_case() == message_case) return &*it;
    }
    return nullptr;
  }
};

class FakeLink final : public CoordinatorLink {
 public:
  explicit FakeLink(std::shared_ptr<FakeWorkerEnd> end) : end_(std::move(end)) {}
  void Start(Callbacks callbacks) override { end_->callbacks = std::move(callbacks); }
  absl::Status Send(const v1::ToWorker& message) override {
    if (end_->broken) return absl::UnavailableError("the wire is cut");
    end_->received.push_back(message);
    return absl::OkStatus();
  }
  void Close(absl::Status reason) override { end_->closed = std::move(reason); }

 private:
  std::shared_ptr<FakeWorkerEnd> end_;
};

}  // namespace layercake::coordinator
