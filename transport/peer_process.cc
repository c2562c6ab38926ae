#include "transport/peer_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace layercake::transport {

PeerProcess::PeerProcess(std::vector<std::string> words)
    : child_(base::StartPipedChild(std::move(words))) {}

bool PeerProcess::Write(const std::string& line) const { return base::WriteLine(child_, line); }

std::string PeerProcess::ReadLine() const {
  std::string line;
  char c = 0;
  while (read(child_.output.get(), &c, 1) == 1 && c != '\n') line += c;
  return line;
}

void PeerProcess::Kill() {
  if (child_.pid <= 0) return;
  kill(child_.pid, SIGKILL);
  waitpid(child_.pid, nullptr, 0);
  child_.pid = -1;
}

}  // namespace layercake::transport
