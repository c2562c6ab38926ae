// What channel tests stand on: two ends with an event loop and a thread each, and factories of
// every kind for them. For tests and benchmarks.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/event_loop.h"
#include "transport/channel.h"
#include "transport/cuda_ipc_channel.h"
#include "transport/fake_peer_memory.h"
#include "transport/local_channel.h"
#include "transport/pinned_host_channel.h"
#include "transport/ucx_channel.h"

namespace layercake::transport {

// A folder of its own under the temporary folder, removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One end: a loop in a thread. Run and Await from one other thread.
class ChannelEnd {
 public:
  explicit ChannelEnd(const base::Clock& clock);
  ~ChannelEnd();  // the channels of this end are gone

  // Runs `task` on the loop and waits for it.
  void Run(const std::function<void()>& task);
  // Asks `condition` on the loop, now and whenever on_ready runs, until it is true. False after
  // `timeout`.
  bool Await(std::function<bool()> condition, absl::Duration timeout = absl::Seconds(30));
  // A context whose on_ready serves Await.
  ChannelContext context();

 private:
  struct Waiter {
    std::function<bool()> condition;
    absl::Notification met;
  };
  void AskWaiters();

  std::unique_ptr<base::EventLoop> loop_;
  std::list<std::shared_ptr<Waiter>> waiters_;  // loop's thread
  std::thread thread_;
};

// Every kind that runs here, by the name that tests use. kCudaIpc runs over fake device memory.
enum class TestKind { kLocal, kPinnedHost, kUcxTcp, kUcxSharedMemory, kCudaIpc };
std::string TestKindName(TestKind kind);

// The means of both ends: a hub, a folder, two UCX workers.
struct TestFactories {
  LocalHub hub;
  TemporaryFolder folder;
  std::unique_ptr<UcxWorker> sender_worker;
  std::unique_ptr<UcxWorker> receiver_worker;
  FakePeerMemory sender_memory{"GPU-sender"};
  FakePeerMemory receiver_memory{"GPU-receiver"};
  std::unique_ptr<ChannelFactory> sender;
  std::unique_ptr<ChannelFactory> receiver;
};
std::unique_ptr<TestFactories> MakeTestFactories(TestKind kind, const base::Clock& clock);
UcxOptions TestUcxOptions(TestKind kind);

// Writes and reads whole payloads of any slot, `section_bytes` of them sections. `memory` is of the
// factory that made the channel.
absl::Status WritePayload(kernels::PeerMemory* memory, const SendSlot& slot,
                          absl::string_view payload, uint32_t section_bytes);
absl::StatusOr<std::string> ReadPayload(kernels::PeerMemory* memory, const ReceivedFrame& frame);

// What a test and the process that it kills agree on (channel_peer_main.cc).
ChannelOptions PeerTestOptions();

// A channel between two ends. Members are used on their ends' threads.
class ChannelRig {
 public:
  ChannelRig(ChannelFactory& sender_factory, ChannelFactory& receiver_factory,
             const ChannelOptions& options, const base::Clock& clock);
  ~ChannelRig();

  // Makes the receiver, connects the sender, waits for both.
  absl::Status Connect();
  // Only the first half.
  absl::Status CreateReceiver();
  absl::Status ConnectSender(const std::string& offer);

  void DestroySender();
  void DestroyReceiver();

  kernels::PeerMemory* sender_memory() const { return sender_factory_.peer_memory(); }
  kernels::PeerMemory* receiver_memory() const { return receiver_factory_.peer_memory(); }

  ChannelEnd sender_end;
  ChannelEnd receiver_end;
  std::unique_ptr<ChannelSender> sender;
  std::unique_ptr<ChannelReceiver> receiver;
  std::string offer;
  const ChannelOptions options;

 private:
  ChannelFactory& sender_factory_;
  ChannelFactory& receiver_factory_;
};

}  // namespace layercake::transport
