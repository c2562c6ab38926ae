#include "stage_worker/block_copies.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::stage_worker {
namespace {

absl::Status CheckIds(const v1::BlockCopy& copy, const StageLimits& limits,
                      absl::string_view verb) {
  if (copy.block() < static_cast<uint32_t>(limits.kv_blocks) &&
      copy.host_block() < static_cast<uint32_t>(limits.host_kv_blocks)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(verb, " of block ", copy.block(), " and host block ", copy.host_block(),
                   "; this stage has ", limits.kv_blocks, " and ", limits.host_kv_blocks));
}

BlockCopy ToCopy(const v1::BlockCopy& copy) {
  return {.block = static_cast<int32_t>(copy.block()),
          .host_block = static_cast<int32_t>(copy.host_block())};
}

}  // namespace

absl::Status CheckBlockCopies(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                              const SavedBlocks& saved) {
  absl::flat_hash_set<uint32_t> written;
  for (const v1::BlockCopy& save : plan.saves()) {
    LC_RETURN_IF_ERROR(CheckIds(save, limits, "a save"));
    if (!written.insert(save.host_block()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("host block ", save.host_block(), " is saved to twice in one plan"));
    }
  }
  absl::flat_hash_set<uint32_t> restored;
  absl::flat_hash_set<uint32_t> read;
  for (const v1::BlockCopy& restore : plan.restores()) {
    LC_RETURN_IF_ERROR(CheckIds(restore, limits, "a restore"));
    if (!restored.insert(restore.block()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", restore.block(), " is restored twice in one plan"));
    }
    const bool holds =
        saved.Contains(restore.host_block()) || written.contains(restore.host_block());
    if (!holds || !read.insert(restore.host_block()).second) {
      return absl::FailedPreconditionError(absl::StrCat(
          "block ", restore.block(), " is restored from host block ", restore.host_block(),
          ", which holds no block that was saved and not restored since"));
    }
  }
  return absl::OkStatus();
}

BlockCopies SavedBlocks::Apply(const v1::MicroBatchPlan& plan) {
  BlockCopies copies;
  for (const v1::BlockCopy& save : plan.saves()) {
    saved_.insert(save.host_block());
    copies.saves.push_back(ToCopy(save));
  }
  for (const v1::BlockCopy& restore : plan.restores()) {
    saved_.erase(restore.host_block());
    copies.restores.push_back(ToCopy(restore));
  }
  return copies;
}

}  // namespace layercake::stage_worker
