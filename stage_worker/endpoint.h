// What an end of a channel says of itself on the wire, and back. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "layercake/v1/control.pb.h"
#include "transport/transport_choice.h"

namespace layercake::stage_worker {

// `host_name` is for people.
v1::HostIdentity ToProto(const transport::EndpointFacts& facts, const std::string& host_name);

// The facts of a peer that sent `host` and offers (or not) a ucx and a cuda_ipc channel. A field
// that it left out stays empty and matches nothing. DataLoss when ipc_domain has another shape.
absl::StatusOr<transport::EndpointFacts> FromProto(const v1::HostIdentity& host, bool has_ucx,
                                                   bool on_cuda);

// "stage 1 (host b)": how messages name a neighbour.
std::string DescribePeer(int stage, const std::string& host_name);

}  // namespace layercake::stage_worker
