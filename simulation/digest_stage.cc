#include "simulation/digest_stage.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "stage_worker/activation_frame.h"

namespace layercake::simulation {
namespace {

// The finaliser of MurmurHash3 over a sum: every bit of both counts.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t h = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDu;
  h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53u;
  return h ^ (h >> 33);
}

uint64_t EntryOf(int stage, uint64_t x, int position, Reads reads, uint64_t before) {
  const uint64_t own = Mix(Mix(x, static_cast<uint64_t>(stage)), static_cast<uint64_t>(position));
  return reads == Reads::kEvery ? own : Mix(before, own);
}

uint64_t Weigh(uint64_t entry, int position) {
  return entry * (2 * static_cast<uint64_t>(position) + 1);  // odd: no bit is lost
}

int32_t Draw(uint64_t x, uint64_t seed) {
  return static_cast<int32_t>(Mix(x, seed) % static_cast<uint64_t>(kSimVocabulary));
}

uint64_t Embed(int32_t token) { return Mix(17, static_cast<uint64_t>(token)); }

}  // namespace

double StageCost::MeasuredSeconds(double rows) const {
  if (measured.empty()) return 0;
  const auto next = std::find_if(measured.begin(), measured.end(),
                                 [rows](const MeasuredStep& step) { return step.rows >= rows; });
  if (next == measured.end()) return measured.back().seconds * rows / measured.back().rows;
  if (next == measured.begin()) return next->seconds;
  const MeasuredStep& before = *std::prev(next);
  const double share = (rows - before.rows) / (next->rows - before.rows);
  return before.seconds + share * (next->seconds - before.seconds);
}

DigestStage::DigestStage(SimDevice& device, const stage_worker::StageLimits& limits,
                         const StageCost& cost, Reads reads)
    : device_(device),
      limits_(limits),
      cost_(cost),
      reads_(reads),
      cache_(static_cast<size_t>(limits.kv_blocks) * static_cast<size_t>(limits.kv_block_tokens)),
      saved_(static_cast<size_t>(limits.host_kv_blocks) *
             static_cast<size_t>(limits.kv_block_tokens)) {}

absl::Status DigestStage::ReadActivation(kernels::Buffer rows, size_t at) {
  rows_.resize((at + rows.bytes) / sizeof(uint64_t));
  std::memcpy(reinterpret_cast<std::byte*>(rows_.data()) + at, rows.address, rows.bytes);
  return absl::OkStatus();
}

void DigestStage::CopyBlocks(const stage_worker::BlockCopies& copies) {
  const auto at = [&](std::vector<uint64_t>& memory, int32_t block) {
    return memory.begin() + ptrdiff_t{block} * limits_.kv_block_tokens;
  };
  for (const stage_worker::BlockCopy& save : copies.saves) {
    std::copy_n(at(cache_, save.block), limits_.kv_block_tokens, at(saved_, save.host_block));
  }
  for (const stage_worker::BlockCopy& restore : copies.restores) {
    std::copy_n(at(saved_, restore.host_block), limits_.kv_block_tokens, at(cache_, restore.block));
  }
  const auto count = static_cast<double>(copies.saves.size() + copies.restores.size());
  if (count > 0) device_.Charge(absl::Seconds(cost_.per_copy * count));
}

void DigestStage::Charge(const StepWork& work) {
  const uint64_t size = uint64_t{1} << std::bit_width(static_cast<uint64_t>(work.rows) - 1);
  const double first = (sizes_seen_ & size) == 0 ? cost_.first_of_size : 0;
  sizes_seen_ |= size;
  device_.Charge(absl::Seconds(cost_.SecondsOf(work) + first));
}

uint64_t& DigestStage::Entry(const stage_worker::StepSequence& sequence, int position) {
  const auto at = static_cast<size_t>(position);
  const auto block_tokens = static_cast<size_t>(limits_.kv_block_tokens);
  return cache_[static_cast<size_t>(sequence.blocks[at / block_tokens]) * block_tokens +
                at % block_tokens];
}

uint64_t DigestStage::ReadContext(const stage_worker::StepSequence& sequence, int position) {
  if (reads_ == Reads::kChained) return Entry(sequence, position);
  uint64_t sum = 0;
  for (int i = 0; i <= position; ++i) sum += Weigh(Entry(sequence, i), i);
  return sum;
}

absl::Status DigestStage::Run(const stage_worker::StepPlan& plan, std::vector<int32_t> marks,
                              const transport::SendSlot& slot, stage_worker::StepOutput& output) {
  CopyBlocks(plan.copies);
  const auto rows = static_cast<size_t>(plan.rows());
  rows_.resize(rows);
  StepWork work{.rows = static_cast<double>(rows)};
  for (const stage_worker::StepSequence& sequence : plan.sequences) {
    for (int i = 0; i < sequence.row_count; ++i) {
      const auto row = static_cast<size_t>(sequence.first_row + i);
      const int position = plan.kv_positions[row];
      const uint64_t x = limits_.first() ? Embed(plan.tokens[row]) : rows_[row];
      const bool chained = reads_ == Reads::kChained && position > 0;
      Entry(sequence, position) =
          EntryOf(limits_.stage, x, position, reads_, chained ? Entry(sequence, position - 1) : 0);
      rows_[row] = Mix(x, ReadContext(sequence, position));
      work.reads += position + 1;
    }
    if (sequence.row_count > 0) {
      work.entries +=
          plan.kv_positions[static_cast<size_t>(sequence.first_row + sequence.row_count - 1)] + 1;
    }
    work.samples += sequence.sampled_rows;
    if (!limits_.last() || sequence.sampled_rows == 0) continue;
    const auto last = static_cast<size_t>(sequence.first_row + sequence.row_count - 1);
    v1::SequenceResult result;
    result.set_sequence(sequence.id);
    result.set_branch(sequence.branch);
    result.set_position(static_cast<uint32_t>(plan.kv_positions[last] + 1));
    result.add_tokens()->set_token(Draw(rows_[last], sequence.sampling.seed));
    output.results.push_back(std::move(result));
  }
  if (rows > 0) Charge(work);
  if (limits_.last()) return absl::OkStatus();

  const std::string section = stage_worker::EncodeActivationSection(marks, kSimHidden);
  const size_t payload = section.size() + rows * sizeof(uint64_t);
  if (payload > slot.memory.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows, " rows do not fit a slot of ", slot.memory.bytes, " bytes"));
  }
  std::memcpy(slot.memory.address, section.data(), section.size());
  std::memcpy(slot.memory.address + section.size(), rows_.data(), rows * sizeof(uint64_t));
  output.section_bytes = static_cast<uint32_t>(section.size());
  output.payload_bytes = static_cast<uint32_t>(payload);
  return absl::OkStatus();
}

std::vector<int32_t> SerialTokens(int stages, Reads reads, const std::vector<int32_t>& prompt,
                                  int count, uint64_t seed) {
  std::vector<std::vector<uint64_t>> cache(static_cast<size_t>(stages));
  std::vector<int32_t> output;
  for (int position = 0; static_cast<int>(output.size()) < count; ++position) {
    const auto at = static_cast<size_t>(position);
    uint64_t x = Embed(at < prompt.size() ? prompt[at] : output[at - prompt.size()]);
    for (int stage = 0; stage < stages; ++stage) {
      std::vector<uint64_t>& entries = cache[static_cast<size_t>(stage)];
      entries.push_back(EntryOf(stage, x, position, reads, entries.empty() ? 0 : entries.back()));
      uint64_t context = entries.back();
      if (reads == Reads::kEvery) {
        context = 0;
        for (int i = 0; i <= position; ++i) context += Weigh(entries[static_cast<size_t>(i)], i);
      }
      x = Mix(x, context);
    }
    if (at + 1 >= prompt.size()) output.push_back(Draw(x, seed));
  }
  return output;
}

}  // namespace layercake::simulation
