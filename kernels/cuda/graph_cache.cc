#include "kernels/cuda/graph_cache.h"

#include <algorithm>

#include "base/status_macros.h"

namespace layercake::kernels::cuda {
namespace {

constexpr size_t kSeenHashes = 256;

}  // namespace

GraphCache::~GraphCache() {
  for (const Entry& entry : entries_) static_cast<void>(cudaGraphExecDestroy(entry.graph));
}

bool GraphCache::SeenBefore(uint64_t hash) {
  if (std::find(seen_.begin(), seen_.end(), hash) != seen_.end()) return true;
  if (seen_.size() < kSeenHashes) {
    seen_.push_back(hash);
  } else {
    seen_[next_seen_++ % kSeenHashes] = hash;
  }
  return false;
}

absl::Status GraphCache::Run(const CommandList& list, absl::FunctionRef<absl::Status()> run) {
  const uint64_t hash = list.Hash();
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.hash == hash && entry.list == list;
  });
  if (found == entries_.end()) {
    if (capacity_ == 0 || !SeenBefore(hash)) return run();
    LC_RETURN_IF_ERROR(Capture(hash, list, run));
  } else {
    entries_.splice(entries_.begin(), entries_, found);
    ++replays_;
  }
  return CudaStatus(cudaGraphLaunch(entries_.front().graph, context_.stream), "replay a step");
}

absl::Status GraphCache::Capture(uint64_t hash, const CommandList& list,
                                 absl::FunctionRef<absl::Status()> run) {
  LC_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal),
                 "begin to record a step"));
  const absl::Status ran = run();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(context_.stream, &graph);
  cudaGraphExec_t executable = nullptr;
  absl::Status status = ran.ok() ? CudaStatus(ended, "record a step") : ran;
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "make a graph of a step");
  }
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  LC_RETURN_IF_ERROR(status);
  if (entries_.size() >= capacity_) {
    static_cast<void>(cudaGraphExecDestroy(entries_.back().graph));
    entries_.pop_back();
  }
  entries_.push_front({hash, list, executable});
  ++captures_;
  return absl::OkStatus();
}

}  // namespace layercake::kernels::cuda
