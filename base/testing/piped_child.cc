#include "base/testing/piped_child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace layercake::base {

PipedChild StartPipedChild(std::vector<std::string> words) {
  PipedChild child;
  std::array<int, 2> to{-1, -1};
  std::array<int, 2> from{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to.data()) != 0) return child;
  const UniqueFd their_input(to[0]);
  child.input.Reset(to[1]);
  if (pipe2(from.data(), O_CLOEXEC) != 0) return child;
  const UniqueFd their_output(from[1]);
  child.output.Reset(from[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, their_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, their_output.get(), STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int error =
      posix_spawn(&child.pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) child.pid = -1;
  return child;
}

bool WriteLine(const PipedChild& child, const std::string& line) {
  const std::string text = line + "\n";
  return send(child.input.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace layercake::base
