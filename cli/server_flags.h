// How a command reaches a server that runs already.
// Thread rule: plain data.
#pragma once

#include <string>

#include "cli/flags.h"
#include "proto/grpc_channel.h"

namespace layercake::cli {

struct ServerFlags {
  std::string server;
  TlsFiles tls;
};

inline void AddServerFlags(FlagTable& table, ServerFlags* flags, absl::string_view help) {
  table.Text("--server", &flags->server, help);
  table.Text("--tls-certificate", &flags->tls.certificate, "PEM file, towards --server");
  table.Text("--tls-key", &flags->tls.key, "PEM file, towards --server");
  table.Text("--tls-authority", &flags->tls.authority,
             "PEM file: who signs the server's certificate");
}

}  // namespace layercake::cli
