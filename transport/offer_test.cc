#include "transport/offer.h"

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/crc32c.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

Offer Example() {
  return {.kind = TransportKind::kPinnedHost,
          .ring = {.term = 4, .epoch = 2},
          .geometry = {.plan_slots = 4,
                       .plan_slot_bytes = 1000,
                       .activation_slots = 2,
                       .activation_slot_bytes = 5000},
          .secret = MakeSecret(),
          .body = "/run/user/1000/layercake-abc/ring"};
}

TEST(Offer, SurvivesEncodingAndDecoding) {
  const Offer in = Example();
  const absl::StatusOr<Offer> out = DecodeOffer(EncodeOffer(in));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->kind, in.kind);
  EXPECT_EQ(out->ring, in.ring);
  EXPECT_TRUE(SameGeometry(out->geometry, in.geometry));
  EXPECT_EQ(out->secret, in.secret);
  EXPECT_EQ(out->body, in.body);
}

TEST(Offer, RefusesEveryFlippedBitAndEveryCut) {
  const std::string good = EncodeOffer(Example());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeOffer(bad).ok()) << bit;
  }
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeOffer(good.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeOffer(good + "x").status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeOffer(std::string(kMaxOfferBytes + 1, 'x')).status()));
}

TEST(Offer, RefusesAnAbsurdGeometryWithARightSum) {
  Offer offer = Example();
  offer.geometry.activation_slots = 100000;
  const absl::Status status = DecodeOffer(EncodeOffer(offer)).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr("100000"));
}

TEST(Offer, MakesAnotherSecretEachTime) {
  const Secret a = MakeSecret();
  Secret b = a;
  EXPECT_TRUE(SameSecret(a, b));
  b[15] ^= std::byte{0x80};
  EXPECT_FALSE(SameSecret(a, b));
  EXPECT_FALSE(SameSecret(a, MakeSecret()));
}

TEST(Channel, ChecksTheSizesOfARing) {
  const ChannelGeometry good = Example().geometry;
  EXPECT_TRUE(ValidateGeometry(good).ok());
  ChannelGeometry bad = good;
  bad.plan_slots = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateGeometry(bad)));
  bad = good;
  bad.activation_slots = 1025;
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateGeometry(bad)));
  bad = good;
  bad.plan_slot_bytes = (1u << 30) + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateGeometry(bad)));
  bad = good;
  bad.activation_slots = 65;
  bad.activation_slot_bytes = 1u << 30;
  const absl::Status ring = ValidateGeometry(bad);
  EXPECT_TRUE(absl::IsInvalidArgument(ring));
  EXPECT_THAT(ring.message(), HasSubstr("69793222560"));
}

TEST(Channel, NamesItsKinds) {
  for (const char* name : {"local", "pinned_host", "ucx", "cuda_ipc"}) {
    EXPECT_EQ(TransportKindName(ParseTransportKind(name).value()), name);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTransportKind("tcp").status()));
}

}  // namespace
}  // namespace layercake::transport
