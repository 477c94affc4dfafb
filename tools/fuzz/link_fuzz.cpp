// Fuzzes a link between processes. Every received message must be an object whose fields can be read
// without exceptions.
#include "bench/process/link.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(link) {
  int ends[2];
  expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Link link(ends[0]);
  const ssize_t sent = send(ends[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  expect(sent >= 0 || size == 0);
  shutdown(ends[1], SHUT_WR);
  for (;;) {
    const auto message = link.receive();
    if (!message && !link.open()) break;
    if (!message) continue;
    expect(message->is_object());
    for (const char* key : {"process", "of", "host", "end", "status", "do", "timeout_s"}) {
      integer_in(*message, key, 0);
      number_in(*message, key, 0);
      flag_in(*message, key, false);
      text_in(*message, key, "");
    }
  }
  close(ends[1]);
  return 0;
}
