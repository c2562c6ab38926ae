#include "model/gguf/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "model/gguf/gguf_parser.h"

namespace layercake::model {

std::string TensorInfo::DescribeShape() const {
  return absl::StrCat("{", absl::StrJoin(absl::MakeConstSpan(ne).subspan(0, n_dims), ", "), "}");
}

// The one owner of a read-only mapping of a whole file.
class GgufFile::Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Create(const std::string& path) {
    const base::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return base::PosixError(absl::StrCat("open model file ", path), errno);
    struct stat attributes = {};
    if (fstat(fd.get(), &attributes) != 0) {
      return base::PosixError(absl::StrCat("read the size of model file ", path), errno);
    }
    if (!S_ISREG(attributes.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a file; give a .gguf file"));
    }
    const auto size = static_cast<size_t>(attributes.st_size);
    if (size == 0) return absl::DataLossError(absl::StrCat(path, ": the file is empty"));
    void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) {
      return base::PosixError(absl::StrCat("map ", size, " bytes of model file ", path), errno);
    }
    return std::unique_ptr<Mapping>(new Mapping(address, size));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(address_, size_); }

  absl::Span<const std::byte> bytes() const {
    return absl::MakeConstSpan(static_cast<const std::byte*>(address_), size_);
  }

 private:
  Mapping(void* address, size_t size) : address_(address), size_(size) {}

  void* const address_;
  const size_t size_;
};

GgufFile::GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  GgufFile file;
  LC_ASSIGN_OR_RETURN(file.mapping_, Mapping::Create(path));
  file.name_ = path;
  file.bytes_ = file.mapping_->bytes();
  file.file_size_ = file.bytes_.size();
  LC_RETURN_IF_ERROR(GgufParser(file).Parse());
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  file.file_size_ = bytes.size();
  LC_RETURN_IF_ERROR(GgufParser(file).Parse());
  return file;
}

absl::StatusOr<GgufFile> GgufFile::ParseHeader(std::vector<std::byte> header, uint64_t file_size,
                                               std::string name) {
  if (header.size() > file_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": a header of ", header.size(), " bytes in a file of ", file_size));
  }
  GgufFile file;
  file.name_ = std::move(name);
  file.owned_ = std::move(header);
  file.bytes_ = file.owned_;
  file.file_size_ = file_size;
  LC_RETURN_IF_ERROR(GgufParser(file).Parse());
  return file;
}

const TensorInfo* GgufFile::FindTensor(absl::string_view tensor_name) const {
  const auto found = tensor_index_.find(tensor_name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::Span<const std::byte> GgufFile::header_bytes() const {
  return bytes_.subspan(0, std::min<uint64_t>(data_offset_, bytes_.size()));
}

absl::StatusOr<absl::Span<const std::byte>> GgufFile::TensorBytes(const TensorInfo& tensor) const {
  if (!has_data()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name_, ": the bytes of ", tensor.name, " were asked for, but only the header is here"));
  }
  return bytes_.subspan(tensor.file_offset, tensor.byte_size);
}

}  // namespace layercake::model
