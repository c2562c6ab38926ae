#include "proto/grpc_link.h"

#include <utility>

#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "proto/errors.h"
#include "proto/link_core.h"
#include "proto/rpc_status.h"

namespace layercake {
namespace {

template <class Out, class In>
class GrpcLink : public Link<Out, In> {
 public:
  explicit GrpcLink(std::shared_ptr<LinkCore<Out, In>> core) : core_(std::move(core)) {}
  ~GrpcLink() override {
    core_->Close(absl::CancelledError("the owner of this end of the Session went away"));
  }

  void Start(typename Link<Out, In>::Callbacks callbacks) override {
    core_->Start(std::move(callbacks));
  }
  absl::Status Send(const Out& message) override { return core_->Send(message); }
  void Close(absl::Status reason) override { core_->Close(std::move(reason)); }

 private:
  const std::shared_ptr<LinkCore<Out, In>> core_;
};

// The client cannot end a call with a status: its last message says why.
class WorkerGrpcLink final : public GrpcLink<v1::FromWorker, v1::ToWorker> {
 public:
  using GrpcLink::GrpcLink;

  void Close(absl::Status reason) override {
    if (!reason.ok()) {
      v1::FromWorker last_words;
      last_words.mutable_goodbye()->set_reason(
          SafeMessage(reason.ToString(absl::StatusToStringMode::kWithNoExtraData)));
      // A queue that is full, or a call that is over, leaves nobody to tell.
      GrpcLink::Send(last_words).IgnoreError();
    }
    GrpcLink::Close(std::move(reason));
  }
};

}  // namespace

struct SessionDialer::Calls {
  void Add(int change) {
    absl::MutexLock lock(&mutex);
    open += change;
  }
  void AwaitNone() {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](int* open_calls) { return *open_calls == 0; }, &open));
  }

  absl::Mutex mutex;
  int open ABSL_GUARDED_BY(mutex) = 0;
};

namespace {

class ClientSession final : public grpc::ClientBidiReactor<v1::FromWorker, v1::ToWorker>,
                            public LinkWire<v1::FromWorker, v1::ToWorker> {
 public:
  using Core = LinkCore<v1::FromWorker, v1::ToWorker>;

  // `on_freed` runs on a gRPC thread, last of all.
  static std::shared_ptr<Core> Begin(v1::Control::Stub& stub, base::Executor& executor,
                                     absl::AnyInvocable<void()> on_freed,
                                     const GrpcLinkOptions& options) {
    auto* session = new ClientSession(std::move(on_freed));  // frees itself in OnDone
    session->core_ = std::make_shared<Core>(LinkSide::kClient, session, executor, options);
    const std::shared_ptr<Core> core = session->core_;
    stub.async()->Session(&session->context_, session);
    // Held until End(): calls into gRPC also come from the executor.
    session->AddHold();
    session->StartCall();
    core->Begin();
    return core;
  }

  void Read(v1::ToWorker* message) override { StartRead(message); }
  void Write(const v1::FromWorker* message) override { StartWrite(message); }
  void EndWrites() override { StartWritesDone(); }
  void Cancel() override { context_.TryCancel(); }
  void End(const absl::Status& /*reason*/) override { RemoveHold(); }

  void OnReadDone(bool ok) override { core_->OnRead(ok); }
  void OnWriteDone(bool ok) override { core_->OnWritten(ok); }
  void OnWritesDoneDone(bool ok) override { core_->OnWritten(ok); }
  void OnDone(const grpc::Status& status) override {
    core_->OnOver(FromGrpcStatus(status));
    absl::AnyInvocable<void()> on_freed = std::move(on_freed_);
    delete this;  // with the context, which refers to the channel
    on_freed();
  }

 private:
  explicit ClientSession(absl::AnyInvocable<void()> on_freed) : on_freed_(std::move(on_freed)) {}

  absl::AnyInvocable<void()> on_freed_;
  grpc::ClientContext context_;
  std::shared_ptr<Core> core_;
};

class ServerSession final : public grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>,
                            public LinkWire<v1::ToWorker, v1::FromWorker> {
 public:
  using Core = LinkCore<v1::ToWorker, v1::FromWorker>;

  ServerSession(grpc::CallbackServerContext* context, base::Executor& executor,
                absl::AnyInvocable<void()> on_done, const GrpcLinkOptions& options)
      : context_(context),
        on_done_(std::move(on_done)),
        core_(std::make_shared<Core>(LinkSide::kServer, this, executor, options)) {}

  const std::shared_ptr<Core>& core() const { return core_; }

  void Read(v1::FromWorker* message) override { StartRead(message); }
  void Write(const v1::ToWorker* message) override { StartWrite(message); }
  void EndWrites() override {}  // a server's writes end with the call
  void Cancel() override { context_->TryCancel(); }
  void End(const absl::Status& reason) override { Finish(ToGrpcStatus(reason)); }

  void OnReadDone(bool ok) override { core_->OnRead(ok); }
  void OnWriteDone(bool ok) override { core_->OnWritten(ok); }
  void OnCancel() override { core_->OnCancelled(); }
  void OnDone() override {
    core_->OnOver(absl::OkStatus());
    if (on_done_) on_done_();
    delete this;
  }

 private:
  grpc::CallbackServerContext* const context_;
  absl::AnyInvocable<void()> on_done_;
  const std::shared_ptr<Core> core_;
};

}  // namespace

SessionDialer::SessionDialer(std::shared_ptr<grpc::Channel> channel)
    : stub_(v1::Control::NewStub(std::move(channel))), calls_(std::make_shared<Calls>()) {}

SessionDialer::~SessionDialer() { calls_->AwaitNone(); }

std::unique_ptr<WorkerLink> SessionDialer::Connect(base::Executor& executor,
                                                   const GrpcLinkOptions& options) {
  calls_->Add(1);
  return std::make_unique<WorkerGrpcLink>(ClientSession::Begin(
      *stub_, executor, [calls = calls_] { calls->Add(-1); }, options));
}

AcceptedSession AcceptCoordinatorLink(grpc::CallbackServerContext* context,
                                      base::Executor& executor, absl::AnyInvocable<void()> on_done,
                                      const GrpcLinkOptions& options) {
  auto* session = new ServerSession(context, executor, std::move(on_done), options);
  const std::shared_ptr<ServerSession::Core> core = session->core();
  core->Begin();
  return {session, std::make_unique<GrpcLink<v1::ToWorker, v1::FromWorker>>(core)};
}

}  // namespace layercake
