// Numbers and states as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

// "512 B", "1.5 KiB", "98.4 MiB": powers of 1024, three digits.
std::string FormatBytes(uint64_t bytes);

// "waiting for workers", "loading", ...
std::string FormatState(v1::ChainState state);

// The chain as a table, one line for each stage, and the reason of a failure below it.
std::string FormatChain(const v1::GetStatusResponse& status);

// "42 tokens in 1.2 s: 35.1 tokens/s; prompt 20 tokens: 180 tokens/s". Rates of nothing or of no
// time are left out.
std::string FormatUsage(const v1::Usage& usage, const v1::Timings& timings);

}  // namespace layercake::cli
