#include "kernels/cuda/command.h"

#include <string_view>

#include "absl/hash/hash.h"

namespace layercake::kernels::cuda {
namespace {

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

bool CommandList::operator==(const CommandList& other) const {
  return BytesOf(commands) == BytesOf(other.commands) &&
         BytesOf(products) == BytesOf(other.products) && views == other.views;
}

uint64_t CommandList::Hash() const {
  // What tells steps of one stage apart: their lengths, the views, and the first and last commands.
  // Lists of one hash are still compared as a whole.
  uint64_t hash = absl::HashOf(commands.size(), products.size(), views.size());
  for (const StepView& view : views) {
    hash = absl::HashOf(hash, view.rows, view.table_stride, view.decode_count, view.splits,
                        view.tile_count, view.kv_position);
  }
  if (!commands.empty()) {
    const auto bytes = BytesOf(commands);
    hash = absl::HashOf(hash, bytes.substr(0, sizeof(Command)),
                        bytes.substr(bytes.size() - sizeof(Command)));
  }
  return hash;
}

}  // namespace layercake::kernels::cuda
