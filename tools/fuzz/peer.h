// Remote end of a connection for targets that use TCP on this host: sends its bytes, closes its sending side,
// and reads until the program hangs up.
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

/// Limits the time of reads and of waiting for a connection.
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
  const linger at_once = {1, 0};  // thousands of connections per minute must not leave ports in TIME_WAIT
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(socket);
}

/// Returns a socket connected to a local port that is or soon will be listened on; -1 if it is not.
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
