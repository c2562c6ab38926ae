// `layercake bench`: how fast a chain reads prompts and writes answers, by the number of parallel
// streams, as its clients see it.
//
// Reading and writing are measured apart: first every stream asks for one token of its prompt, then
// for the whole answer, with its prompt in the prefix cache. So all streams write side by side from
// the start, as in the benches of others, and no prompt is read in between.
//
// What the stages did meanwhile comes from GetStatus (bench_stages.h).
#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "cli/bench_loads.h"
#include "cli/bench_stages.h"
#include "cli/chain_flags.h"
#include "cli/chain_session.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/logging.h"
#include "cli/pause.h"
#include "cli/server_flags.h"
#include "nlohmann/json.hpp"

namespace layercake::cli {
namespace {

constexpr int kWarmUpTokens = 4;  // --ntg is at least that

struct BenchFlags {
  std::string model;
  ServerFlags server;
  ChainFlags chain;
  int npp = 128;
  int ntg = 64;
  std::vector<int> npl = {1, 2, 4, 8};
  bool jsonl = false;
};

// One stream as its client saw it: when how many tokens arrived.
struct Stream {
  struct Arrival {
    base::Instant when;
    int tokens = 0;
  };
  std::vector<Arrival> arrivals;
  absl::Status status;
};

struct Figures {
  int streams = 0;
  double prefill_seconds = 0;  // from the first question until every stream has its first token
  double prefill_tokens_per_second = 0;
  double decode_seconds = 0;  // while every stream writes
  double decode_tokens_per_second = 0;
  double step_milliseconds = 0;      // of a round: every stream's next token
  std::vector<StageFigures> stages;  // while streams write
};

v1::GenerateRequest MakeRequest(const BenchFlags& flags, int vocabulary, base::Random& random) {
  v1::GenerateRequest request;
  for (int i = 0; i < flags.npp; ++i) {
    request.mutable_tokens()->add_ids(
        static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary))));
  }
  request.mutable_sampling()->set_temperature(0);
  request.set_ignore_end_of_generation(true);
  request.set_use_prefix_cache(true);
  return request;
}

void RunStream(const v1::GenerateRequest& request, InferenceClient& client,
               const base::Clock& clock, Stream& stream) {
  stream.status = client.Generate(request, [&](const v1::GenerateResponse& event) {
    if (!event.has_delta() || event.delta().token_ids().empty()) return;
    stream.arrivals.push_back({.when = clock.Now(), .tokens = event.delta().token_ids_size()});
  });
  if (stream.status.ok() && stream.arrivals.empty()) {
    stream.status = absl::InternalError("an answer without any token");
  }
}

// Every request with `max_tokens`, at once.
absl::StatusOr<std::vector<Stream>> RunStreams(std::vector<v1::GenerateRequest>& requests,
                                               int max_tokens, InferenceClient& client,
                                               const base::Clock& clock) {
  std::vector<Stream> streams(requests.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].set_max_tokens(max_tokens);
      threads.emplace_back([&, i] { RunStream(requests[i], client, clock, streams[i]); });
    }
  }
  for (const Stream& stream : streams) LC_RETURN_IF_ERROR(stream.status);
  return streams;
}

// Asks for the server's load now and then, on a thread of its own.
class LoadWatch {
 public:
  explicit LoadWatch(InferenceClient& client)
      : thread_([this, &client](const std::stop_token& stop) {
          const base::SystemClock clock;
          // Asked after the pause: short measurements are left alone.
          while (Pause(clock, kAskEvery).ok() && !stop.stop_requested()) {
            const absl::StatusOr<v1::GetLoadsResponse> loads = client.GetLoads();
            if (!loads.ok()) return;  // what ails the server ends the streams too
            peak_.Note(*loads);
          }
        }) {}

  // Ends the watch.
  const LoadPeak& Peak() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  static constexpr absl::Duration kAskEvery = absl::Milliseconds(100);
  LoadPeak peak_;  // the thread's until it has ended
  std::jthread thread_;
};

// From the last first token to the first last one: all streams write.
absl::Status SummariseDecode(const std::vector<Stream>& streams, const LoadPeak& peak,
                             Figures& figures) {
  base::Instant began = streams.front().arrivals.front().when;
  base::Instant ended = streams.front().arrivals.back().when;
  for (const Stream& stream : streams) {
    began = std::max(began, stream.arrivals.front().when);
    ended = std::min(ended, stream.arrivals.back().when);
  }
  if (began >= ended) {
    return absl::FailedPreconditionError(WhyNotTogether(static_cast<int>(streams.size()), peak));
  }
  int tokens = 0;
  for (const Stream& stream : streams) {
    for (const Stream::Arrival& arrival : stream.arrivals) {
      if (arrival.when > began && arrival.when <= ended) tokens += arrival.tokens;
    }
  }
  figures.decode_seconds = absl::ToDoubleSeconds(ended - began);
  figures.decode_tokens_per_second = tokens / figures.decode_seconds;
  figures.step_milliseconds =
      1e3 * static_cast<double>(streams.size()) / figures.decode_tokens_per_second;
  return absl::OkStatus();
}

// Asks until every stage has reported what it did before now. Workers report every second; after
// kReportWait what is known has to do.
absl::StatusOr<v1::GetStatusResponse> FreshStatus(InferenceClient& client,
                                                  const base::SystemClock& clock) {
  constexpr absl::Duration kReportWait = absl::Seconds(5);
  constexpr absl::Duration kAskEvery = absl::Milliseconds(50);
  const base::Instant began = clock.Now();
  for (;;) {
    const absl::Duration waited = clock.Now() - began;
    LC_ASSIGN_OR_RETURN(v1::GetStatusResponse status, client.GetStatus());
    if (AllReportedWithin(status, absl::ToDoubleSeconds(waited)) || waited > kReportWait) {
      return status;
    }
    LC_RETURN_IF_ERROR(Pause(clock, kAskEvery));
  }
}

absl::StatusOr<Figures> Measure(const BenchFlags& flags, int stream_count, int vocabulary,
                                InferenceClient& client, base::Random& random) {
  const base::SystemClock clock;
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < stream_count; ++i) {
    requests.push_back(MakeRequest(flags, vocabulary, random));
  }
  Figures figures;
  figures.streams = stream_count;
  const base::Instant started = clock.Now();
  LC_ASSIGN_OR_RETURN(const std::vector<Stream> first_tokens,
                      RunStreams(requests, 1, client, clock));
  base::Instant all_read = started;
  for (const Stream& stream : first_tokens) {
    all_read = std::max(all_read, stream.arrivals.front().when);
  }
  figures.prefill_seconds = absl::ToDoubleSeconds(all_read - started);
  figures.prefill_tokens_per_second =
      static_cast<double>(stream_count) * flags.npp / figures.prefill_seconds;
  LC_ASSIGN_OR_RETURN(const v1::GetStatusResponse before, FreshStatus(client, clock));
  const base::Instant asked = clock.Now();
  LoadWatch watch(client);
  LC_ASSIGN_OR_RETURN(const std::vector<Stream> answers,
                      RunStreams(requests, flags.ntg, client, clock));
  const double seconds = absl::ToDoubleSeconds(clock.Now() - asked);
  LC_ASSIGN_OR_RETURN(const v1::GetStatusResponse after, FreshStatus(client, clock));
  LC_RETURN_IF_ERROR(SummariseDecode(answers, watch.Peak(), figures));
  figures.stages = StageFiguresBetween(before, after, seconds);
  return figures;
}

nlohmann::ordered_json ToJson(const StageFigures& stage) {
  return {{"stage", stage.stage},
          {"busy", stage.busy},
          {"step_milliseconds", stage.step_milliseconds},
          {"weight_gigabytes_per_second", stage.weight_gigabytes_per_second},
          {"share_of_copy_speed", stage.copy_share},
          {"hop_microseconds", stage.hop_microseconds},
          {"hop_gigabytes_per_second", stage.hop_gigabytes_per_second},
          {"transport", stage.transport},
          {"weight_bytes", stage.weight_bytes},
          {"kv_bytes", stage.kv_bytes},
          {"buffer_bytes", stage.buffer_bytes}};
}

void Print(const BenchFlags& flags, const v1::GetModelResponse& model, const Figures& figures) {
  std::vector<std::string> busy;
  nlohmann::ordered_json shares = nlohmann::ordered_json::array();
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageFigures& stage : figures.stages) {
    busy.push_back(absl::StrFormat("%.0f%%", stage.busy * 100));
    shares.push_back(stage.busy);
    stages.push_back(ToJson(stage));
  }
  std::ostream& table = flags.jsonl ? std::cerr : std::cout;
  table << absl::StrFormat("%7d  %9.1f  %9.1f  %9.2f  %9.2f  %7.2f  %s", figures.streams,
                           figures.prefill_tokens_per_second, figures.decode_tokens_per_second,
                           figures.prefill_seconds, figures.decode_seconds,
                           figures.step_milliseconds, absl::StrJoin(busy, " "))
        << std::endl;
  if (!flags.jsonl) return;
  const nlohmann::ordered_json line = {
      {"model", model.name()},
      {"stages", figures.stages.size()},
      {"streams", figures.streams},
      {"prompt_tokens", flags.npp},
      {"output_tokens", flags.ntg},
      {"prefill_tokens_per_second", figures.prefill_tokens_per_second},
      {"decode_tokens_per_second", figures.decode_tokens_per_second},
      {"prefill_seconds", figures.prefill_seconds},
      {"decode_seconds", figures.decode_seconds},
      {"step_milliseconds", figures.step_milliseconds},
      {"busy", shares},
      {"stage_figures", stages}};
  std::cout << line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
}

absl::Status MeasureAll(const BenchFlags& flags, InferenceClient& client) {
  LC_ASSIGN_OR_RETURN(const v1::GetModelResponse model, client.GetModel());
  if (model.vocabulary_size() <= 0) {
    return absl::FailedPreconditionError("the server does not say how large its vocabulary is");
  }
  // Prompts of their own in every run: a server that goes on may still hold those of the last.
  base::SeededRandom random(base::EntropySeed());
  // Memory is touched and threads are started by the first request. How it went does not count.
  std::vector<v1::GenerateRequest> warm_up = {MakeRequest(flags, model.vocabulary_size(), random)};
  LC_RETURN_IF_ERROR(RunStreams(warm_up, kWarmUpTokens, client, base::SystemClock()).status());
  (flags.jsonl ? std::cerr : std::cout)
      << model.name() << ", prompts of " << flags.npp << " tokens, answers of " << flags.ntg
      << "; tokens/s over all streams\n"
      << absl::StrFormat("%7s  %9s  %9s  %9s  %9s  %7s  %s\n", "streams", "prefill/s", "decode/s",
                         "prefill s", "decode s", "step ms", "busy share of each stage");
  std::string stages;
  for (const int streams : flags.npl) {
    LC_ASSIGN_OR_RETURN(const Figures figures,
                        Measure(flags, streams, model.vocabulary_size(), client, random));
    Print(flags, model, figures);
    absl::StrAppend(&stages, FormatStageFigures(streams, figures.stages));
  }
  (flags.jsonl ? std::cerr : std::cout) << "\nstages while streams write\n"
                                        << StageTableHeading() << stages << std::flush;
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int code) {
  std::cerr << "layercake bench: " << status.message() << "\n";
  return code;
}

int Bench(const BenchFlags& flags, const Environment& environment) {
  SetUpLogging("layercake", flags.chain.log_level, environment);
  int code = kExitOk;
  const auto session = MakeChainSession(flags.server, flags.chain, flags.model, environment, &code);
  if (!session.ok()) return Fail(session.status(), code);
  return RunOnChain(*session, environment,
                    {.run =
                         [&](InferenceClient& client) {
                           const absl::Status status = MeasureAll(flags, client);
                           return status.ok() ? kExitOk : Fail(status, kExitFailed);
                         },
                     .interrupt = {},
                     .stop = {}});
}

}  // namespace

void AddBenchCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<BenchFlags>();
  flags->chain.log_level = "warn";
  flags->chain.coordinator.server.clients.address = "127.0.0.1:0";
  flags->chain.coordinator.shutdown_grace = absl::ZeroDuration();
  FlagTable& table = program.Command(
      "bench", "Measure prefill, decoding and every stage by the number of parallel streams",
      [flags, &environment] { return Bench(*flags, environment); });
  table.Positional("MODEL", &flags->model, false,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]; not with --server");
  table.Integer("--npp", &flags->npp, 1, 1 << 20, "Tokens of each prompt (default 128)");
  table.Integer("--ntg", &flags->ntg, 4, 1 << 20, "Tokens of each answer (default 64)");
  table.IntegerList("--npl", &flags->npl, 1, 1024, "Parallel streams (default 1,2,4,8)");
  table.Switch("--jsonl", &flags->jsonl, "JSON lines on standard output, the table on the other");
  AddServerFlags(table, &flags->server, "Measure this running server, host:port");
  AddChainFlags(table, &flags->chain);
  AddOwnWorkerFlags(table, &flags->chain);
  AddLogFlag(table, &flags->chain.log_level);
}

}  // namespace layercake::cli
