// The other end of a connection in the targets that speak TCP on this host: sends its bytes, says that no more will
// come, and reads until the program hangs up.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string_view>
#include <thread>

namespace precbench {

inline constexpr const char* kSecret = "the fuzzer and the program know it";

/// No read, and no wait for a connection, takes longer.
inline void limit_waiting(int socket) {
  constexpr timeval kLimit = {5, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kLimit, sizeof kLimit);
}

inline void speak_and_hang_up(int socket, std::string_view words) {
  limit_waiting(socket);
  while (!words.empty()) {
    const ssize_t sent = send(socket, words.data(), words.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    words.remove_prefix(static_cast<std::size_t>(sent));
  }
  shutdown(socket, SHUT_WR);
  std::array<char, 4096> heard;
  while (recv(socket, heard.data(), heard.size(), 0) > 0) continue;
  const linger at_once = {1, 0};  // thousands of connections a minute must not leave their ports waiting
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(socket);
}

/// Connected to a port of this host on which somebody listens by now or soon; -1 if nobody does.
inline int connected_to(int port) {
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<std::uint16_t>(port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int attempt = 0; attempt < 200; ++attempt, std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0) return fd;
    close(fd);
  }
  return -1;
}

}  // namespace precbench
