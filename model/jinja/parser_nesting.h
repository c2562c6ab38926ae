// Counts one level of nesting while the parser is inside it.
#pragma once

#include "model/jinja/parser.h"

namespace layercake::model::jinja {

class Parser::Nesting {
 public:
  explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.nesting_; }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

  absl::Status Check() const {
    return parser_.nesting_ > parser_.max_nesting_ ? parser_.NestingError() : absl::OkStatus();
  }

 private:
  Parser& parser_;
};

}  // namespace layercake::model::jinja
