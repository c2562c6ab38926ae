// What a worker of a test talks to: a Session whose other end is the test, and a model in memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "proto/link.h"
#include "stage_worker/model_provider.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker::testing {

// The worker's end of a Session whose other end is the test.
class FakeLink final : public WorkerLink {
 public:
  struct Wire {
    Callbacks callbacks;
    std::deque<v1::FromWorker> sent;
    bool closed = false;
    absl::Status reason;
    std::function<void()> on_sent = [] {};
  };
  explicit FakeLink(Wire& wire) : wire_(wire) {
    wire.callbacks = {};
    wire.sent.clear();
    wire.closed = false;
  }
  void Start(Callbacks callbacks) override { wire_.callbacks = std::move(callbacks); }
  absl::Status Send(const v1::FromWorker& message) override {
    if (wire_.closed) return absl::UnavailableError("closed");
    wire_.sent.push_back(message);
    wire_.on_sent();
    return absl::OkStatus();
  }
  void Close(absl::Status reason) override {
    wire_.closed = true;
    wire_.reason = std::move(reason);
  }

 private:
  Wire& wire_;
};

class TestProvider final : public ModelProvider {
 public:
  explicit TestProvider(const TinyModel& model) : model_(model) {}
  absl::StatusOr<std::unique_ptr<model::ModelSource>> Open(
      const v1::Assignment& assignment) override {
    if (assignment.model_fingerprint() != model_.fingerprint()) {
      return absl::FailedPreconditionError("another model");
    }
    return model_.Source();
  }
  void Cancel() override { cancelled = true; }

  bool cancelled = false;

 private:
  const TinyModel& model_;
};

}  // namespace layercake::stage_worker::testing
