#include "stage_worker/worker_process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/event_loop.h"
#include "base/numa_topology.h"
#include "base/posix_error.h"
#include "base/signal_watch.h"
#include "base/status_macros.h"
#include "base/thread_placement.h"
#include "base/unique_fd.h"
#include "kernels/copy_speed.h"
#include "kernels/cuda_backend.h"
#include "kernels/cuda_peer_memory.h"
#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "kernels/ops.h"
#include "proto/grpc_link.h"
#include "proto/protocol_version.h"
#include "spdlog/spdlog.h"
#include "stage_worker/loading_thread.h"
#include "stage_worker/model_provider.h"
#include "stage_worker/remote_model_source.h"
#include "stage_worker/stage_loader.h"
#include "stage_worker/worker.h"
#include "transport/cuda_ipc_channel.h"
#include "transport/host_identity.h"
#include "transport/pinned_host_channel.h"
#include "transport/ucx_channel.h"
#include "transport/ucx_worker.h"

namespace layercake::stage_worker {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// Several times the cache of any GPU; a card with less than kCopySpeedFreeBytes is not asked.
constexpr size_t kCopySpeedBytes = size_t{256} << 20;
constexpr uint64_t kCopySpeedFreeBytes = 4 * kCopySpeedBytes;

// Cores for each worker before its threads may stay awake: the step thread, the device's and those
// of gRPC and UCX, and one for everybody else.
constexpr double kCoresToPoll = 4;

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

uint64_t PhysicalMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page_bytes <= 0) return 0;
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
}

absl::Status CheckOptions(const WorkerProcessOptions& options) {
  if (options.coordinator.empty()) {
    return absl::InvalidArgumentError("no coordinator to dial: give its worker address, host:port");
  }
  LC_RETURN_IF_ERROR(kernels::ParseDeviceKind(options.device).status());
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, ", must be in [0, 1024]"));
  }
  if (options.connect_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the connect timeout must be positive");
  }
  if (options.numa != "auto" && options.numa != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("numa is \"", options.numa, "\", must be auto or off"));
  }
  if (options.poll != "auto" && options.poll != "on" && options.poll != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("poll is \"", options.poll, "\", must be auto, on or off"));
  }
  for (const std::string& name : options.transports) {
    LC_RETURN_IF_ERROR(transport::ParseTransportKind(name).status());
  }
  return absl::OkStatus();
}

// The threads of a process that wait for neighbours, together.
class WaitingThreads final : public base::EventPoll {
 public:
  // `ucx` is null where there is none.
  WaitingThreads(base::EventLoop& step_thread, transport::UcxWorker* ucx)
      : step_thread_(step_thread), ucx_(ucx) {}
  void PollUntil(base::Instant until) override {
    step_thread_.PollUntil(until);
    if (std::exchange(until_, until) != until && ucx_ != nullptr) ucx_->PollUntil(until);
  }

 private:
  base::EventLoop& step_thread_;
  transport::UcxWorker* const ucx_;
  base::Instant until_;
};

// Members stand in the order of construction: each uses those above it.
class WorkerProcess {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Create(const WorkerProcessOptions& options);

  absl::Status Run();
  bool abandoned() const { return worker_->abandoned(); }

 private:
  explicit WorkerProcess(const WorkerProcessOptions& options) : options_(options) {}

  absl::Status MakeDevice();
  absl::Status MakeCpuDevice();
  absl::Status MakeCudaDevice(const kernels::CudaDeviceFacts& facts);
  void PlaceNear(const kernels::CudaDeviceFacts& facts);
  void DecideToPoll(size_t devices);
  void MeasureCopies(uint64_t free_bytes);
  absl::Status WatchSignals();
  absl::Status WatchParent();
  absl::Status MakeFactories(transport::EndpointFacts& facts);
  transport::RegisterHostMemory MakePinning() const;
  absl::Status MakeWorker();
  void OnSignal();
  void OnParentPipe();

  const WorkerProcessOptions options_;
  base::SystemClock clock_;
  std::unique_ptr<base::SignalWatch> signals_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<kernels::PeerMemory> peer_memory_;  // of a CUDA device
  uint64_t device_memory_bytes_ = 0;
  double copy_gigabytes_per_second_ = 0;
  std::string placement_;
  bool poll_ = false;
  std::unique_ptr<transport::UcxWorker> ucx_;
  std::unique_ptr<WaitingThreads> waiting_threads_;  // null where nobody polls
  std::vector<std::unique_ptr<transport::ChannelFactory>> factories_;
  std::vector<transport::ChannelFactory*> factory_pointers_;
  std::unique_ptr<SessionDialer> dialer_;
  std::unique_ptr<ModelProvider> provider_;
  std::unique_ptr<LoadingThread> loading_;
  std::unique_ptr<StageLoaderFactory> stages_;
  std::unique_ptr<Worker> worker_;
  absl::Status result_;
};

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Create(
    const WorkerProcessOptions& options) {
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(options));
  LC_ASSIGN_OR_RETURN(process->loop_, base::EventLoop::Create(process->clock_));
  LC_RETURN_IF_ERROR(process->WatchSignals());
  LC_RETURN_IF_ERROR(process->WatchParent());
  LC_RETURN_IF_ERROR(process->MakeDevice());
  LC_RETURN_IF_ERROR(process->MakeWorker());
  return process;
}

absl::Status WorkerProcess::MakeDevice() {
  poll_ = options_.poll == "on";
  LC_ASSIGN_OR_RETURN(const kernels::DeviceKind kind, kernels::ParseDeviceKind(options_.device));
  if (kind == kernels::DeviceKind::kCpu) return MakeCpuDevice();
  const auto devices = kernels::ListCudaDevices();
  if (!devices.ok()) {
    if (kind == kernels::DeviceKind::kCuda) return devices.status();
    spdlog::info("device auto: cpu, because {}", std::string(devices.status().message()));
    return MakeCpuDevice();
  }
  LC_ASSIGN_OR_RETURN(
      const kernels::CudaDeviceFacts facts,
      kernels::ChooseCudaDevice(options_.device, options_.preferred_stage.value_or(0), *devices));
  if (options_.poll == "auto") DecideToPoll(devices->size());
  return MakeCudaDevice(facts);
}

// As if every GPU had a worker.
void WorkerProcess::DecideToPoll(size_t devices) {
  const absl::StatusOr<double> cores = base::UsableCpus();
  poll_ = cores.ok() && *cores >= kCoresToPoll * static_cast<double>(devices);
  spdlog::info("threads {}: {} cores, {} GPUs",
               poll_ ? "stay awake for what is about to come" : "sleep until something comes",
               cores.ok() ? absl::StrCat(*cores) : "unknown", devices);
}

absl::Status WorkerProcess::MakeCudaDevice(const kernels::CudaDeviceFacts& facts) {
  PlaceNear(facts);  // before the threads and the pinned memory that are to be there
  LC_ASSIGN_OR_RETURN(device_, kernels::CreateCudaDevice(facts, *loop_));
  LC_ASSIGN_OR_RETURN(ops_,
                      kernels::CreateCudaOps(*device_, {.deterministic = options_.deterministic}));
  if (options_.deterministic) spdlog::info("deterministic: prompts take several times as long");
  LC_ASSIGN_OR_RETURN(peer_memory_, kernels::CreateCudaPeerMemory(facts));
  device_memory_bytes_ = facts.total_bytes;
  LC_ASSIGN_OR_RETURN(const uint64_t free_bytes, kernels::FreeCudaBytes(*device_));
  spdlog::info("device {}: {} ({}), compute capability {}.{}, {} of {} MiB free", options_.device,
               facts.name, facts.uuid, facts.compute_major, facts.compute_minor, free_bytes >> 20,
               facts.total_bytes >> 20);
  MeasureCopies(free_bytes);
  return absl::OkStatus();
}

// Without it everything works too: whatever the machine refuses is a line of debugging.
void WorkerProcess::PlaceNear(const kernels::CudaDeviceFacts& facts) {
  if (options_.numa == "off") return;
  const absl::StatusOr<std::vector<int>> allowed = base::AllowedCpus();
  if (!allowed.ok()) {
    spdlog::debug("threads and memory where they are: {}", allowed.status().ToString());
    return;
  }
  const base::NumaChoice choice = base::ChooseNumaPlacement(
      absl::StrCat("cuda:", facts.index), base::ReadNumaFacts("/sys", facts.pci_bus_id), *allowed);
  if (!choice.placement.has_value()) {
    spdlog::debug("{}", choice.reason);
    return;
  }
  if (const absl::Status bound = base::RunOnCpus(choice.placement->cpus); !bound.ok()) {
    spdlog::debug("threads and memory where they are: {}", bound.ToString());
    return;
  }
  if (const absl::Status set = base::PreferMemoryOfNode(choice.placement->node); !set.ok()) {
    spdlog::debug("memory by first touch: {}", set.ToString());
  }
  placement_ = choice.reason;
  spdlog::info("{}", placement_);
}

void WorkerProcess::MeasureCopies(uint64_t free_bytes) {
  if (free_bytes < kCopySpeedFreeBytes) return;
  const absl::StatusOr<double> speed = kernels::MeasureCopySpeed(*device_, kCopySpeedBytes, clock_);
  if (!speed.ok()) {
    spdlog::debug("the speed of copies is not known: {}", speed.status().ToString());
    return;
  }
  copy_gigabytes_per_second_ = *speed;
}

absl::Status WorkerProcess::MakeCpuDevice() {
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const kernels::CpuDeviceOptions device = {.threads =
                                                options_.threads > 0 ? options_.threads : cores};
  LC_ASSIGN_OR_RETURN(device_, kernels::CreateCpuDevice(device, *loop_));
  LC_ASSIGN_OR_RETURN(ops_, kernels::CreateCpuOps(*device_));
  device_memory_bytes_ = PhysicalMemoryBytes();
  return absl::OkStatus();
}

absl::Status WorkerProcess::WatchSignals() {
  LC_ASSIGN_OR_RETURN(signals_, base::SignalWatch::Create({SIGTERM, SIGINT}));
  return loop_->Watch(signals_->fd(), [this] { OnSignal(); });
}

absl::Status WorkerProcess::WatchParent() {
  if (options_.parent_pipe_fd < 0) return absl::OkStatus();
  return loop_->Watch(options_.parent_pipe_fd, [this] { OnParentPipe(); });
}

transport::RegisterHostMemory WorkerProcess::MakePinning() const {
  if (peer_memory_ == nullptr) return {};
  return [memory = peer_memory_.get()](absl::Span<std::byte> pages) -> absl::StatusOr<base::Task> {
    absl::StatusOr<base::Task> undo = memory->PinHost(pages);
    if (undo.ok()) return undo;
    spdlog::warn("long activations will be copied slowly: {}", undo.status().ToString());
    return base::Task();
  };
}

absl::Status WorkerProcess::MakeFactories(transport::EndpointFacts& facts) {
  const auto wanted = [this](transport::TransportKind kind) {
    const absl::string_view name = transport::TransportKindName(kind);
    return std::find(options_.transports.begin(), options_.transports.end(), name) !=
           options_.transports.end();
  };
  LC_ASSIGN_OR_RETURN(facts.host, transport::ReadHostIdentity());
  facts.has_ucx = false;
  const bool device_slots = wanted(transport::TransportKind::kCudaIpc) && peer_memory_ != nullptr;
  if (device_slots || wanted(transport::TransportKind::kPinnedHost)) {
    const std::string folder =
        options_.socket_folder.empty() ? transport::DefaultSocketFolder() : options_.socket_folder;
    const absl::StatusOr<std::string> scope = transport::ReadSocketScope(folder);
    facts.on_cuda = scope.ok() && device_slots;
    if (facts.on_cuda) {
      factories_.push_back(
          std::make_unique<transport::CudaIpcChannelFactory>(*peer_memory_, folder));
    }
    if (!scope.ok()) {
      spdlog::warn("no channels in shared memory: {}", scope.status().ToString());
    } else {
      facts.socket_scope = *scope;
      if (wanted(transport::TransportKind::kPinnedHost)) {
        factories_.push_back(
            std::make_unique<transport::PinnedHostChannelFactory>(transport::PinnedHostOptions{
                .socket_folder = folder, .register_host_memory = MakePinning()}));
      }
    }
  }
  if (wanted(transport::TransportKind::kUcx)) {
    absl::StatusOr<std::unique_ptr<transport::UcxWorker>> ucx =
        transport::UcxWorker::Create(clock_, {.tls = options_.ucx_tls});
    if (ucx.ok()) {
      ucx_ = *std::move(ucx);
      facts.has_ucx = true;
      factories_.push_back(std::make_unique<transport::UcxChannelFactory>(*ucx_, MakePinning()));
    } else {
      spdlog::warn("no ucx channels: {}", ucx.status().ToString());
    }
  }
  for (const auto& factory : factories_) factory_pointers_.push_back(factory.get());
  return absl::OkStatus();
}

absl::Status WorkerProcess::MakeWorker() {
  WorkerOptions options;
  LC_RETURN_IF_ERROR(MakeFactories(options.facts));
  options.host_name = HostName();
  options.worker_id = options_.worker_id.empty() ? absl::StrCat(options.host_name, ":", getpid())
                                                 : options_.worker_id;
  options.coordinator = options_.coordinator;
  options.device_memory_bytes = device_memory_bytes_;
  options.copy_gigabytes_per_second = copy_gigabytes_per_second_;
  options.placement = placement_;
  options.preferred_stage = options_.preferred_stage;
  options.dial_timeout = options_.connect_timeout;

  const ChannelOptions channel = {.target = options_.coordinator,
                                  .tls = options_.tls,
                                  .max_message_bytes = kMaxControlMessageBytes};
  LC_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> grpc_channel, MakeChannel(channel));
  dialer_ = std::make_unique<SessionDialer>(std::move(grpc_channel));
  provider_ = std::make_unique<LocalFirstProvider>(
      options_.model_path, std::make_unique<RemoteModelProvider>(dialer_->stub()));
  LC_ASSIGN_OR_RETURN(loading_, LoadingThread::Create());
  stages_ =
      std::make_unique<StageLoaderFactory>(StageLoaderContext{.clock = &clock_,
                                                              .timers = loop_.get(),
                                                              .step_thread = loop_.get(),
                                                              .loading_thread = loading_.get(),
                                                              .device = device_.get(),
                                                              .ops = ops_.get(),
                                                              .provider = provider_.get()});
  WorkerEnvironment environment;
  environment.clock = &clock_;
  environment.timers = loop_.get();
  environment.executor = loop_.get();
  environment.watcher = loop_.get();
  if (poll_) waiting_threads_ = std::make_unique<WaitingThreads>(*loop_, ucx_.get());
  environment.poll = waiting_threads_.get();
  environment.device = device_.get();
  environment.stages = stages_.get();
  environment.factories = factory_pointers_;
  environment.dial = [this] { return dialer_->Connect(*loop_); };
  worker_ = std::make_unique<Worker>(std::move(options), std::move(environment),
                                     [this](absl::Status status) {
                                       result_ = std::move(status);
                                       loop_->Stop();
                                     });
  return absl::OkStatus();
}

void WorkerProcess::OnSignal() {
  for (const int number : signals_->Take()) {
    const bool interrupt = number == SIGINT;
    // At a terminal it is meant for the process that started this one.
    if (interrupt && options_.parent_pipe_fd >= 0) continue;
    worker_->RequestStop(interrupt ? "SIGINT" : "SIGTERM");
  }
}

void WorkerProcess::OnParentPipe() {
  std::array<char, 64> ignored;
  const ssize_t got = read(options_.parent_pipe_fd, ignored.data(), ignored.size());
  if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
  loop_->Unwatch(options_.parent_pipe_fd);
  spdlog::warn("the process that started this worker is gone");
  worker_->RequestStop("the process that started this worker is gone");
}

absl::Status WorkerProcess::Run() {
  worker_->Start();
  loop_->Run();
  return result_;
}

}  // namespace

int RunWorkerProcess(const WorkerProcessOptions& options) {
  if (const absl::Status checked = CheckOptions(options); !checked.ok()) {
    spdlog::error("{}", checked.ToString());
    return kExitUsage;
  }
  const absl::StatusOr<std::unique_ptr<WorkerProcess>> process = WorkerProcess::Create(options);
  if (!process.ok()) {
    spdlog::error("cannot start: {}", process.status().ToString());
    return kExitFailed;
  }
  const absl::Status result = (*process)->Run();
  if (!result.ok()) spdlog::error("{}", result.ToString());
  const int code = result.ok() ? kExitOk : kExitFailed;
  if ((*process)->abandoned()) {
    spdlog::default_logger()->flush();
    std::_Exit(code);
  }
  return code;
}

}  // namespace layercake::stage_worker
