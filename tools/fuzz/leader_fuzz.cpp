// What comes to the leader of a sweep of several processes: up to the first null byte from a stranger while the
// processes meet, behind it from a follower that has been let in and runs a case.
#include "bench/leader.h"

#include <fmt/format.h>

#include "bench/nodes_testing.h"
#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/peer.h"

using namespace precbench;
using namespace std::chrono_literals;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Address address = free_address();
  const std::string_view text = text_of(data, size);
  const std::size_t gap = text.find('\0');
  const std::string_view to_stranger = text.substr(0, gap);
  const std::string reports = R"({"process": 1, "of": 2, "host": "fuzzer"})"
                              "\n" +
                              std::string(gap == text.npos ? "" : text.substr(gap + 1));
  const auto speak = [](std::string_view words) {
    if (const int fd = connected_to(address.port); fd >= 0) speak_and_hang_up(fd, words);
  };
  std::thread stranger(speak, to_stranger), follower(speak, std::string_view(reports));
  taken([] {
    Leader leader({0, 2, 0, "the fuzzer"}, address, {.meet = 100ms, .stop = 5ms, .row = 5ms});
    Case c;
    c.gpus = 2;
    leader.run({"/bin/true"}, c, 1);
    leader.lost();
    leader.finish(0);
  });
  stranger.join();
  follower.join();
  return 0;
}
