// Where a worker gets the model of its Assignment from: its own copy of the file when it has one
// and it is the same model, else the coordinator.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "layercake/v1/control.pb.h"
#include "model/model_source.h"

namespace layercake::stage_worker {

class ModelProvider {
 public:
  virtual ~ModelProvider() = default;
  // Blocks; on the loading thread. NotFound, FailedPrecondition (another model), or what disk and
  // wire say.
  virtual absl::StatusOr<std::unique_ptr<model::ModelSource>> Open(
      const v1::Assignment& assignment) = 0;
  // Ends an Open and the reads of what it opened, now and later, as soon as can be. From any
  // thread.
  virtual void Cancel() = 0;
};

// Local first. A copy whose fingerprint is another one is never used: with `own_path` (given by
// the operator) that is an error, at the coordinator's path it is said in the log and the
// coordinator's bytes are used.
class LocalFirstProvider final : public ModelProvider {
 public:
  // `remote` may be null: then a model without a local copy is NotFound.
  LocalFirstProvider(std::string own_path, std::unique_ptr<ModelProvider> remote);

  absl::StatusOr<std::unique_ptr<model::ModelSource>> Open(
      const v1::Assignment& assignment) override;
  void Cancel() override;

 private:
  const std::string own_path_;
  const std::unique_ptr<ModelProvider> remote_;
};

}  // namespace layercake::stage_worker
