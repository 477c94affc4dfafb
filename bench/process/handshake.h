// The handshake with which the processes of a sweep admit each other. It requires the same build, an expected
// process number, and knowledge of a secret that neither side sends. An unknown client costs a line on
// standard error and no time.
//
//   worker       {"precbench": protocol, "schema", "method", "commit", "dirty", "process", "of", "host",
//                 "nonce"}
//   coordinator  {"nonce"}
//   worker       {"proof"}: HMAC-SHA256, keyed by the secret, of its role, both nonces, process and of
//   coordinator  {"proof"}: the same for its own role, which completes the handshake
//
// Instead of either answer the coordinator may send {"refused": why} and close. It adds "again": true if the
// worker may try again; any other refusal is final. A worker of another build, of another number of processes
// or with a number that is taken is refused only after its proof: it then belongs to this sweep, whose
// processes cannot agree. Clients without a proof never end a sweep. A client without the secret gets neither
// a proof against which it could try secrets nor a valid hello. Only an impostor of the
// coordinator receives a worker's proof, and rendezvous.h requires a secret that cannot be guessed. Without a
// secret the key is empty, and anybody with this build can connect. Later messages are neither encrypted nor
// signed: whoever controls the network can change them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/process/link.h"
#include "bench/process/rendezvous.h"

namespace precbench {

/// Time from connecting to the end of the handshake.
inline constexpr std::chrono::seconds kHandshakeTimeout{10};

struct JoinedWorker {
  int process;
  std::string host;
  Link link;
};

/// The coordinator's side: listens for workers and admits them. Each client has a few seconds and a few
/// kilobytes. If there are too many, the oldest of the address with most connections are dropped: messages
/// before the proof give no priority, and a new client needs a moment.
class HandshakeListener {
 public:
  /// Throws InvalidInput if it cannot listen.
  HandshakeListener(const Nodes& nodes, const Address& address, const std::string& secret,
                    std::chrono::seconds handshake_timeout = kHandshakeTimeout);

  /// Returns the processes admitted since the last call; waits at most `timeout`. `taken`: true for
  /// processes already here.
  std::vector<JoinedWorker> admit(std::chrono::milliseconds timeout, const std::function<bool(int)>& taken);
  /// Returns which client was refused last, and why; null if none was.
  const std::optional<std::string>& last_refusal() const { return last_refusal_; }
  /// Returns why the processes of this sweep cannot agree: the last refusal of a client that knows the secret.
  /// Null if there was none.
  const std::optional<std::string>& conflict() const { return conflict_; }
  /// Returns true if a client is in the middle of its handshake.
  bool has_pending() const { return !pending_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct PendingConnection {
    Link link;
    std::string address;
    Clock::time_point since;
    bool greeted = false;  // its hello has arrived
    int process = 0;       // from its hello, not checked
    std::string host = {}, its_proof = {}, our_proof = {};
    std::string mismatch = {};  // why it cannot be admitted even with a proof; empty if it can
  };
  void advance(PendingConnection& connection, std::vector<JoinedWorker>& joined_workers,
               const std::function<bool(int)>& taken);
  void answer_hello(PendingConnection& connection, const nlohmann::ordered_json& hello);
  enum class Refusal : std::uint8_t { final, again };
  /// `here`: additional text for this side only.
  void refuse(PendingConnection& connection, const std::string& why, const std::string& here = "",
              Refusal kind = Refusal::final);
  void drop_excess();  // drops clients if there are too many

  Nodes nodes_;
  std::string secret_;
  std::chrono::seconds handshake_timeout_;
  Listener listener_;
  std::deque<PendingConnection> pending_;  // oldest first
  std::optional<std::string> last_refusal_, conflict_;
  Clock::time_point next_report_;
  int unreported_ = 0;  // refusals since the last message about one
};

/// Result of a worker's attempt: an open link if it was admitted.
struct HandshakeResult {
  Link link;
  std::optional<std::string> refusal;  ///< reason, if somebody answered and refused
  bool final = false;  ///< the refusal came from a coordinator that will not admit this process
};
/// The worker's side: connects once and completes the handshake, unless give_up() returns true.
HandshakeResult try_handshake(const Nodes& nodes, const Address& address, const std::string& secret,
                              const std::function<bool()>& give_up,
                              std::chrono::seconds handshake_timeout = kHandshakeTimeout);

}  // namespace precbench
