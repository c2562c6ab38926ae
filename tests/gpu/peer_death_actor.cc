#include "tests/gpu/peer_death_actor.h"

#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/gpu/bounded_process.h"
#include "tests/gpu/peer_death_device.h"

namespace layercake::testing {
namespace {

using Words = std::istringstream;

void Print(const Answer& answer) { std::cout << FormatAnswer(answer) << std::endl; }

double Number(Words& words) {
  double value = 0;
  words >> value;
  return value;
}
size_t Size(Words& words) { return static_cast<size_t>(Number(words)); }
uint32_t Value(Words& words) { return static_cast<uint32_t>(Number(words)); }

using Commands = std::map<std::string, std::function<Answer(PeerDeathDevice&, Words&)>>;

Commands MakeCommands() {
  using Device = PeerDeathDevice;
  return {
      {"allocate", [](Device& d, Words& w) { return d.Allocate(Size(w)); }},
      {"free", [](Device& d, Words&) { return d.Free(); }},
      {"map",
       [](Device& d, Words& w) {
         std::string handle;
         w >> handle;
         return d.Map(handle, Size(w));
       }},
      {"close", [](Device& d, Words&) { return d.Close(); }},
      {"copy", [](Device& d, Words&) { return d.Copy(); }},
      {"store", [](Device& d, Words& w) { return d.Store(Value(w)); }},
      {"storefor", [](Device& d, Words& w) { return d.StoreFor(Number(w), Print); }},
      {"queue",
       [](Device& d, Words& w) {
         const size_t count = Size(w);
         const double seconds = Number(w);
         return d.Queue(count, seconds, Value(w), Print);
       }},
      {"sync", [](Device& d, Words&) { return d.Sync(); }},
      {"read", [](Device& d, Words& w) { return d.Read(Value(w)); }},
      {"look", [](Device& d, Words& w) { return d.Look(Value(w)); }},
      {"await",
       [](Device& d, Words& w) {
         const uint32_t value = Value(w);
         return d.Await(value, Number(w));
       }},
      {"own", [](Device& d, Words&) { return d.Own(); }},
      {"trap", [](Device& d, Words&) { return d.Trap(); }},
      {"spin", [](Device& d, Words& w) { return d.Spin(Number(w)); }},
      {"calls", [](Device& d, Words&) { return d.Calls(); }},
      {"pin", [](Device& d, Words& w) { return d.Pin(Size(w)); }},
      {"room", [](Device& d, Words&) { return d.Room(); }},
      {"awaitroom",
       [](Device& d, Words& w) {
         const size_t bytes = Size(w);
         return d.AwaitRoom(bytes, Number(w));
       }},
      {"take",
       [](Device& d, Words& w) {
         const size_t bytes = Size(w);
         return d.Take(bytes, Number(w));
       }},
  };
}

}  // namespace

int RunPeerDeathActor(int device_index) {
  EndWithParent(absl::Seconds(60));
  const Commands commands = MakeCommands();
  PeerDeathDevice device(device_index);
  Print(device.Start());
  std::string line;
  while (std::getline(std::cin, line)) {
    Words words(line);
    std::string command;
    words >> command;
    const auto found = commands.find(command);
    if (found == commands.end()) return 2;
    Print(found->second(device, words));
  }
  return 0;
}

}  // namespace layercake::testing
