// Where a stage gets the bytes of its tensors: a local file (LocalModelSource) or another host.
// Headers are always here (files()); data comes tensor by tensor. Progress is the caller's to
// count: it asks in pieces. Thread rule: one caller at a time; Map()'s spans may be read by any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/model_files.h"

namespace layercake::model {

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // Metadata and tensor list of the whole model. Outlived by nothing that points into it.
  virtual const ModelFiles& files() const = 0;

  // The tensor in place, valid as long as the source, or nullopt when this source has to copy.
  virtual std::optional<absl::Span<const std::byte>> Map(absl::string_view tensor_name) const = 0;

  // Fills `out` from `offset` bytes into the tensor. May block on a disk or a wire; the
  // implementation owns the deadline. NotFound for no such tensor, InvalidArgument for a range
  // beyond its end, Unavailable or DataLoss from the wire.
  virtual absl::Status Read(absl::string_view tensor_name, uint64_t offset,
                            absl::Span<std::byte> out) = 0;

 protected:
  // The tensor, when [offset, offset + length) lies in it: the check that every Read begins with.
  absl::StatusOr<const TensorInfo*> FindRange(absl::string_view tensor_name, uint64_t offset,
                                              uint64_t length) const;
};

// Over mapped files: zero copies, and never waits except for the disk.
class LocalModelSource final : public ModelSource {
 public:
  // `files` has data (ModelFiles::Open).
  explicit LocalModelSource(ModelFiles files);

  const ModelFiles& files() const override { return files_; }
  std::optional<absl::Span<const std::byte>> Map(absl::string_view tensor_name) const override;
  absl::Status Read(absl::string_view tensor_name, uint64_t offset,
                    absl::Span<std::byte> out) override;

 private:
  ModelFiles files_;
};

}  // namespace layercake::model
