// One hop there and one back between two threads, for every kind: what a channel adds to a step.
// Prints a table of the least and the median round trip in microseconds.
//
// The sizes are the activations of one token (10 KB: 5,120 values of 2 bytes), of 64 and of 512.
//
// "With copies" each end copies rows out of its own memory and into it on a thread of its own, as a
// step does with its device: the frames whole, then in parts.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/channel_rig.h"
#include "transport/rows_mover.h"

namespace layercake::transport {
namespace {

constexpr Lane kLane = Lane::kActivation;

ChannelOptions Options(uint32_t bytes, uint64_t term) {
  return {.ring = {.term = term, .epoch = 1},
          .geometry = {.plan_slots = 1,
                       .plan_slot_bytes = 64,
                       .activation_slots = 2,
                       .activation_slot_bytes = bytes},
          .peer = "the other thread"};
}

bool Send(ChannelSender& sender, uint32_t bytes) {
  const auto slot = sender.Acquire(kLane);
  if (!slot.ok() || !slot->has_value()) return false;
  return sender.Commit(**slot, {.kind = FrameKind::kActivation, .payload_bytes = bytes}).ok();
}

bool Receive(ChannelReceiver& receiver) {
  const auto frame = receiver.Poll(kLane);
  if (!frame.ok() || !frame->has_value()) return false;
  return receiver.Release(kLane, (*frame)->slot).ok();
}

// Sends, waits for the answer, and again.
class Pinger {
 public:
  Pinger(ChannelSender& out, ChannelReceiver& in, uint32_t bytes, size_t rounds,
         const base::Clock& clock)
      : out_(out), in_(in), bytes_(bytes), rounds_(rounds), clock_(clock) {}
  bool Done() {
    for (;;) {
      if (!waiting_) {
        if (times_.size() == rounds_) return true;
        sent_ = clock_.Now();
        if (!Send(out_, bytes_)) return false;
        waiting_ = true;
      }
      if (!Receive(in_)) return false;
      waiting_ = false;
      times_.push_back(absl::ToDoubleMicroseconds(clock_.Now() - sent_));
    }
  }
  std::vector<double> SortedTimes() {
    std::sort(times_.begin(), times_.end());
    return times_;
  }

 private:
  ChannelSender& out_;
  ChannelReceiver& in_;
  const uint32_t bytes_;
  const size_t rounds_;
  const base::Clock& clock_;
  bool waiting_ = false;
  base::Instant sent_;
  std::vector<double> times_;
};

struct OneWay {
  std::unique_ptr<ChannelReceiver> receiver;
  std::unique_ptr<ChannelSender> sender;
};

bool Connect(TestFactories& factories, const ChannelOptions& options, ChannelEnd& from,
             ChannelEnd& to, OneWay& way) {
  std::string offer;
  to.Run([&] {
    auto made = factories.receiver->CreateReceiver(options, to.context());
    if (made.ok()) way.receiver = *std::move(made);
    if (way.receiver != nullptr) offer = way.receiver->offer();
  });
  from.Run([&] {
    auto made = factories.sender->Connect(offer, options, from.context());
    if (made.ok()) way.sender = *std::move(made);
  });
  return way.sender != nullptr && from.Await([&] { return way.sender->connected(); });
}

void Measure(TestKind kind, uint32_t bytes, size_t rounds) {
  const base::SystemClock clock;
  const auto there_factories = MakeTestFactories(kind, clock);
  const auto back_factories = MakeTestFactories(kind, clock);
  ChannelEnd near(clock);
  ChannelEnd far(clock);
  OneWay there;
  OneWay back;
  if (!Connect(*there_factories, Options(bytes, 1), near, far, there) ||
      !Connect(*back_factories, Options(bytes, 2), far, near, back)) {
    std::printf("%-16s %9u bytes: did not connect\n", TestKindName(kind).c_str(), bytes);
    return;
  }
  size_t answers = 0;
  size_t owed = 0;
  std::thread answering([&] {
    far.Await(
        [&] {
          while (Receive(*there.receiver)) ++owed;
          for (; owed > 0 && Send(*back.sender, bytes); --owed) ++answers;
          return answers == rounds;
        },
        absl::Minutes(2));
  });
  Pinger pinger(*there.sender, *back.receiver, bytes, rounds, clock);
  const bool done = near.Await([&] { return pinger.Done(); }, absl::Minutes(2));
  answering.join();
  const std::vector<double> times = pinger.SortedTimes();
  std::printf("%-16s %9u bytes: %10.1f us least, %10.1f us median%s\n", TestKindName(kind).c_str(),
              bytes, times.empty() ? 0 : times.front(), times.empty() ? 0 : times[times.size() / 2],
              done ? "" : " (stopped early)");
  near.Run([&] { there.sender = nullptr, back.receiver = nullptr; });
  far.Run([&] { there.receiver = nullptr, back.sender = nullptr; });
}

void MeasureWithCopies(TestKind kind, uint32_t bytes, size_t rounds, bool in_parts) {
  const base::SystemClock clock;
  const auto there_factories = MakeTestFactories(kind, clock);
  const auto back_factories = MakeTestFactories(kind, clock);
  ChannelEnd near(clock);
  ChannelEnd far(clock);
  OneWay there;
  OneWay back;
  const std::string name = TestKindName(kind) + (in_parts ? ", parts" : ", whole");
  if (!Connect(*there_factories, Options(bytes, 1), near, far, there) ||
      !Connect(*back_factories, Options(bytes, 2), far, near, back)) {
    std::printf("%-20s %9u bytes: did not connect\n", name.c_str(), bytes);
    return;
  }
  std::vector<double> times;
  {
    const auto make = [](base::Executor& on_done) {
      return kernels::CreateCpuDevice({.threads = 1}, on_done);
    };
    const auto near_copies = MovingEnd::Create(near, make, bytes, in_parts);
    const auto far_copies = MovingEnd::Create(far, make, bytes, in_parts);
    if (!near_copies.ok() || !far_copies.ok()) return;
    size_t answers = 0;
    std::thread answering([&] {
      far.Await(
          [&] {
            for (;;) {
              const auto received = (*far_copies)->mover().Receive(*there.receiver);
              if (!received.ok()) return true;
              if (!*received) return false;
              if (!(*far_copies)->mover().Send(*back.sender, bytes).ok()) return true;
              if (++answers == rounds) return true;
            }
          },
          absl::Minutes(2));
    });
    base::Instant sent;
    const auto send = [&] {
      sent = clock.Now();
      return (*near_copies)->mover().Send(*there.sender, bytes).ok();
    };
    near.Run([&] { static_cast<void>(send()); });
    near.Await(
        [&] {
          for (;;) {
            const auto received = (*near_copies)->mover().Receive(*back.receiver);
            if (!received.ok()) return true;
            if (!*received) return false;
            times.push_back(absl::ToDoubleMicroseconds(clock.Now() - sent));
            if (times.size() == rounds || !send()) return true;
          }
        },
        absl::Minutes(2));
    answering.join();
  }
  std::sort(times.begin(), times.end());
  std::printf("%-20s %9u bytes: %10.1f us least, %10.1f us median%s\n", name.c_str(), bytes,
              times.empty() ? 0 : times.front(), times.empty() ? 0 : times[times.size() / 2],
              times.size() == rounds ? "" : " (stopped early)");
  near.Run([&] { there.sender = nullptr, back.receiver = nullptr; });
  far.Run([&] { there.receiver = nullptr, back.sender = nullptr; });
}

}  // namespace
}  // namespace layercake::transport

int main() {
  using layercake::transport::Measure;
  using layercake::transport::MeasureWithCopies;
  using layercake::transport::TestKind;
  for (const TestKind kind :
       {TestKind::kLocal, TestKind::kPinnedHost, TestKind::kUcxTcp, TestKind::kUcxSharedMemory}) {
    Measure(kind, 10 << 10, 1000);
    Measure(kind, 640 << 10, 300);
    Measure(kind, 5 << 20, 60);
  }
  std::printf("with copies\n");
  for (const bool in_parts : {false, true}) {
    MeasureWithCopies(TestKind::kPinnedHost, 10 << 10, 1000, in_parts);
    MeasureWithCopies(TestKind::kPinnedHost, 640 << 10, 300, in_parts);
    MeasureWithCopies(TestKind::kPinnedHost, 5 << 20, 100, in_parts);
  }
  return 0;
}
