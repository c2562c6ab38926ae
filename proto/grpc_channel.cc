#include "proto/grpc_channel.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace layercake {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;
// A peer that starts later is found within about a second, not within gRPC's two minutes.
constexpr int kFirstReconnectMs = 200;
constexpr int kMostReconnectMs = 1000;

struct PemTexts {
  std::string certificate;
  std::string key;
  std::string authority;
};

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  const std::string attempt = absl::StrCat("read the TLS ", what, " ", path);
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return base::PosixError(attempt, errno);
  std::string text(kMaxPemBytes + 1, '\0');
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::PosixError(attempt, errno);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  if (length > kMaxPemBytes || text.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(attempt, ": this is no PEM file of at most 1 MiB"));
  }
  return text;
}

absl::StatusOr<PemTexts> ReadAll(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty() || files.authority.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mutual TLS needs three files: certificate (\"", files.certificate,
                     "\"), key (\"", files.key, "\") and authority (\"", files.authority, "\")"));
  }
  PemTexts texts;
  LC_ASSIGN_OR_RETURN(texts.certificate, ReadPem("certificate", files.certificate));
  LC_ASSIGN_OR_RETURN(texts.key, ReadPem("key", files.key));
  LC_ASSIGN_OR_RETURN(texts.authority, ReadPem("authority", files.authority));
  return texts;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  LC_ASSIGN_OR_RETURN(PemTexts texts, ReadAll(files));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(texts.authority);
  options.pem_key_cert_pairs.push_back({std::move(texts.key), std::move(texts.certificate)});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // A Session that waits for work sends nothing: pings must go on all the same.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostReconnectMs);
  // Names of proxies in the environment are meant for the web, not for the next machine.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.tls.empty()) {
    LC_ASSIGN_OR_RETURN(PemTexts texts, ReadAll(options.tls));
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = std::move(texts.authority);
    ssl.pem_private_key = std::move(texts.key);
    ssl.pem_cert_chain = std::move(texts.certificate);
    credentials = grpc::SslCredentials(ssl);
  }
  return grpc::CreateCustomChannel(options.target, credentials, arguments);
}

}  // namespace layercake
