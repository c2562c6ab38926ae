#include "transport/transport_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using K = TransportKind;

EndpointFacts Process(const char* boot_id, int64_t pid) {
  return {.host = {.host_id = "h",
                   .boot_id = boot_id,
                   .pid_namespace = "pid:[1]",
                   .ipc_namespace = "ipc:[1]",
                   .user_id = 1000,
                   .pid = pid,
                   .start_ticks = 500},
          .socket_scope = "8:1"};
}

EndpointFacts Gpu(const char* boot_id, int64_t pid) {
  EndpointFacts facts = Process(boot_id, pid);
  facts.on_cuda = true;
  return facts;
}

TransportRequest Request(const char* text) { return ParseTransportRequest(text).value(); }

TEST(TransportChoice, ReadsRequests) {
  EXPECT_FALSE(Request("auto").kind.has_value());
  EXPECT_EQ(Request("ucx").kind, K::kUcx);
  EXPECT_FALSE(Request("ucx").required);
  EXPECT_EQ(Request("require:cuda_ipc").kind, K::kCudaIpc);
  EXPECT_TRUE(Request("require:cuda_ipc").required);
  for (const char* bad : {"", "tcp", "require:", "require:auto", "Auto", "require:require:ucx"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTransportRequest(bad).status())) << bad;
  }
}

TEST(TransportChoice, TakesTheCheapestKindThatCanWork) {
  const auto kinds = [](const char* request, const EndpointFacts& a, const EndpointFacts& b) {
    return ChooseTransport(Request(request), a, b).value().kinds;
  };
  const EndpointFacts one = Process("boot-a", 1);
  const EndpointFacts two = Process("boot-a", 2);
  const EndpointFacts far = Process("boot-b", 2);
  EXPECT_THAT(kinds("auto", one, two), ElementsAre(K::kPinnedHost, K::kUcx));
  EXPECT_THAT(kinds("auto", one, far), ElementsAre(K::kUcx));
  EXPECT_THAT(kinds("auto", one, one), ElementsAre(K::kLocal, K::kPinnedHost, K::kUcx));
  EXPECT_THAT(kinds("auto", Gpu("boot-a", 1), Gpu("boot-a", 2)),
              ElementsAre(K::kCudaIpc, K::kPinnedHost, K::kUcx));
  EXPECT_THAT(kinds("auto", Gpu("boot-a", 1), two), ElementsAre(K::kPinnedHost, K::kUcx));
  EXPECT_THAT(kinds("ucx", one, two), ElementsAre(K::kUcx, K::kPinnedHost));
  EXPECT_THAT(kinds("require:ucx", one, two), ElementsAre(K::kUcx));
  EXPECT_THAT(kinds("require:pinned_host", one, two), ElementsAre(K::kPinnedHost));
}

TEST(TransportChoice, SaysWhyInOneLine) {
  const EndpointFacts one = Process("boot-a", 1);
  const EndpointFacts two = Process("boot-a", 2);
  const std::string plain = ChooseTransport({}, one, two).value().reason;
  EXPECT_THAT(plain, HasSubstr("pinned_host, then ucx: both ends on one host"));
  EXPECT_THAT(plain, HasSubstr("CUDA"));
  EXPECT_EQ(plain.find('\n'), std::string::npos);
  const std::string fallen =
      ChooseTransport(Request("pinned_host"), one, Process("boot-b", 2)).value().reason;
  EXPECT_EQ(fallen, "ucx: pinned_host was asked for but pinned_host needs both ends on one host");
}

TEST(TransportChoice, RefusesARequiredKindThatCannotWork) {
  const auto error = [](const char* request, const EndpointFacts& a, const EndpointFacts& b) {
    return ChooseTransport(Request(request), a, b).status();
  };
  const EndpointFacts one = Process("boot-a", 1);
  const EndpointFacts two = Process("boot-a", 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(error("require:cuda_ipc", one, two)));
  EXPECT_TRUE(absl::IsFailedPrecondition(error("require:cuda_ipc", Gpu("boot-a", 1), two)));
  EXPECT_TRUE(absl::IsFailedPrecondition(error("require:pinned_host", one, Process("boot-b", 2))));
  EXPECT_TRUE(absl::IsFailedPrecondition(error("require:local", one, two)));
}

TEST(TransportChoice, KeepsCudaIpcToOneHostOneUserAndSharedNamespaces) {
  const EndpointFacts one = Gpu("boot-a", 1);
  const auto kinds = [&](const EndpointFacts& two) {
    return ChooseTransport(Request("auto"), one, two).value().kinds;
  };
  const auto required = [&](const EndpointFacts& two) {
    return ChooseTransport(Request("require:cuda_ipc"), one, two);
  };
  EndpointFacts two = Gpu("boot-a", 2);
  EXPECT_THAT(required(two).value().kinds, ElementsAre(K::kCudaIpc));
  two.host.pid_namespace = "pid:[2]";
  EXPECT_THAT(kinds(two), ElementsAre(K::kPinnedHost, K::kUcx));
  EXPECT_TRUE(absl::IsFailedPrecondition(required(two).status()));
  two = Gpu("boot-a", 2);
  two.host.ipc_namespace = "ipc:[2]";
  EXPECT_THAT(kinds(two), ElementsAre(K::kPinnedHost, K::kUcx));
  two = Gpu("boot-a", 2);
  two.host.user_id = 0;
  EXPECT_THAT(kinds(two), ElementsAre(K::kUcx));
  two = Gpu("boot-a", 2);
  two.socket_scope = "8:2";
  EXPECT_THAT(kinds(two), ElementsAre(K::kUcx));
  two = Gpu("boot-b", 2);
  EXPECT_THAT(kinds(two), ElementsAre(K::kUcx));
  EXPECT_THAT(required(two).status().message(), HasSubstr("one host"));
}

TEST(TransportChoice, KeepsPinnedHostToOneUserAndOneSocketFolder) {
  const EndpointFacts one = Process("boot-a", 1);
  EndpointFacts other_user = Process("boot-a", 2);
  other_user.host.user_id = 0;
  EXPECT_THAT(ChooseTransport({}, one, other_user).value().kinds, ElementsAre(K::kUcx));
  EndpointFacts other_folder = Process("boot-a", 2);
  other_folder.socket_scope = "8:2";
  EXPECT_THAT(ChooseTransport({}, one, other_folder).value().kinds, ElementsAre(K::kUcx));
  // Separate PID namespaces do not matter to it.
  EndpointFacts other_namespace = Process("boot-a", 1);
  other_namespace.host.pid_namespace = "pid:[2]";
  EXPECT_THAT(ChooseTransport({}, one, other_namespace).value().kinds,
              ElementsAre(K::kPinnedHost, K::kUcx));
  EndpointFacts nothing = other_folder;
  nothing.has_ucx = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(ChooseTransport({}, one, nothing).status()));
}

TEST(TransportChoice, KnowsASocketFolderAgain) {
  const auto root = ReadSocketScope("/");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(*root, *ReadSocketScope("/."));
  EXPECT_NE(*root, *ReadSocketScope("/proc"));
  EXPECT_TRUE(absl::IsNotFound(ReadSocketScope("/no/such/folder").status()));
}

}  // namespace
}  // namespace layercake::transport
