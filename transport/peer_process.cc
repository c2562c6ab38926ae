#include "transport/peer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace layercake::transport {

PeerProcess::PeerProcess(std::vector<std::string> words) {
  std::array<int, 2> to{-1, -1};
  std::array<int, 2> from{-1, -1};
  // Writes into a socket can do without SIGPIPE, writes into a pipe cannot.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to.data()) != 0) return;
  const base::UniqueFd their_input(to[0]);
  input_.Reset(to[1]);
  if (pipe2(from.data(), O_CLOEXEC) != 0) return;
  const base::UniqueFd their_output(from[1]);
  output_.Reset(from[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, their_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, their_output.get(), STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int error = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) pid_ = -1;
}

bool PeerProcess::Write(const std::string& line) const {
  const std::string text = line + "\n";
  return send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

std::string PeerProcess::ReadLine() const {
  std::string line;
  char c = 0;
  while (read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
  return line;
}

void PeerProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace layercake::transport
