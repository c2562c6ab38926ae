#include "cli/logging.h"

#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace layercake::cli {

void AddLogFlag(FlagTable& table, std::string* level) {
  table.Choice("--log-level", level, {"trace", "debug", "info", "warn", "error", "off"},
               "Least severe log line on standard error");
}

void SetUpLogging(const std::string& program, const std::string& level,
                  const Environment& environment) {
  const bool colour = WantsDecoration(environment, isatty(STDERR_FILENO) == 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
      colour ? spdlog::color_mode::always : spdlog::color_mode::never);
  auto logger = std::make_shared<spdlog::logger>(program, std::move(sink));
  logger->set_pattern(absl::StrCat("%Y-%m-%dT%H:%M:%S.%e %^%l%$ ", program, ": %v"));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace layercake::cli
