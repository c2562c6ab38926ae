#include "stage_worker/plan_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  layercake::stage_worker::RunPlanFuzz(bytes, size);
  return 0;
}
