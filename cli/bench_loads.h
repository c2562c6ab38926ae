// What a server's load says of streams that did not run side by side. Pure.
#pragma once

#include <string>

#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

// The most of each, over the answers of GetLoads that were noted while requests waited.
class LoadPeak {
 public:
  void Note(const v1::GetLoadsResponse& loads);
  const v1::GetLoadsResponse& loads() const { return loads_; }

 private:
  v1::GetLoadsResponse loads_;
};

// For people: that of so many streams the first had ended before the last began, why, and what to
// do about it.
std::string WhyNotTogether(int streams, const LoadPeak& peak);

}  // namespace layercake::cli
