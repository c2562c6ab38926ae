// What both ends of a gRPC Session share: the two bounded queues, their order and the end of the
// call. gRPC itself stands behind LinkWire.
//
// Thread rule: Start, Send and Close on the link's executor; the On... methods on gRPC's threads.
// Calls into gRPC are chosen under the mutex and made outside of it (Pump). The call's last use is
// End(), which is made only when no other thread is inside a call into gRPC, so the reactor may
// free itself as soon as gRPC says that it is done.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/executor.h"
#include "grpcpp/alarm.h"
#include "proto/grpc_link.h"
#include "proto/link.h"

namespace layercake {

// The calls into gRPC that a link makes.
template <class Out, class In>
class LinkWire {
 public:
  virtual ~LinkWire() = default;
  virtual void Read(In* message) = 0;
  virtual void Write(const Out* message) = 0;
  virtual void EndWrites() = 0;  // the client's half-close
  virtual void Cancel() = 0;
  // The server finishes the call with `reason`; the client lets go of it. Nothing follows.
  virtual void End(const absl::Status& reason) = 0;
};

enum class LinkSide { kServer, kClient };

template <class Out, class In>
class LinkCore : public std::enable_shared_from_this<LinkCore<Out, In>> {
 public:
  using Callbacks = typename Link<Out, In>::Callbacks;

  LinkCore(LinkSide side, LinkWire<Out, In>* wire, base::Executor& executor,
           const GrpcLinkOptions& options)
      : side_(side), options_(options), wire_(wire), executor_(&executor) {}

  // ---- the executor's side

  void Start(Callbacks callbacks) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    callbacks_ = std::make_shared<Callbacks>(std::move(callbacks));
    ScheduleDrain();
  }

  absl::Status Send(const Out& message) {
    const size_t bytes = message.ByteSizeLong();
    if (bytes > static_cast<size_t>(kMaxControlMessageBytes)) {
      return absl::InvalidArgumentError(absl::StrCat("a Session message of ", bytes,
                                                     " bytes is over the limit of ",
                                                     kMaxControlMessageBytes, " bytes"));
    }
    {
      absl::MutexLock lock(&mutex_);
      if (closing_ || broken_ || peer_over_) {
        return absl::UnavailableError("send on a Session that has ended");
      }
      if (outbox_.size() >= options_.max_send_messages ||
          outbox_bytes_ >= options_.max_send_bytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the peer of a Session does not read: ", outbox_.size(), " messages and ",
                         outbox_bytes_, " bytes wait"));
      }
      outbox_.push_back(message);
      outbox_bytes_ += bytes;
    }
    Pump();
    return absl::OkStatus();
  }

  void Close(absl::Status reason) {
    std::shared_ptr<Callbacks> callbacks;  // freed after the lock: they may own anything
    std::deque<In> inbox;
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) return;
      closing_ = true;
      close_reason_ = std::move(reason);
      callbacks.swap(callbacks_);
      inbox.swap(inbox_);
      executor_ = nullptr;
    }
    Pump();
  }

  // ---- gRPC's side

  // Makes the first calls into gRPC.
  void Begin() { Pump(); }

  void OnRead(bool ok) {
    {
      absl::MutexLock lock(&mutex_);
      read_in_flight_ = false;
      if (ok) {
        if (!closing_) {
          inbox_bytes_ += in_message_.ByteSizeLong();
          inbox_.push_back(std::move(in_message_));
        }
        in_message_ = In();
      } else {
        read_ended_ = true;
        broken_ = true;
        if (side_ == LinkSide::kServer) PeerOver(EndedByPeer());
      }
      ScheduleDrain();
    }
    Pump();
  }

  void OnWritten(bool ok) {
    {
      absl::MutexLock lock(&mutex_);
      write_in_flight_ = false;
      if (!ok) broken_ = true;
      if (!ends_writes_) {
        outbox_bytes_ -= outbox_.front().ByteSizeLong();
        outbox_.pop_front();
      }
    }
    Pump();
  }

  // The server's notice that the call is over: cancelled, timed out, or the connection broke.
  void OnCancelled() {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
      PeerOver(EndedByPeer());
      ScheduleDrain();
    }
    Pump();
  }

  // gRPC's last word: the reactor is about to be freed. `status` is what the peer ended with.
  void OnOver(const absl::Status& status) {
    std::deque<Out> outbox;
    bool armed = false;
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
      outbox.swap(outbox_);
      outbox_bytes_ = 0;
      armed = armed_;
      PeerOver(status.ok() ? EndedByPeer() : status);
      ScheduleDrain();
    }
    // Set before End(), so before this; its callback lets go of the core.
    if (armed) alarm_.Cancel();
  }

 private:
  enum class Act { kNone, kCancel, kArm, kRead, kWrite, kEndWrites, kEnd };

  static absl::Status EndedByPeer() {
    return absl::UnavailableError("the peer ended the Session, or the connection to it broke");
  }

  void PeerOver(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer_over_) return;
    peer_over_ = true;
    over_status_ = std::move(status);
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (read_in_flight_ || read_ended_) return false;
    // A closing client reads on (and drops what comes), because the server's status comes last.
    if (side_ == LinkSide::kClient && (closing_ || broken_)) return true;
    if (closing_ || broken_) return false;
    return inbox_.size() < options_.max_receive_messages &&
           inbox_bytes_ < static_cast<size_t>(kMaxControlMessageBytes);
  }

  bool MayEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (busy_ > 0 || write_in_flight_) return false;
    if (side_ == LinkSide::kClient) return read_ended_;
    return broken_ || (closing_ && outbox_.empty());
  }

  // The next call into gRPC, marked as begun.
  Act Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return Act::kNone;
    if (cancel_wanted_ && !cancelled_) {
      cancelled_ = true;
      return Act::kCancel;
    }
    if (MayRead()) {
      read_in_flight_ = true;
      return Act::kRead;
    }
    if (!write_in_flight_ && !broken_ && !ends_writes_) {
      if (!outbox_.empty()) {
        write_in_flight_ = true;
        return Act::kWrite;
      }
      if (closing_ && side_ == LinkSide::kClient) {
        write_in_flight_ = true;
        ends_writes_ = true;
        return Act::kEndWrites;
      }
    }
    if (MayEnd()) {
      ended_ = true;
      return Act::kEnd;
    }
    if (closing_ && !armed_) {
      armed_ = true;
      return Act::kArm;
    }
    return Act::kNone;
  }

  void Pump() {
    const std::shared_ptr<LinkCore> self = this->shared_from_this();
    for (;;) {
      Act act;
      const Out* out = nullptr;
      absl::Status reason;
      {
        absl::MutexLock lock(&mutex_);
        act = Next();
        if (act == Act::kNone) return;
        if (act == Act::kWrite) out = &outbox_.front();
        if (act == Act::kEnd) reason = close_reason_;
        ++busy_;
      }
      Make(act, out, reason);
      absl::MutexLock lock(&mutex_);
      --busy_;
    }
  }

  void Make(Act act, const Out* out, const absl::Status& reason) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    switch (act) {
      case Act::kNone:
        return;
      case Act::kCancel:
        return wire_->Cancel();
      case Act::kArm:
        // gRPC's own timer, as a span from now.
        return alarm_.Set(
            gpr_time_from_millis(absl::ToInt64Milliseconds(options_.close_flush), GPR_TIMESPAN),
            // The alarm keeps this function as long as it lives itself: the core, which owns the
            // alarm, is let go of by hand.
            [self = this->shared_from_this()](bool expired) mutable {
              const std::shared_ptr<LinkCore> core = std::exchange(self, nullptr);
              if (expired) core->OnFlushTimeout();
            });
      case Act::kRead:
        return wire_->Read(&in_message_);
      case Act::kWrite:
        return wire_->Write(out);
      case Act::kEndWrites:
        return wire_->EndWrites();
      case Act::kEnd:
        return wire_->End(reason);
    }
  }

  void OnFlushTimeout() {
    {
      absl::MutexLock lock(&mutex_);
      cancel_wanted_ = true;
    }
    Pump();
  }

  // Has the executor call Drain, when there is something for the callbacks.
  void ScheduleDrain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closing_ || callbacks_ == nullptr || drain_posted_) return;
    if (inbox_.empty() && (!peer_over_ || over_delivered_)) return;
    drain_posted_ = executor_->Post([self = this->shared_from_this()] { self->Drain(); });
    // An executor that is full or stopped would leave the messages lying: end the call instead.
    if (!drain_posted_) cancel_wanted_ = true;
  }

  // On the executor.
  void Drain() {
    std::shared_ptr<Callbacks> callbacks;  // a callback may close or destroy the link
    size_t batch = 0;
    {
      absl::MutexLock lock(&mutex_);
      batch = inbox_.size();
    }
    for (size_t i = 0; i <= batch; ++i) {
      In message;
      absl::Status over;
      bool is_over = false;
      {
        absl::MutexLock lock(&mutex_);
        if (closing_) return;
        callbacks = callbacks_;
        if (i == batch || inbox_.empty()) {
          is_over = inbox_.empty() && peer_over_ && !over_delivered_;
          if (is_over) {
            over_delivered_ = true;
            over = over_status_;
          }
        } else {
          message = std::move(inbox_.front());
          inbox_.pop_front();
          inbox_bytes_ = inbox_.empty() ? 0 : inbox_bytes_ - message.ByteSizeLong();
        }
      }
      if (is_over) {
        callbacks->on_closed(over);
      } else if (i < batch) {
        callbacks->on_message(std::move(message));
      }
    }
    {
      absl::MutexLock lock(&mutex_);
      drain_posted_ = false;
      ScheduleDrain();
    }
    Pump();
  }

  const LinkSide side_;
  const GrpcLinkOptions options_;
  LinkWire<Out, In>* const wire_;  // alive until End() was called

  absl::Mutex mutex_;
  base::Executor* executor_ ABSL_GUARDED_BY(mutex_);              // null once closed
  std::shared_ptr<Callbacks> callbacks_ ABSL_GUARDED_BY(mutex_);  // shared with a running Drain
  std::deque<Out> outbox_ ABSL_GUARDED_BY(mutex_);  // the front is in gRPC's hands while in flight
  size_t outbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<In> inbox_ ABSL_GUARDED_BY(mutex_);
  size_t inbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool drain_posted_ ABSL_GUARDED_BY(mutex_) = false;

  bool read_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_writes_ ABSL_GUARDED_BY(mutex_) = false;  // the half-close was asked for
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;       // nothing more can be written
  bool peer_over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status over_status_ ABSL_GUARDED_BY(mutex_);
  bool over_delivered_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status close_reason_ ABSL_GUARDED_BY(mutex_);
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // threads inside a call into gRPC

  // Read in flight: in gRPC's hands. Else guarded by mutex_.
  In in_message_;
  grpc::Alarm alarm_;  // set once, after armed_
};

}  // namespace layercake
