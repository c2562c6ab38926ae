// The goldens of tests/reference, and the real model that some of them belong to.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace layercake::testing {

inline std::string GoldenPath(const std::string& name) {
  return std::string(LAYERCAKE_SOURCE_DIR "/tests/reference/goldens/") + name;
}

inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file(GoldenPath(name));
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

// Base64 of little-endian float32.
inline std::vector<float> DecodeFloats(const std::string& base64) {
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) return {};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// SmolLM2-135M-Instruct Q4_1, where tests/run.sh or the quickstart have put it; empty when absent.
inline std::string SmolLm2Path() {
  if (const char* given = std::getenv("LAYERCAKE_TEST_MODEL")) return given;
  std::filesystem::path cache;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') {
    cache = xdg;
  } else if (const char* home = std::getenv("HOME")) {
    cache = std::filesystem::path(home) / ".cache";
  }
  const auto path = cache / "layercake/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path.string() : std::string();
}

}  // namespace layercake::testing
