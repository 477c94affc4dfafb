// A TCP connection between the processes of a sweep that carries one JSON object per line. No call waits
// longer than its argument says. The link closes if the peer is gone, silent for a while, or sends nonsense;
// also if messages before the handshake are long (handshake.h), or if any is nested deeper or has more keys
// than ours ever do.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bench/process/rendezvous.h"

namespace precbench {

class Link {
 public:
  Link() = default;
  /// Takes over a connected socket.
  explicit Link(int socket);
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;
  ~Link() { close(); }

  bool open() const { return socket_ >= 0; }
  /// Releases the socket to the caller, who must close it; used to send what is no message.
  int release() { return std::exchange(socket_, -1); }
  void close();
  /// Returns the peer's numeric address, for messages.
  std::string peer() const;
  /// Raises the limit of a message from kLongestHandshakeMessage to kLongestMessage bytes.
  void trust() { longest_ = kLongestMessage; }
  static constexpr std::size_t kLongestHandshakeMessage = 4096, kLongestMessage = std::size_t{1} << 20;

  /// Never blocks: closes the link if the peer has not read for so long that the system's buffer is full.
  void send(const nlohmann::ordered_json& message);
  /// Returns the next message that has arrived, without waiting; null if there is none.
  std::optional<nlohmann::ordered_json> receive();
  /// Returns when data may have arrived, or after `timeout`.
  void wait(std::chrono::milliseconds timeout) const;

 private:
  int socket_ = -1;
  std::string arrived_;
  std::size_t longest_ = kLongestHandshakeMessage;
};

/// Return the value of a key of an untrusted message; `otherwise` if it is missing, of another type or out of
/// range.
int integer_in(const nlohmann::ordered_json& message, const char* key, int otherwise);
double number_in(const nlohmann::ordered_json& message, const char* key, double otherwise);
bool flag_in(const nlohmann::ordered_json& message, const char* key, bool otherwise);
/// Truncates the text to `most` bytes, between characters.
std::string text_in(const nlohmann::ordered_json& message, const char* key, const std::string& otherwise,
                    std::size_t most = Link::kLongestMessage);

/// Listens at an address of this host. The constructor throws InvalidInput if it cannot.
class Listener {
 public:
  explicit Listener(const Address& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// Returns a new connection; a closed link if none arrives within `timeout`.
  Link accept(std::chrono::milliseconds timeout);

 private:
  int socket_ = -1;
};

/// Tries once to connect; returns a closed link if nobody answers. Throws InvalidInput for a host that has no
/// address.
Link connect_to(const Address& address);

/// Returns "host-a:29501" or "[::1]:29501".
std::string to_string(const Address& address);

}  // namespace precbench
