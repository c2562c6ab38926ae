// What a simulated run says of the service: rates, waits, how busy the stages were. Pure.
#pragma once

#include <vector>

#include "simulation/simulation.h"

namespace layercake::simulation {

struct Figures {
  double tokens_per_second = 0;
  double requests_per_second = 0;  // that ended
  // Seconds from the request to its first token, of requests that came in the time; and between
  // tokens of one request, of tokens that came in it.
  double first_p50 = 0, first_p99 = 0;
  double gap_p50 = 0, gap_p95 = 0, gap_p99 = 0;
  std::vector<double> busy;  // share of the time, of each stage
  double kv_share = 0;       // of the KV blocks, on average
  double kv_peak_share = 0;  // over the whole run
  int64_t failed = 0;        // requests that ended with an error, at any time
  int64_t waiting = 0;       // of those that came before `end`, without a token then
};

// Between `begin` and `end` seconds; the run was made with that window.
Figures FiguresOf(const SimReport& report, int kv_blocks, double begin, double end);

// Seconds between a request's tokens that came between `begin` and `end`, over all requests; and to
// the first token of those that were asked for then.
std::vector<double> TokenGaps(const SimReport& report, double begin, double end);
std::vector<double> FirstTokenTimes(const SimReport& report, double begin, double end);

// The value below which `share` of the values lie; 0 without values.
double Percentile(std::vector<double> values, double share);

}  // namespace layercake::simulation
