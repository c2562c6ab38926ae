#include "cli/bench_loads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace layercake::cli {

void LoadPeak::Note(const v1::GetLoadsResponse& loads) {
  if (loads.queued() == 0) return;
  loads_.set_queued(std::max(loads_.queued(), loads.queued()));
  loads_.set_running(std::max(loads_.running(), loads.running()));
  loads_.set_kv_blocks_used(std::max(loads_.kv_blocks_used(), loads.kv_blocks_used()));
  loads_.set_kv_blocks_total(loads.kv_blocks_total());
}

std::string WhyNotTogether(int streams, const LoadPeak& peak) {
  const std::string what =
      absl::StrCat("of ", streams, " streams the first had ended before the last began");
  const v1::GetLoadsResponse& loads = peak.loads();
  if (loads.queued() == 0) {
    return absl::StrCat(what, "; measure fewer (--npl) or longer answers (--ntg)");
  }
  const std::string waited =
      absl::StrCat(what, ": ", loads.queued(), " requests waited while ", loads.running(), " ran");
  // A request is let in when all of its prompt fits; beside that the cache is never quite full.
  const bool cache_full =
      int64_t{loads.kv_blocks_used()} * 4 >= int64_t{loads.kv_blocks_total()} * 3;
  if (cache_full) {
    return absl::StrCat(waited, ", with ", loads.kv_blocks_used(), " of the ",
                        loads.kv_blocks_total(),
                        " blocks of the KV cache in use; it is too small for so many: give it more "
                        "memory (--kv-memory, --kv-type q8_0), or measure fewer (--npl) or shorter "
                        "streams (--npp, --ntg)");
  }
  return absl::StrCat(waited,
                      ", with room in the KV cache; let more run at once "
                      "(--max-sequences), or measure fewer (--npl)");
}

}  // namespace layercake::cli
