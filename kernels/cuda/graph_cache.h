// Recorded steps: a list of commands that comes a second time is captured into a CUDA graph, and
// replayed from then on.
//
// Thread rule: inside work submitted to the device.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/command.h"
#include "kernels/cuda/context.h"

namespace layercake::kernels::cuda {

class GraphCache {
 public:
  // At most `capacity` graphs, the least lately used goes.
  GraphCache(const Context& context, size_t capacity) : context_(context), capacity_(capacity) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Enqueues the commands: by `run`, which enqueues them one by one, or as a graph.
  absl::Status Run(const CommandList& list, absl::FunctionRef<absl::Status()> run);

  size_t size() const { return entries_.size(); }
  uint64_t captures() const { return captures_; }
  uint64_t replays() const { return replays_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    CommandList list;
    cudaGraphExec_t graph = nullptr;
  };

  absl::Status Capture(uint64_t hash, const CommandList& list,
                       absl::FunctionRef<absl::Status()> run);
  bool SeenBefore(uint64_t hash);

  const Context context_;
  const size_t capacity_;
  std::list<Entry> entries_;    // the latest first
  std::vector<uint64_t> seen_;  // hashes of lists that came once; a ring
  size_t next_seen_ = 0;
  uint64_t captures_ = 0;
  uint64_t replays_ = 0;
};

}  // namespace layercake::kernels::cuda
