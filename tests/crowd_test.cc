// Many clients at once on a real chain of three stages: some leave, some stop reading, and the
// others get what they would get alone. Memory stays flat.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/errors.h"
#include "tests/testing/chain_rig.h"
#include "tests/testing/golden_files.h"

namespace layercake::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(200);

// What a client does about its request.
struct Client {
  size_t kind = 0;        // of the requests
  int leaves_after = -1;  // tokens; < 0: it stays
  bool reads = true;
};

// Hands out work to a number of clients and sees what becomes of it.
class Crowd {
 public:
  class Sink final : public coordinator::RequestSink {
   public:
    Sink(Crowd& crowd, size_t index, const Client& client)
        : crowd_(crowd), index_(index), client_(client) {}
    void OnStarted(const v1::Started&) override {}
    void OnPromptLogprobs(const v1::PromptLogprobs&) override {}
    void OnDelta(v1::Delta delta) override {
      absl::MutexLock lock(&crowd_.mutex_);
      Outcome& outcome = crowd_.outcomes_[index_];
      outcome.tokens.insert(outcome.tokens.end(), delta.token_ids().begin(),
                            delta.token_ids().end());
      if (!client_.reads) pending_ += delta.ByteSizeLong();
      const bool leaves = client_.leaves_after >= 0 &&
                          static_cast<int>(outcome.tokens.size()) >= client_.leaves_after;
      if (leaves && !std::exchange(left_, true)) crowd_.leaving_.push_back(index_);
    }
    void OnFinished(const v1::Finished& finished) override {
      absl::MutexLock lock(&crowd_.mutex_);
      crowd_.outcomes_[index_].finished = finished;
      if (!std::exchange(left_, true)) crowd_.ended_.push_back(index_);
    }
    void OnError(const absl::Status& status) override {
      absl::MutexLock lock(&crowd_.mutex_);
      crowd_.outcomes_[index_].error = status;
      if (!std::exchange(left_, true)) crowd_.ended_.push_back(index_);
    }
    size_t pending_bytes() const override { return pending_; }

   private:
    Crowd& crowd_;
    const size_t index_;
    const Client client_;
    size_t pending_ = 0;  // decision thread
    bool left_ = false;   // or ended; under crowd_.mutex_
  };

  // Runs all, `at_once` at a time. OK when everything ended in time.
  absl::Status Run(coordinator::Engine& engine,
                   const std::vector<coordinator::PreparedRequest>& kinds,
                   const std::vector<Client>& clients, size_t at_once) {
    {
      absl::MutexLock lock(&mutex_);
      outcomes_.assign(clients.size(), Outcome());
    }
    std::vector<std::shared_ptr<Sink>> sinks(clients.size());
    size_t next = 0;
    size_t open = 0;
    while (next < clients.size() || open > 0) {
      for (; open < at_once && next < clients.size(); ++next, ++open) {
        sinks[next] = std::make_shared<Sink>(*this, next, clients[next]);
        engine.Submit(kinds[clients[next].kind], sinks[next]);
      }
      std::deque<size_t> leaving;
      std::deque<size_t> ended;
      {
        absl::MutexLock lock(&mutex_);
        const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return !leaving_.empty() || !ended_.empty();
        };
        if (!mutex_.AwaitWithTimeout(absl::Condition(&news), kPatience)) {
          return absl::DeadlineExceededError(absl::StrCat(open, " requests do not end"));
        }
        leaving.swap(leaving_);
        ended.swap(ended_);
      }
      for (const size_t index : leaving) engine.Drop(sinks[index]);
      for (const size_t index : ended) sinks[index].reset();
      open -= leaving.size() + ended.size();
    }
    return absl::OkStatus();
  }

  std::vector<Outcome> outcomes() {
    absl::MutexLock lock(&mutex_);
    return outcomes_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<Outcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> leaving_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> ended_ ABSL_GUARDED_BY(mutex_);
};

class CrowdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RigOptions options;
    options.chain.model_path = GoldenPath("tiny/qwen3_wide_heads.gguf");
    options.chain.stages = 3;
    options.chain.transport = "local";
    options.chain.context_tokens = 256;
    options.chain.kv_blocks = 100;  // six contexts: sequences are preempted
    options.max_pending_bytes = 40;
    options.reader_timeout = absl::Milliseconds(300);
    auto rig = ChainRig::Start(options);
    ASSERT_TRUE(rig.ok()) << rig.status();
    rig_ = *std::move(rig);
    const nlohmann::json golden = ReadGolden("tiny/qwen3_wide_heads.json");
    prompt_ = golden["prompts"][0]["prompt_ids"].get<std::vector<int32_t>>();
  }

  coordinator::PreparedRequest Request(size_t prompt, int tokens, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < prompt; ++i) ids.push_back(prompt_[(seed + i * i) % prompt_.size()]);
    coordinator::PreparedRequest request = Greedy(std::move(ids), tokens);
    request.sampling.set_temperature(0.8f);
    request.sampling.set_seed(seed);
    request.client = absl::StrCat("ipv4:10.0.0.", seed % 5, ":80");
    return request;
  }
  // Bytes that the process holds from the heap, whatever the heap holds in reserve.
  static int64_t HeapBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

  std::unique_ptr<ChainRig> rig_;
  std::vector<int32_t> prompt_;
  base::SeededRandom random_{11};
};

TEST_F(CrowdTest, SurvivorsOfACrowdGetWhatTheyWouldGetAlone) {
  std::vector<coordinator::PreparedRequest> kinds;
  for (uint64_t i = 0; i < 25; ++i) {
    kinds.push_back(Request(1 + random_.Below(90), 4 + static_cast<int>(random_.Below(28)), i));
  }
  std::vector<std::vector<int32_t>> alone;
  for (const coordinator::PreparedRequest& kind : kinds) {
    coordinator::PreparedRequest cold = kind;
    cold.use_prefix_cache = false;
    const auto outcome = rig_->Run({cold});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    alone.push_back(outcome->front().tokens);
  }
  std::vector<Client> clients;
  for (int i = 0; i < 500; ++i) {
    Client client{.kind = random_.Below(kinds.size())};
    if (random_.Below(6) == 0) client.leaves_after = static_cast<int>(random_.Below(20));
    client.reads = random_.Below(25) != 0;
    clients.push_back(client);
  }
  Crowd crowd;
  ASSERT_TRUE(crowd.Run(rig_->engine(), kinds, clients, 128).ok());
  const std::vector<Outcome> outcomes = crowd.outcomes();
  int survivors = 0;
  for (size_t i = 0; i < clients.size(); ++i) {
    const std::vector<int32_t>& right = alone[clients[i].kind];
    if (!clients[i].reads && !outcomes[i].error.ok()) {
      EXPECT_EQ(ReasonOf(outcomes[i].error), ErrorReason::kDeadline) << outcomes[i].error;
      continue;
    }
    ASSERT_TRUE(outcomes[i].error.ok()) << i << ": " << outcomes[i].error;
    if (outcomes[i].finished.reason() == v1::FINISH_REASON_UNSPECIFIED) continue;  // it left
    EXPECT_EQ(outcomes[i].tokens, right) << "client " << i;
    ++survivors;
  }
  EXPECT_GE(survivors, 350);
  const v1::GetLoadsResponse loads = rig_->Loads();
  EXPECT_EQ(loads.running(), 0);
  EXPECT_EQ(loads.kv_blocks_used(), 0);
  std::printf("%d survivors, %d preemptions, %d cached tokens\n", survivors,
              static_cast<int>(loads.preemptions_total()),
              static_cast<int>(loads.cached_prompt_tokens_total()));
}

TEST_F(CrowdTest, MemoryIsFlatOverTenThousandShortRequests) {
  std::vector<coordinator::PreparedRequest> kinds;
  for (uint64_t i = 0; i < 40; ++i) kinds.push_back(Request(1 + i % 20, 2, i));
  const auto run = [&](size_t count) {
    std::vector<Client> clients(count);
    for (Client& client : clients) client.kind = random_.Below(kinds.size());
    Crowd crowd;
    return crowd.Run(rig_->engine(), kinds, clients, 128);
  };
  constexpr int kRequests = 2'000;
  // High-water marks (queues, arenas, tables) still rise now and then, by steps; what is lost per
  // request shows in every round, so the least growth of any is what counts.
  std::vector<int64_t> growth;
  ASSERT_TRUE(run(kRequests).ok());
  for (int round = 0; round < 4; ++round) {
    const int64_t before = HeapBytes();
    ASSERT_TRUE(run(kRequests).ok());
    growth.push_back(HeapBytes() - before);
  }
  EXPECT_LE(*std::min_element(growth.begin(), growth.end()), 32 * kRequests)
      << "at most 32 bytes a request: " << absl::StrJoin(growth, ", ");
  EXPECT_LE(*std::max_element(growth.begin(), growth.end()), 4 << 20)
      << absl::StrJoin(growth, ", ");
}

}  // namespace
}  // namespace layercake::testing
