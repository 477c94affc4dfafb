// For tests: an address of this host on which nobody listened a moment ago.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "bench/process/rendezvous.h"

namespace precbench {

inline Address free_address() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here = {};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here;
  const bool bound = bind(probe, reinterpret_cast<sockaddr*>(&here), size) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&here), &size) == 0;
  close(probe);
  if (!bound) throw std::runtime_error("no free port");
  return {"127.0.0.1", ntohs(here.sin_port)};
}

}  // namespace precbench
