#include <cstdint>
#include <string>

#include "base/random.h"
#include "gtest/gtest.h"
#include "transport/frame.h"
#include "transport/offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace layercake::transport {
namespace {

// The fuzz target itself, on good inputs with a few bytes changed.
TEST(FrameFuzz, OutlastsMutatedFramesAndOffers) {
  const auto frame = EncodeFrameHeader({});
  const std::string offer = EncodeOffer({.kind = TransportKind::kUcx,
                                         .ring = {},
                                         .geometry = {.plan_slots = 1,
                                                      .plan_slot_bytes = 1,
                                                      .activation_slots = 1,
                                                      .activation_slot_bytes = 1},
                                         .secret = {},
                                         .body = "body"});
  base::SeededRandom random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string input =
        i % 2 == 0 ? std::string(reinterpret_cast<const char*>(frame.data()), frame.size()) : offer;
    for (uint64_t changes = random.Below(4); changes > 0; --changes) {
      input[random.Below(input.size())] = static_cast<char>(random.Next());
    }
    input.resize(random.Below(8) == 0 ? random.Below(input.size() + 1) : input.size());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()),
              0);
  }
}

}  // namespace
}  // namespace layercake::transport
