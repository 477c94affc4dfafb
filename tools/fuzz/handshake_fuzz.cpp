// Fuzzes the messages of an untrusted coordinator to a process that wants to join. Without the secret
// it must be refused.
#include "bench/process/handshake.h"

#include "tools/fuzz/fuzz.h"
#include "tools/fuzz/peer.h"

using namespace precbench;

namespace {

struct Port {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int number = 0;
  Port() {
    sockaddr_in here = {};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    expect(bind(fd, reinterpret_cast<sockaddr*>(&here), size) == 0 && listen(fd, 8) == 0 &&
           getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) == 0);
    number = ntohs(here.sin_port);
    limit_waiting(fd);
  }
};

}  // namespace

PRECBENCH_FUZZ_TARGET(handshake) {
  static const Port port;
  std::thread coordinator([&] {
    if (const int fd = accept4(port.fd, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
      speak_and_hang_up(fd, text_of(data, size));
  });
  const HandshakeResult result =
      try_handshake({1, 2, 0, "the fuzzer"}, {"127.0.0.1", port.number}, kSecret, [] { return false; });
  expect(!result.link.open());
  coordinator.join();
  return 0;
}
