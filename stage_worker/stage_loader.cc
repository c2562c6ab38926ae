#include "stage_worker/stage_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "stage_worker/stage.h"

namespace layercake::stage_worker {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);

}  // namespace

struct StageLoader::Fetched {
  model::ModelConfig config;
  model::WeightMap plan;
  StageLimits limits;
  std::unique_ptr<model::ModelSource> source;
  FetchedTensors tensors;
};

StageLoader::StageLoader(const StageLoaderContext& context, v1::Assignment assignment,
                         Callbacks callbacks)
    : context_(context), assignment_(std::move(assignment)), callbacks_(std::move(callbacks)) {}

StageLoader::~StageLoader() {
  *alive_ = false;
  progress_->stop = true;
  CancelProgressTimer();
}

absl::Status StageLoader::Start() {
  kv_type_ = KvTypeOf(assignment_.kv_type());
  if (!kv_type_) return absl::InternalError("a loader of an assignment that was not checked");
  LC_RETURN_IF_ERROR(context_.ops->CheckKvType(*kv_type_));
  last_progress_ = context_.clock->Now();
  ArmProgressTimer();
  fetching_ = context_.loading_thread->Post([this, alive = alive_, progress = progress_,
                                             provider = context_.provider, assignment = assignment_,
                                             step_thread = context_.step_thread] {
    absl::StatusOr<std::unique_ptr<Fetched>> fetched = Fetch(*provider, assignment, *progress);
    // A step thread that has ended needs no answer.
    static_cast<void>(step_thread->Post([this, alive, result = std::move(fetched)]() mutable {
      if (*alive) OnFetched(std::move(result));
    }));
  });
  if (fetching_) return absl::OkStatus();
  over_ = true;
  CancelProgressTimer();
  return absl::ResourceExhaustedError("the loading thread is busy");
}

void StageLoader::Stop() {
  over_ = true;
  CancelProgressTimer();
  progress_->stop = true;
  context_.provider->Cancel();
}

absl::StatusOr<std::unique_ptr<StageLoader::Fetched>> StageLoader::Fetch(
    ModelProvider& provider, const v1::Assignment& assignment, Progress& progress) {
  auto fetched = std::make_unique<Fetched>();
  LC_ASSIGN_OR_RETURN(fetched->source, provider.Open(assignment));
  const model::ModelFiles& files = fetched->source->files();
  LC_ASSIGN_OR_RETURN(fetched->config, model::ReadModelConfig(files.metadata(), files.tensors()));
  LC_ASSIGN_OR_RETURN(fetched->limits, LimitsForModel(assignment, fetched->config));
  LC_ASSIGN_OR_RETURN(fetched->plan,
                      model::PlanWeights(fetched->config, files.tensors(),
                                         static_cast<uint32_t>(assignment.layer_first()),
                                         static_cast<uint32_t>(assignment.layer_end())));
  progress.total = fetched->plan.total_bytes;
  LC_ASSIGN_OR_RETURN(fetched->tensors, FetchTensors(*fetched->source, fetched->plan,
                                                     [&progress](uint64_t done, uint64_t total) {
                                                       progress.total = total;
                                                       progress.loaded = done;
                                                       return !progress.stop;
                                                     }));
  return fetched;
}

void StageLoader::ArmProgressTimer() {
  progress_timer_ = context_.timers->At(context_.clock->Now() + kProgressInterval, [this] {
    progress_timer_ = base::TimerId::kNone;
    OnProgressTimer();
  });
}

void StageLoader::CancelProgressTimer() {
  if (progress_timer_ != base::TimerId::kNone) {
    context_.timers->Cancel(std::exchange(progress_timer_, base::TimerId::kNone));
  }
}

void StageLoader::OnProgressTimer() {
  const base::Instant now = context_.clock->Now();
  const uint64_t loaded = progress_->loaded;
  if (loaded != reported_bytes_) {
    reported_bytes_ = loaded;
    last_progress_ = now;
    callbacks_.on_progress(loaded, progress_->total);
  } else if (now - last_progress_ > context_.silence) {
    Finish(absl::DeadlineExceededError(absl::StrCat(
        "loading stood still for ", absl::FormatDuration(now - last_progress_), " at ", loaded,
        " of ", progress_->total.load(), " bytes; the disk or the link to the coordinator hangs")));
    return;
  }
  if (!over_) ArmProgressTimer();
}

void StageLoader::Finish(absl::StatusOr<MadeStage> result) {
  over_ = true;
  CancelProgressTimer();
  callbacks_.on_done(std::move(result));
}

void StageLoader::OnFetched(absl::StatusOr<std::unique_ptr<Fetched>> fetched) {
  fetching_ = false;
  if (over_) return;
  if (!fetched.ok()) {
    Finish(fetched.status());
    return;
  }
  CancelProgressTimer();
  fetched_ = *std::move(fetched);
  callbacks_.on_progress(fetched_->plan.total_bytes, fetched_->plan.total_bytes);
  if (over_) return;
  builder_ = std::make_unique<WeightBuilder>(fetched_->config, fetched_->plan,
                                             std::move(fetched_->tensors),
                                             std::move(fetched_->source), *context_.ops);
  BuildWeights();
}

void StageLoader::BuildWeights() {
  if (over_) return;
  const absl::StatusOr<bool> done = builder_->Step();
  if (!done.ok()) {
    Finish(done.status());
  } else if (*done) {
    MakeStage();
  } else if (!context_.step_thread->Post([this, alive = alive_] {
               if (*alive) BuildWeights();
             })) {
    Finish(absl::ResourceExhaustedError("the step thread's queue is full"));
  }
}

void StageLoader::MakeStage() {
  struct Making {
    model::ModelConfig config;
    StageWeights weights;
    MadeStage made;
  };
  // Shared by the two halves of one piece of work.
  auto making = std::make_shared<Making>();
  making->config = fetched_->config;
  making->made.limits = fetched_->limits;
  making->weights = builder_->Take();
  builder_.reset();
  making_stage_ = true;
  // As work of the device, because making gigabytes of memory ready takes seconds on a CPU, and
  // heartbeats must go on.
  context_.device->Submit(
      [making, kv_type = *kv_type_, device = context_.device, ops = context_.ops,
       clock = context_.clock]() -> absl::Status {
        LC_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                            Stage::Create(*device, *ops, making->config, std::move(making->weights),
                                          making->made.limits, kv_type));
        making->made.weight_bytes = stage->weight_bytes();
        making->made.kv_bytes = stage->kv_bytes();
        making->made.buffer_bytes = stage->buffer_bytes();
        making->made.host_kv_bytes = stage->host_kv_bytes();
        LC_ASSIGN_OR_RETURN(making->made.host_copy_gigabytes_per_second,
                            stage->MeasureHostCopies(*clock));
        making->made.stage = std::move(stage);
        return absl::OkStatus();
      },
      [this, alive = alive_, making](absl::Status status) {
        if (!*alive) return;
        making_stage_ = false;
        if (over_) {
          callbacks_.on_drained();
        } else if (status.ok()) {
          Finish(std::move(making->made));
        } else {
          Finish(std::move(status));
        }
      });
}

std::unique_ptr<StageMaker> StageLoaderFactory::NewMaker(const v1::Assignment& assignment,
                                                         StageMaker::Callbacks callbacks) {
  return std::make_unique<StageLoader>(context_, assignment, std::move(callbacks));
}

}  // namespace layercake::stage_worker
