// What comes to the coordinator of a sweep of several processes: up to the first null byte from a stranger while the
// processes meet, behind it from a worker that has been let in and runs a case.
#include "bench/process/coordinator.h"

#include <atomic>

#include "bench/process/handshake.h"
#include "bench/process/rendezvous_testing.h"
#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/peer.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

/// Comes in as process 1 of 2 does, unless it is `over`, then says `reports`.
void follow_with(const Address& address, std::string_view reports, const std::atomic<bool>& over) {
  while (!over) {
    Greeting greeting = greet({1, 2, 0, "the fuzzer"}, address, kSecret, [&] { return over.load(); });
    greeting.link.wait(1s);  // for the case: who speaks before is turned away
    if (greeting.link.open()) return speak_and_hang_up(greeting.link.release(), reports);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Address address = free_address();
  const std::string_view text = text_of(data, size);
  const std::size_t gap = text.find('\0');
  const std::string_view to_stranger = text.substr(0, gap);
  const std::string_view reports = gap == text.npos ? "" : text.substr(gap + 1);
  std::thread stranger([&] {
    if (const int fd = connected_to(address.port); fd >= 0) speak_and_hang_up(fd, to_stranger);
  });
  std::atomic<bool> over = false;
  std::thread worker([&] { follow_with(address, reports, over); });
  taken([] {
    Coordinator coordinator({0, 2, 0, "the fuzzer"}, address, kSecret,
                            {.meet = 100ms, .stop = 5ms, .row = 5ms});
    Case c;
    c.gpus = 2;
    coordinator.run({"/bin/true"}, resolve(c), 1);
    coordinator.lost();
    coordinator.finish(0);
  });
  over = true;
  stranger.join();
  worker.join();
  return 0;
}
