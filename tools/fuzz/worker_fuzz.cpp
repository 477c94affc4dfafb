// Fuzzes the messages of a coordinator that knows the secret to a worker of a multi-process sweep. The cases
// run a program that does nothing.
#include "bench/process/worker.h"

#include <atomic>

#include "bench/process/handshake.h"
#include "bench/process/rendezvous_testing.h"
#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/peer.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

/// Returns the two cases of the worker's own sweep.
std::vector<Case> grid() {
  Case one, other;
  one.gpus = other.gpus = 2;
  other.seq = 64;
  return {one, other};
}

}  // namespace

PRECBENCH_FUZZ_TARGET(worker) {
  static const Address address = free_address();
  static const std::vector<Case> cases = grid();
  HandshakeListener listener({0, 2, 0, "the fuzzer"}, address, kSecret);
  std::atomic<bool> over = false;
  std::thread coordinator([&] {
    while (!over)
      for (JoinedWorker& joined : listener.admit(10ms, [](int) { return false; }))
        return speak_and_hang_up(joined.link.release(), text_of(data, size));
  });
  taken([] {
    run_worker({1, 2, 0, "the fuzzer"}, address, kSecret, cases, {"/bin/true"},
               {.meet = 1s, .stop = 100ms, .row = 100ms});
  });
  over = true;
  coordinator.join();
  return 0;
}
