#include "model/model_source.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"

namespace layercake::model {

absl::StatusOr<const TensorInfo*> ModelSource::FindRange(absl::string_view tensor_name,
                                                         uint64_t offset, uint64_t length) const {
  const TensorInfo* tensor = files().FindTensor(tensor_name);
  if (tensor == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(files().name(), ": no tensor ", PrintableText(tensor_name, 80)));
  }
  if (offset > tensor->byte_size || length > tensor->byte_size - offset) {
    return absl::InvalidArgumentError(absl::StrCat("read ", length, " bytes at ", offset, " of ",
                                                   tensor->name, ", which has ", tensor->byte_size,
                                                   " bytes"));
  }
  return tensor;
}

LocalModelSource::LocalModelSource(ModelFiles files) : files_(std::move(files)) {
  LC_CHECK(files_.has_data(), files_.name(), ": a local source needs the whole file");
}

std::optional<absl::Span<const std::byte>> LocalModelSource::Map(
    absl::string_view tensor_name) const {
  const absl::StatusOr<absl::Span<const std::byte>> bytes = files_.TensorBytes(tensor_name);
  if (!bytes.ok()) return std::nullopt;
  return *bytes;
}

absl::Status LocalModelSource::Read(absl::string_view tensor_name, uint64_t offset,
                                    absl::Span<std::byte> out) {
  LC_RETURN_IF_ERROR(FindRange(tensor_name, offset, out.size()).status());
  LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, files_.TensorBytes(tensor_name));
  if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
  return absl::OkStatus();
}

}  // namespace layercake::model
