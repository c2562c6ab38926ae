#include "transport/faulty_channel.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/ready_signal.h"

namespace layercake::transport {

// The dice, and what they did.
class FaultyChannelFactory::Faults final : public FrameTap {
 public:
  Faults(const FaultRates& rates, uint64_t seed) : rates_(rates), random_(seed) {}

  Verdict OnFrame(absl::Span<std::byte> header, kernels::Buffer& payload) override {
    const absl::StatusOr<FrameHeader> decoded = DecodeFrameHeader(header);
    const auto lane = static_cast<size_t>(decoded->lane);  // sealed a moment ago: it decodes
    ++counts_.frames;
    const uint64_t corrupted = counts_.corrupted;
    if (Roll(rates_.flip_payload)) FlipBit(absl::MakeSpan(payload.address, payload.bytes));
    if (Roll(rates_.zero_block)) ZeroBlock(absl::MakeSpan(payload.address, payload.bytes));
    if (Roll(rates_.truncate)) Truncate(*decoded, header, payload);
    if (Roll(rates_.flip_header)) FlipBit(header);
    const bool drop = Roll(rates_.drop);
    const bool repeat = !drop && Roll(rates_.repeat);
    counts_.dropped += drop ? 1 : 0;
    counts_.repeated += repeat ? 1 : 0;
    if (drop || counts_.corrupted != corrupted) counts_.spoilt[lane] = true;
    if (!counts_.spoilt[lane]) ++counts_.good_prefix[lane];
    if (repeat) counts_.spoilt[lane] = true;  // the first copy is good
    return drop ? Verdict::kDrop : repeat ? Verdict::kSendTwice : Verdict::kSend;
  }

  bool RollDelay() { return Count(rates_.delay, counts_.delayed); }
  bool RollWithhold() { return Count(rates_.withhold_credit, counts_.withheld); }
  bool RollClose() { return Count(rates_.close, counts_.closed); }
  int SomeCalls() { return 1 + static_cast<int>(random_.Below(4)); }
  const FaultCounts& counts() const { return counts_; }

 private:
  bool Roll(double chance) { return chance > 0 && random_.Unit() < chance; }
  bool Count(double chance, uint64_t& count) {
    const bool hit = Roll(chance);
    count += hit ? 1 : 0;
    return hit;
  }

  void FlipBit(absl::Span<std::byte> bytes) {
    if (bytes.empty()) return;
    bytes[random_.Below(bytes.size())] ^= static_cast<std::byte>(1u << random_.Below(8));
    ++counts_.corrupted;
  }

  void ZeroBlock(absl::Span<std::byte> bytes) {
    if (bytes.empty()) return;
    const absl::Span<std::byte> block = bytes.subspan(random_.Below(bytes.size()), 64);
    const auto not_zero = [](std::byte b) { return b != std::byte{}; };
    if (std::none_of(block.begin(), block.end(), not_zero)) return;
    std::fill(block.begin(), block.end(), std::byte{});
    ++counts_.corrupted;
  }

  // The header's own checksum is right: the payload's must tell.
  void Truncate(FrameHeader frame, absl::Span<std::byte> header, kernels::Buffer& payload) {
    if (frame.payload_bytes == 0) return;
    frame.payload_bytes = static_cast<uint32_t>(random_.Below(frame.payload_bytes));
    frame.section_bytes = std::min(frame.section_bytes, frame.payload_bytes);
    const auto encoded = EncodeFrameHeader(frame);
    std::copy(encoded.begin(), encoded.end(), header.begin());
    payload.bytes = frame.payload_bytes;
    ++counts_.corrupted;
  }

  const FaultRates rates_;
  base::SeededRandom random_;
  FaultCounts counts_;
};

namespace {

// A signal to wake the user with, and the context whose on_ready goes through it.
std::shared_ptr<ReadySignal> Intercept(ChannelContext& context) {
  auto signal = std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready));
  context.on_ready = [signal] { signal->RunNow(); };
  return signal;
}

template <typename Faults>
class FaultySender final : public ChannelSender {
 public:
  FaultySender(std::unique_ptr<ChannelSender> inner, std::shared_ptr<ReadySignal> signal,
               Faults& faults)
      : inner_(std::move(inner)),
        kind_(inner_->kind()),
        signal_(std::move(signal)),
        faults_(faults) {}
  ~FaultySender() override { signal_->Cancel(); }

  TransportKind kind() const override { return kind_; }
  bool connected() const override { return inner_ != nullptr && inner_->connected(); }
  absl::Status status() const override {
    if (inner_ != nullptr) return inner_->status();
    return absl::UnavailableError("the sender was closed by an injected fault");
  }
  absl::StatusOr<std::optional<SendSlot>> Acquire(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    return inner_->Acquire(lane);
  }
  absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    if (faults_.RollClose()) {
      inner_ = nullptr;
      return status();
    }
    return inner_->Commit(slot, frame);
  }
  uint32_t part_bytes() const override { return inner_ == nullptr ? 0 : inner_->part_bytes(); }
  absl::Status CommitPart(const SendSlot& slot, const OutgoingFrame& frame,
                          uint32_t bytes) override {
    LC_RETURN_IF_ERROR(status());
    if (faults_.RollClose()) {
      inner_ = nullptr;
      return status();
    }
    return inner_->CommitPart(slot, frame, bytes);
  }

 private:
  std::unique_ptr<ChannelSender> inner_;  // null once closed
  const TransportKind kind_;
  const std::shared_ptr<ReadySignal> signal_;
  Faults& faults_;
};

template <typename Faults>
class FaultyReceiver final : public ChannelReceiver {
 public:
  FaultyReceiver(std::unique_ptr<ChannelReceiver> inner, std::shared_ptr<ReadySignal> signal,
                 Faults& faults)
      : inner_(std::move(inner)), signal_(std::move(signal)), faults_(faults) {}
  ~FaultyReceiver() override { signal_->Cancel(); }

  TransportKind kind() const override { return inner_->kind(); }
  std::string offer() const override { return inner_->offer(); }
  bool connected() const override { return inner_->connected(); }
  absl::Status status() const override { return inner_->status(); }

  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    LC_ASSIGN_OR_RETURN(const bool delayed, Delayed());
    return delayed ? std::nullopt : inner_->Poll(lane);
  }
  absl::StatusOr<std::optional<ReceivedFrame>> PollBegun(Lane lane) override {
    LC_ASSIGN_OR_RETURN(const bool delayed, Delayed());
    return delayed ? std::nullopt : inner_->PollBegun(lane);
  }
  absl::StatusOr<uint32_t> Arrived(const ReceivedFrame& frame) override {
    return inner_->Arrived(frame);
  }
  absl::Status CheckArrived(const ReceivedFrame& frame) override {
    return inner_->CheckArrived(frame);
  }

  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(GiveBackDue());
    if (!faults_.RollWithhold()) return inner_->Release(lane, slot);
    withheld_.push_back({.lane = lane, .slot = slot, .calls_left = faults_.SomeCalls()});
    signal_->Raise();
    return status();
  }

 private:
  struct Withheld {
    Lane lane = Lane::kPlan;
    uint32_t slot = 0;
    int calls_left = 0;
  };

  // Whether a frame is held back from this call.
  absl::StatusOr<bool> Delayed() {
    LC_RETURN_IF_ERROR(GiveBackDue());
    const bool delayed = faults_.RollDelay();
    if (delayed || !withheld_.empty()) signal_->Raise();
    return delayed;
  }

  absl::Status GiveBackDue() {
    for (Withheld& credit : withheld_) {
      if (--credit.calls_left > 0) continue;
      LC_RETURN_IF_ERROR(inner_->Release(credit.lane, credit.slot));
    }
    std::erase_if(withheld_, [](const Withheld& credit) { return credit.calls_left <= 0; });
    return absl::OkStatus();
  }

  const std::unique_ptr<ChannelReceiver> inner_;
  const std::shared_ptr<ReadySignal> signal_;
  Faults& faults_;
  std::vector<Withheld> withheld_;
};

}  // namespace

FaultyChannelFactory::FaultyChannelFactory(ChannelFactory& inner, const FaultRates& rates,
                                           uint64_t seed)
    : inner_(inner), faults_(std::make_unique<Faults>(rates, seed)) {}
FaultyChannelFactory::~FaultyChannelFactory() = default;

const FaultCounts& FaultyChannelFactory::counts() const { return faults_->counts(); }

absl::StatusOr<std::unique_ptr<ChannelReceiver>> FaultyChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  std::shared_ptr<ReadySignal> signal = Intercept(context);
  LC_ASSIGN_OR_RETURN(std::unique_ptr<ChannelReceiver> inner,
                      inner_.CreateReceiver(options, std::move(context)));
  return std::make_unique<FaultyReceiver<Faults>>(std::move(inner), std::move(signal), *faults_);
}

absl::StatusOr<std::unique_ptr<ChannelSender>> FaultyChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  std::shared_ptr<ReadySignal> signal = Intercept(context);
  context.tap = faults_.get();
  LC_ASSIGN_OR_RETURN(std::unique_ptr<ChannelSender> inner,
                      inner_.Connect(offer, options, std::move(context)));
  return std::make_unique<FaultySender<Faults>>(std::move(inner), std::move(signal), *faults_);
}

}  // namespace layercake::transport
