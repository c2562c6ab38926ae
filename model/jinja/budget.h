// What one rendering may spend. Every evaluated node, loop step and 16 bytes of text or of anything
// else that is made cost one operation, so this bounds time and memory together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "model/jinja/error.h"

namespace layercake::model::jinja {

class Budget {
 public:
  Budget(uint64_t max_operations, size_t max_text_bytes)
      : max_operations_(max_operations), left_(max_operations), max_text_bytes_(max_text_bytes) {}

  absl::Status Charge(uint64_t operations) {
    if (operations > left_) [[unlikely]] {
      left_ = 0;
      return Invalid("the chat template needs more than max_operations=", max_operations_,
                     " operations: shorten the conversation or raise the limit");
    }
    left_ -= operations;
    return absl::OkStatus();
  }

  // Pays for something already made: when that was too much, the next Charge says so.
  void Spend(uint64_t operations) { left_ -= operations < left_ ? operations : left_; }

  // Pays for producing or searching `bytes` of text.
  absl::Status ChargeText(size_t bytes) { return Charge(1 + bytes / 16); }

  // Checks the size of one string before it is made.
  absl::Status CheckSize(size_t bytes) const {
    if (bytes > max_text_bytes_) [[unlikely]] {
      return Invalid("the chat template makes a text of more than max_output_bytes=",
                     max_text_bytes_, " bytes: shorten the conversation or raise the limit");
    }
    return absl::OkStatus();
  }

  // Both.
  absl::Status ChargeString(size_t bytes) {
    const absl::Status size = CheckSize(bytes);
    return size.ok() ? ChargeText(bytes) : size;
  }

 private:
  uint64_t max_operations_;
  uint64_t left_;
  size_t max_text_bytes_;
};

}  // namespace layercake::model::jinja
