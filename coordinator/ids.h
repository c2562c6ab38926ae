// Ids of the coordinator's nouns, each its own type.
#pragma once

#include <cstdint>

namespace layercake::coordinator {

enum class SequenceId : uint64_t {};
enum class BlockId : uint32_t {};
enum class StepId : uint64_t {};

}  // namespace layercake::coordinator
