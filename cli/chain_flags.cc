#include "cli/chain_flags.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/device_memory.h"
#include "kernels/cuda_backend.h"
#include "proto/kv_cache_type.h"

namespace layercake::cli {
namespace {

// Twice the worker's share of the cores: stages take turns while few streams run, and a worker that
// waits leaves its cores to the others.
int ThreadsPerWorker(int cores, int stages) {
  const int share = std::max(1, (cores + stages - 1) / stages);
  return std::min(cores, 2 * share);
}

constexpr int kMaxStages = 1024;

}  // namespace

int RangesIn(const std::string& layers) {
  if (layers.empty()) return 0;
  return 1 + static_cast<int>(std::count(layers.begin(), layers.end(), ','));
}

void AddCutFlags(FlagTable& table, coordinator::CoordinatorProcessOptions* options) {
  table.Text("--layers", &options->layers,
             "Layers of each stage, as in 0-9,10-29 (default: balanced by bytes)");
  table.Integer("--context", &options->context_tokens, 0, 1 << 24,
                "Tokens of one sequence, prompt and answer (default: the model's, at most 4096)");
  table.Choice("--kv-type", &options->kv_type, KvCacheTypeNames(),
               "Type of the KV cache; q8_0 takes half of f16 (default f16)");
  table.Integer("--kv-blocks", &options->kv_blocks, 0, 1 << 24,
                "Blocks of the KV cache (default: what fits a GPU, else four full contexts)");
  table.Bytes("--kv-memory", &options->kv_memory_bytes,
              "Instead: memory of each stage for its KV cache, as in 16G");
  table.Integer("--max-sequences", &options->max_sequences, 1, 4096,
                "Sequences running at once (default 64)");
  table.Integer("--max-rows", &options->max_rows, 0, 4096,
                "Rows of one micro-batch (default: 2048 where a GPU's memory is known, else 256)");
  table.Integer("--prefill-rows", &options->prefill_rows, 0, 4096,
                "Prompt rows of one micro-batch (default: all)");
  table.Integer(
      "--max-in-flight", &options->max_in_flight, 0, 1020,
      "Micro-batches in flight, at most (default: stages + 1, on cpu no more than cores)");
}

void AddChainFlags(FlagTable& table, ChainFlags* flags) {
  coordinator::CoordinatorProcessOptions* options = &flags->coordinator;
  table.OptionalInteger("--stages", &flags->stages, 1, kMaxStages,
                        "Stage workers, each with its own layers (default 1)");
  table.List("--devices", &flags->devices,
             "Device of each stage, or one for all: cpu, cuda:0, cuda:GPU-<uuid>, cuda, auto "
             "(default cpu)");
  table.Choice("--transport", &options->transport,
               {"auto", "local", "cuda_ipc", "pinned_host", "ucx", "require:cuda_ipc",
                "require:pinned_host", "require:ucx"},
               "How activations travel between stages");
  table.Integer("--threads", &flags->threads, 0, 4096,
                "Threads of each worker (default: the cores, shared out)");
  AddCutFlags(table, options);
  table.Bytes("--kv-host-memory", &options->kv_host_memory_bytes,
              "Host memory of each stage, as in 4G, that sequences out of KV blocks are copied to "
              "where that is faster than computing them again (default 0: computed again)");
  table.Switch("--run-ahead", &options->run_ahead,
               "Plan a stream's next step before its token has come back, where all workers can "
               "(default on)");
  table.Duration("--worker-wait", &options->worker_wait, "For all workers to dial in");
  table.Duration("--load-silence", &options->load_silence,
                 "A loading stage that makes no progress for so long has failed");
  table.Duration("--connect-timeout", &options->connect_timeout, "For neighbours to connect");
  table.Duration("--step-timeout", &options->step_timeout, "For one micro-batch on one stage");
}

void AddOwnWorkerFlags(FlagTable& table, ChainFlags* flags) {
  table.Switch("--deterministic", &flags->deterministic,
               "On GPUs: a row's bits are the same in a micro-batch of any size; prompts take "
               "several times as long");
}

void AddServingFlags(FlagTable& table, ChainFlags* flags) {
  coordinator::CoordinatorProcessOptions* options = &flags->coordinator;
  table.Text("--listen", &options->server.clients.address, "Address for clients, host:port");
  table.ReadFromVariable("LAYERCAKE_GRPC_LISTEN");
  table.Text("--model-name", &options->model_name, "Name that clients see");
  table.Integer("--max-queued", &options->max_queued, 0, 1 << 20, "Requests waiting");
  table.Integer("--max-output-tokens", &options->max_output_tokens, 0, 1 << 24,
                "Ceiling of one answer (default: none)");
  table.Duration("--shutdown-grace", &options->shutdown_grace,
                 "For running requests when the server ends");
  table.Text("--tls-certificate", &options->server.clients.tls.certificate,
             "PEM file; with --tls-key and --tls-authority: mutual TLS");
  table.Text("--tls-key", &options->server.clients.tls.key, "PEM file");
  table.Text("--tls-authority", &options->server.clients.tls.authority,
             "PEM file: who signs the clients' certificates");
  table.Switch("--insecure", &options->server.clients.insecure,
               "Listen beyond loopback without TLS: anybody who reaches the port may ask");
}

absl::StatusOr<ChainOptions> MakeChainOptions(const ChainFlags& flags, std::string model_path,
                                              int usable_cores) {
  const int ranges = RangesIn(flags.coordinator.layers);
  const int devices = static_cast<int>(flags.devices.size());
  const int stages = flags.stages ? *flags.stages : std::max({1, ranges, devices});
  if (ranges != 0 && ranges != stages) {
    return absl::InvalidArgumentError(absl::StrCat("--layers ", flags.coordinator.layers, " gives ",
                                                   ranges, " stages, but there ", "are ", stages,
                                                   "; give as many ranges as stages"));
  }
  if (devices > 1 && devices != stages) {
    return absl::InvalidArgumentError(absl::StrCat("--devices names ", devices, " devices for ",
                                                   stages, " stages; give one, or one for each"));
  }
  if (flags.coordinator.transport == "local" && stages > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport local joins stages inside one process, but each of the ", stages,
                     " stages is a process of its own; use pinned_host on one machine"));
  }
  ChainOptions options{.coordinator = flags.coordinator,
                       .devices = flags.devices,
                       .threads = flags.threads,
                       .deterministic = flags.deterministic,
                       .log_level = flags.log_level};
  options.coordinator.model_path = std::move(model_path);
  options.coordinator.stages = stages;
  const std::string device = devices == 0 ? "cpu" : flags.devices.front();
  if (devices <= 1) options.devices.assign(static_cast<size_t>(stages), device);
  // Asking for the cards starts the driver: not where all stages are on the CPU.
  if (std::any_of(options.devices.begin(), options.devices.end(),
                  [](const std::string& name) { return name != "cpu"; })) {
    const auto cards = kernels::ListCudaDevices();
    if (cards.ok()) {
      options.coordinator.stage_memory_bytes =
          StageMemoryBytes(options.devices, *cards, SettledFreeBytes);
      options.coordinator.stage_device_bytes =
          StageMemoryBytes(options.devices, *cards,
                           [](const kernels::CudaDeviceFacts& card) { return card.total_bytes; });
    }
  }
  if (options.threads == 0) options.threads = ThreadsPerWorker(usable_cores, stages);
  // Micro-batches that no core is left for only read the weights once more each.
  const bool on_cpu = std::all_of(options.devices.begin(), options.devices.end(),
                                  [](const std::string& name) { return name == "cpu"; });
  if (options.coordinator.max_in_flight == 0 && on_cpu && usable_cores <= stages) {
    options.coordinator.max_in_flight = usable_cores;
  }
  return options;
}

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

}  // namespace layercake::cli
