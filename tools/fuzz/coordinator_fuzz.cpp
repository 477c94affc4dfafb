// Fuzzes the coordinator of a multi-process sweep. Bytes up to the first null come from a client during the
// rendezvous, the others from an admitted worker that runs a case.
#include "bench/process/coordinator.h"

#include <atomic>

#include "bench/process/handshake.h"
#include "bench/process/rendezvous_testing.h"
#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/peer.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

/// Joins as process 1 of 2 unless `over`, then sends `reports`.
void follow_with(const Address& address, std::string_view reports, const std::atomic<bool>& over) {
  while (!over) {
    HandshakeResult result =
        try_handshake({1, 2, 0, "the fuzzer"}, address, kSecret, [&] { return over.load(); });
    result.link.wait(1s);  // wait for the case: earlier messages are rejected
    if (result.link.open()) return speak_and_hang_up(result.link.release(), reports);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

PRECBENCH_FUZZ_TARGET(coordinator) {
  static const Address address = free_address();
  const std::string_view text = text_of(data, size);
  const std::size_t gap = text.find('\0');
  const std::string_view to_client = text.substr(0, gap);
  const std::string_view reports = gap == text.npos ? "" : text.substr(gap + 1);
  std::thread client([&] {
    if (const int fd = connected_to(address.port); fd >= 0) speak_and_hang_up(fd, to_client);
  });
  std::atomic<bool> over = false;
  std::thread worker([&] { follow_with(address, reports, over); });
  taken([] {
    Coordinator coordinator({0, 2, 0, "the fuzzer"}, address, kSecret,
                            {.meet = 100ms, .stop = 5ms, .row = 5ms, .farewell = 5ms});
    Case c;
    c.gpus = 2;
    coordinator.run({"/bin/true"}, validate(c), 1);
    coordinator.lost();
    coordinator.finish(0);
  });
  over = true;
  client.join();
  worker.join();
  return 0;
}
