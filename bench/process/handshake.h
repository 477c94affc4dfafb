// How the processes of a sweep let each other in: the same build, a process that is wanted, and the knowledge of one
// secret, which neither sends. A stranger costs a line on standard error and no time.
//
//   worker   {"precbench": protocol, "schema", "method", "commit", "dirty", "process", "of", "host", "nonce"}
//   coordinator     {"nonce"}
//   worker   {"proof"}: HMAC-SHA256 of its role, both nonces, process and of, by the secret as key
//   coordinator     {"proof"}: the same for its own role, which is the welcome
//
// Instead of either of its answers the coordinator may say {"refused": why} and close. A stranger gets no proof at which it
// could try secrets, nor what a right hello would be; only who takes the coordinator's place hears a worker's proof, and
// rendezvous.h asks for a secret that cannot be guessed. Without one the key is empty: then anybody with this build can come
// in. What follows is neither encrypted nor signed: who can change what is on the wire can do so.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/process/link.h"
#include "bench/process/rendezvous.h"

namespace precbench {

/// From connecting to being let in.
inline constexpr std::chrono::seconds kGreetingTime{10};

struct Guest {
  int process;
  std::string host;
  Link link;
};

/// The coordinator's side. Whoever connects has a few seconds and a few kilobytes. Of too many, the oldest of the address
/// that has most make room: what somebody says before the proof is no merit, and one who is new needs a moment.
class Reception {
 public:
  /// Throws InvalidInput where it cannot listen.
  Reception(const Nodes& nodes, const Address& address, const std::string& secret,
            std::chrono::seconds greeting_time = kGreetingTime);

  /// Those who have been let in since the last call; waits for `timeouts` at most. `taken`: processes that are here.
  std::vector<Guest> admit(std::chrono::milliseconds timeouts, const std::function<bool(int)>& taken);
  /// Who was refused last, and why; empty where nobody was.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    Link link;
    std::string address;
    Clock::time_point since;
    int process = 0;  // what its hello says; 0: it has said none
    std::string host, its_proof, our_proof;
  };
  void talk(Stranger& stranger, std::vector<Guest>& guests, const std::function<bool(int)>& taken);
  void answer(Stranger& stranger, const nlohmann::ordered_json& hello, const std::function<bool(int)>& taken);
  /// `here`: what is not for strangers.
  void refuse(Stranger& stranger, const std::string& why, const std::string& here = "");
  void make_room();  // where there are too many

  Nodes nodes_;
  std::string secret_;
  std::chrono::seconds greeting_time_;
  Listener listener_;
  std::deque<Stranger> strangers_;  // the oldest first
  std::string last_refusal_;
  Clock::time_point quiet_until_;
  int unsaid_ = 0;  // refusals since the last line about one
};

/// The worker's side, one attempt: an open link once it is let in.
struct Greeting {
  Link link;
  std::string refusal;  ///< why not, where somebody answered
};
Greeting greet(const Nodes& nodes, const Address& address, const std::string& secret,
               const std::function<bool()>& give_up, std::chrono::seconds greeting_time = kGreetingTime);

}  // namespace precbench
