// What the chain says of itself: names, states, and why a step is stuck.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/blame.h"
#include "coordinator/chain.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {

Chain::Worker* Chain::StageWorkerOf(int stage) {
  for (auto& [id, worker] : workers_) {
    if (worker.stage == stage) return &worker;
  }
  return nullptr;
}

const Chain::Worker* Chain::StageWorkerOf(int stage) const {
  return const_cast<Chain*>(this)->StageWorkerOf(stage);
}

std::string Chain::Describe(const Worker& worker) const {
  if (!worker.hello) return absl::StrCat("a worker at ", worker.peer);
  return absl::StrCat("stage ", worker.stage, " (", worker.hello->host().host_name(), ", pid ",
                      worker.hello->host().pid(), ", ", worker.hello->device(), ")");
}

std::string Chain::MissingStages() const {
  std::vector<int> missing;
  for (int stage = 0; stage < stage_count(); ++stage) {
    if (StageWorkerOf(stage) == nullptr) missing.push_back(stage);
  }
  return absl::StrJoin(missing, ", ");
}

absl::Status Chain::StuckStep(const InFlight& step, base::Instant now) const {
  std::vector<v1::StageCounters> counters;
  std::string waits;
  for (int stage = 0; stage < stage_count(); ++stage) {
    const Worker* worker = StageWorkerOf(stage);
    counters.push_back(worker->heartbeat.counters());
    if (!worker->heartbeat.waiting_for().empty()) {
      absl::StrAppend(&waits, "; stage ", stage, " waits for ", worker->heartbeat.waiting_for());
    }
  }
  const Verdict verdict = Blame(next_step_ - 1, counters);
  return absl::DeadlineExceededError(absl::StrCat("step ", step.step, " did not come back within ",
                                                  absl::FormatDuration(now - step.sent), ": ",
                                                  verdict.evidence, waits));
}

void Chain::FillStatus(v1::GetStatusResponse& response) const {
  response.set_state(state_);
  response.set_reason(std::string(failure_.message()));
  response.set_term(options_.term);
  response.set_epoch(epoch_);
  response.set_version(kSoftwareVersion);
  for (int stage = 0; stage < stage_count(); ++stage) {
    v1::StageStatus& status = *response.add_stages();
    const model::LayerRange& layers = options_.plan.stages[static_cast<size_t>(stage)];
    status.set_stage(stage);
    status.set_layer_first(static_cast<int>(layers.first));
    status.set_layer_end(static_cast<int>(layers.end));
    const std::vector<StageMemory>& memory = options_.plan.memory;
    if (static_cast<size_t>(stage) < memory.size()) {
      status.set_promised_bytes(memory[static_cast<size_t>(stage)].total());
    }
    const Worker* worker = StageWorkerOf(stage);
    if (worker == nullptr || !worker->hello) continue;
    status.set_worker_id(worker->hello->worker_id());
    status.set_host(worker->hello->host().host_name());
    status.set_pid(worker->hello->host().pid());
    status.set_device(worker->hello->device());
    status.set_loaded_bytes(worker->progress.loaded_bytes());
    status.set_total_bytes(worker->progress.total_bytes());
    status.set_steps_done(worker->heartbeat.counters().steps_done());
    status.set_busy_seconds(worker->heartbeat.counters().busy_seconds());
    status.set_hops(worker->heartbeat.counters().hops());
    status.set_hop_bytes(worker->heartbeat.counters().hop_bytes());
    status.set_hop_seconds(worker->heartbeat.counters().hop_seconds());
    status.set_placement(worker->hello->placement());
    status.set_counters_age_seconds(absl::ToDoubleSeconds(clock_.Now() - worker->heartbeat_at));
    status.set_waiting_for(worker->heartbeat.waiting_for());
    const std::optional<v1::ChannelReady>& sender =
        stage == 0 ? worker->feedback_sender : worker->sender;
    if (sender) {
      status.set_upstream_transport(absl::StrCat(
          sender->kind(), ": ",
          stage == 0 ? absl::StrCat("tokens of stage ", stage_count() - 1) : sender->reason()));
      status.set_upstream_latency_us(sender->latency_us());
      status.set_upstream_gigabytes_per_second(sender->gigabytes_per_second());
    }
    if (worker->ready) {
      status.set_weight_bytes(worker->ready->weight_bytes());
      status.set_kv_bytes(worker->ready->kv_bytes());
      status.set_buffer_bytes(worker->ready->buffer_bytes());
      status.set_copy_gigabytes_per_second(worker->ready->copy_gigabytes_per_second());
    }
  }
}

}  // namespace layercake::coordinator
