// A TCP connection that carries JSON objects, one per line, between the processes of a sweep. Nothing waits
// longer than it says; a peer that is gone, silent for a while or talks nonsense closes the link. So does one whose
// messages are long before it is known (handshake.h), or nested, or of more keys than any of ours, ever.
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
  /// Gives the socket up to the caller, who closes it: to say what no message is.
  int release() { return std::exchange(socket_, -1); }
  void close();
  /// The peer's address as a number, for messages.
  std::string peer() const;
  /// From here on messages may have kLongestMessage bytes, and no longer kLongestGreeting.
  void trust() { longest_ = kLongestMessage; }
  static constexpr std::size_t kLongestGreeting = 4096, kLongestMessage = std::size_t{1} << 20;

  /// Never waits: a peer that has not read for so long that the system's buffer is full closes the link.
  void send(const nlohmann::ordered_json& message);
  /// The next message that has arrived; none, at once, if there is none.
  std::optional<nlohmann::ordered_json> receive();
  /// Returns when something may have arrived, or after `timeouts`.
  void wait(std::chrono::milliseconds timeouts) const;

 private:
  int socket_ = -1;
  std::string arrived_;
  std::size_t longest_ = kLongestGreeting;
};

/// What stands under a key of a message, which may be anybody's; `otherwise` where nothing does, or what is of
/// another type or out of its range.
int integer_in(const nlohmann::ordered_json& message, const char* key, int otherwise);
double number_in(const nlohmann::ordered_json& message, const char* key, double otherwise);
bool flag_in(const nlohmann::ordered_json& message, const char* key, bool otherwise);
/// At most `most` bytes of it, whole characters.
std::string text_in(const nlohmann::ordered_json& message, const char* key, const std::string& otherwise,
                    std::size_t most = Link::kLongestMessage);

/// Listens at an address of this host. Throws InvalidInput where that is not possible.
class Listener {
 public:
  explicit Listener(const Address& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// A new connection; a closed link if none comes within `timeouts`.
  Link accept(std::chrono::milliseconds timeouts);

 private:
  int socket_ = -1;
};

/// One attempt; a closed link where nobody answers. Throws InvalidInput for a host that has no address.
Link connect_to(const Address& address);

/// "host-a:29501", "[::1]:29501"
std::string to_string(const Address& address);

}  // namespace precbench
