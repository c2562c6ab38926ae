#include "stage_worker/model_provider.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace layercake::stage_worker {
namespace {

absl::StatusOr<std::unique_ptr<model::ModelSource>> OpenLocal(const std::string& path,
                                                              uint64_t fingerprint) {
  LC_ASSIGN_OR_RETURN(model::ModelFiles files, model::ModelFiles::Open(path));
  if (files.fingerprint() != fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is another model than the coordinator's: fingerprint %016x, not %016x",
                        path, files.fingerprint(), fingerprint));
  }
  return std::make_unique<model::LocalModelSource>(std::move(files));
}

}  // namespace

LocalFirstProvider::LocalFirstProvider(std::string own_path, std::unique_ptr<ModelProvider> remote)
    : own_path_(std::move(own_path)), remote_(std::move(remote)) {}

absl::StatusOr<std::unique_ptr<model::ModelSource>> LocalFirstProvider::Open(
    const v1::Assignment& assignment) {
  if (!own_path_.empty()) return OpenLocal(own_path_, assignment.model_fingerprint());
  const std::string& path = assignment.model_path();
  if (!path.empty() && access(path.c_str(), F_OK) == 0) {
    absl::StatusOr<std::unique_ptr<model::ModelSource>> local =
        OpenLocal(path, assignment.model_fingerprint());
    if (local.ok() || remote_ == nullptr) return local;
    spdlog::warn("not using the file here, but the coordinator's: {}", local.status().ToString());
  }
  if (remote_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no model file ", path, " on this host"));
  }
  spdlog::info("fetching the model from the coordinator: no usable {} here", path);
  return remote_->Open(assignment);
}

void LocalFirstProvider::Cancel() {
  if (remote_ != nullptr) remote_->Cancel();
}

}  // namespace layercake::stage_worker
