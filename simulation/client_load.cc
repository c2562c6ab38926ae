#include "simulation/client_load.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace layercake::simulation {
namespace {

int Uniform(base::Random& random, const TokenRange& range) {
  return range.least + static_cast<int>(random.Below(static_cast<uint64_t>(range.most) -
                                                     static_cast<uint64_t>(range.least) + 1));
}

int LogUniform(base::Random& random, const TokenRange& range) {
  const double ratio = static_cast<double>(range.most) / range.least;
  const auto drawn = static_cast<int>(std::lround(range.least * std::pow(ratio, random.Unit())));
  return std::clamp(drawn, range.least, range.most);
}

}  // namespace

ClientLoad::ClientLoad(const ClientLoadOptions& options)
    : options_(options),
      random_(options.seed),
      common_(RandomTokens(random_, options.prompt.most)) {}

SimRequest ClientLoad::Ask(double at) {
  const int length = LogUniform(random_, options_.prompt);
  const auto shared = static_cast<int>(options_.shared_prefix * length);
  std::vector<int32_t> prompt(common_.begin(), common_.begin() + shared);
  const std::vector<int32_t> own = RandomTokens(random_, length - shared);
  prompt.insert(prompt.end(), own.begin(), own.end());
  SimRequest request;
  request.at = at;
  request.request = SimPrompt(std::move(prompt), Uniform(random_, options_.output), random_.Next());
  return request;
}

std::vector<SimRequest> ClientLoad::First() {
  std::vector<SimRequest> requests;
  for (int i = 0; i < options_.streams; ++i) requests.push_back(Ask(0));
  if (options_.streams > 0) return requests;
  double at = 0;
  for (;;) {
    at -= std::log(1 - random_.Unit()) / options_.rate;
    if (at > options_.seconds) return requests;
    requests.push_back(Ask(at));
  }
}

std::optional<SimRequest> ClientLoad::Next(double now) {
  if (options_.streams == 0 || now >= options_.seconds) return std::nullopt;
  return Ask(now);
}

}  // namespace layercake::simulation
