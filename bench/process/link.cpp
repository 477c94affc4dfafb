// Plain sockets, non-blocking once connected. See link.h.
#include "bench/process/link.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

/// Limits of a message: a case is an object of some thirty fields inside another.
constexpr std::size_t kDeepest = 4, kMostMembers = 100;
constexpr int kConnectSeconds = 2;  ///< per attempt, if the host does not answer at all
// A host without power or cable sends nothing: it is probed after 10 s of silence and considered gone after
// three more probes.
constexpr int kKeepIdleSeconds = 10, kKeepIntervalSeconds = 5, kKeepCount = 3;
// Unacknowledged data suppresses these probes, so it gets a timeout of the same length.
constexpr int kAnswerMilliseconds = 1000 * (kKeepIdleSeconds + kKeepIntervalSeconds * kKeepCount);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const Address& address) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error =
          getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found))
    throw InvalidInput(fmt::format("NCCL_COMM_ID: {}: {}", address.host, gai_strerror(error)));
  return {found, &freeaddrinfo};
}

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

bool readable(int socket, std::chrono::milliseconds timeout) {
  pollfd polled = {socket, POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(timeout.count())) > 0;
}

/// True if the system has given the socket the very port that it connects to, on which nobody listens.
bool connected_to_itself(int socket) {
  sockaddr_storage here = {}, there = {};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

}  // namespace

Link::Link(int socket) : socket_(socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kAnswerMilliseconds);
}

Link::Link(Link&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      arrived_(std::move(other.arrived_)),
      longest_(other.longest_) {}

Link& Link::operator=(Link&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(arrived_, other.arrived_);
  std::swap(longest_, other.longest_);
  return *this;
}

void Link::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

std::string Link::peer() const {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host = {};
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "unknown";
  return host.data();
}

void Link::send(const nlohmann::ordered_json& message) {
  // Output of a child need not be UTF-8.
  const std::string line =
      message.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; open() && done < line.size();) {
    const ssize_t sent = ::send(socket_, line.data() + done, line.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      done += static_cast<std::size_t>(sent);
    else if (errno != EINTR)
      close();
  }
}

std::optional<nlohmann::ordered_json> Link::receive() {
  std::array<char, 65536> buffer;
  // One byte more than allowed reveals a message that is too long. Later messages may wait in the system's
  // buffer.
  for (ssize_t got = 1; open() && got > 0 && arrived_.size() <= longest_;) {
    got = recv(socket_, buffer.data(), std::min(buffer.size(), longest_ + 1 - arrived_.size()), MSG_DONTWAIT);
    if (got > 0) arrived_.append(buffer.data(), static_cast<std::size_t>(got));
    // Data that arrived before the end of the connection is still processed.
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close();
  }
  const std::size_t end = arrived_.find('\n');
  if (end == std::string::npos) {
    if (arrived_.size() > longest_) close();
    return std::nullopt;
  }
  const std::string line = arrived_.substr(0, end);
  arrived_.erase(0, end + 1);
  try {
    const JsonLimits limits = {.bytes = longest_, .depth = kDeepest, .members = kMostMembers};
    auto message = parse_untrusted<nlohmann::ordered_json>(line, limits);
    if (message.is_object()) return message;
  } catch (const InvalidInput&) {
  }
  close();
  arrived_.clear();
  return std::nullopt;
}

void Link::wait(std::chrono::milliseconds timeout) const {
  if (open() && arrived_.find('\n') == std::string::npos) readable(socket_, timeout);
}

int integer_in(const nlohmann::ordered_json& message, const char* key, int otherwise) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_number_integer()) return otherwise;
  const auto in_range = [&](auto value) {
    return std::in_range<int>(value) ? static_cast<int>(value) : otherwise;
  };
  return found->is_number_unsigned() ? in_range(found->get<std::uint64_t>())
                                     : in_range(found->get<std::int64_t>());
}

double number_in(const nlohmann::ordered_json& message, const char* key, double otherwise) {
  const auto found = message.find(key);
  return found != message.end() && found->is_number() ? found->get<double>() : otherwise;
}

bool flag_in(const nlohmann::ordered_json& message, const char* key, bool otherwise) {
  const auto found = message.find(key);
  return found != message.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

std::string text_in(const nlohmann::ordered_json& message, const char* key, const std::string& otherwise,
                    std::size_t most) {
  const auto found = message.find(key);
  std::string text = found != message.end() && found->is_string() ? found->get<std::string>() : otherwise;
  const auto inside_character = [&](std::size_t at) { return (text[at] & 0xc0) == 0x80; };
  if (text.size() > most) {
    while (most > 0 && inside_character(most)) --most;
    text.resize(most);
  }
  return text;
}

Listener::Listener(const Address& address) {
  const Addresses found = resolve(address);
  socket_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  set(socket_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (socket_ >= 0 && bind(socket_, found->ai_addr, found->ai_addrlen) == 0 &&
      listen(socket_, SOMAXCONN) == 0)
    return;
  const int reason = errno;
  ::close(socket_);
  throw InvalidInput(
      fmt::format("NCCL_COMM_ID: process 0 cannot listen at {}: {}", to_string(address), error_text(reason)));
}

Listener::~Listener() { ::close(socket_); }

Link Listener::accept(std::chrono::milliseconds timeout) {
  if (!readable(socket_, timeout)) return Link();
  const int connected = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  return connected < 0 ? Link() : Link(connected);
}

Link connect_to(const Address& address) {
  const Addresses found = resolve(address);
  for (const addrinfo* a = found.get(); a; a = a->ai_next) {
    const int attempt = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (attempt < 0) continue;
    const timeval limit = {kConnectSeconds, 0};
    setsockopt(attempt, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // limits connect, too
    if (connect(attempt, a->ai_addr, a->ai_addrlen) == 0 && !connected_to_itself(attempt))
      return Link(attempt);
    ::close(attempt);
  }
  return Link();
}

std::string to_string(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", address.host, v6 ? "]" : "", address.port);
}

}  // namespace precbench
