// One process of peer_death_benchmark: a CUDA device that does as it is told.
#pragma once

namespace layercake::testing {

// Greets with an answer, then serves the commands on standard input until it ends: the names of
// PeerDeathDevice's calls in small letters with their arguments, as in "map HANDLE BYTES". One line
// of answer (peer_death_answer.h) for each; "queue" and "storefor" have one more, before they
// begin.
int RunPeerDeathActor(int device);

}  // namespace layercake::testing
