// Implements both sides of the handshake. See handshake.h.
#include "bench/process/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bench/case/sha256.h"
#include "bench/machine/environment.h"
#include "bench/process/tell.h"
#include "build_info.h"
#include "results/record/record.h"

namespace precbench {
namespace {

using namespace std::chrono_literals;
using Message = nlohmann::ordered_json;

constexpr int kProtocol = 3;
constexpr auto kGreetingPoll = 50ms;
// Large enough that a new client is polled several times before enough newer ones have come to make it the
// oldest.
constexpr std::size_t kMostStrangers = 256;
constexpr int kMostAtOnce = 32;         ///< connections accepted before existing ones are polled again
constexpr auto kBetweenRefusals = 10s;  ///< least interval between messages about refusals
constexpr std::size_t kLongestHost = 255, kLongestWord = 80;
constexpr std::size_t kNonceSize = 64;  ///< hex digits

/// Returns what both processes must have in common. Two builds of one commit with local changes may still
/// differ.
Message build() {
  return {{"precbench", kProtocol},
          {"schema", kSchemaVersion},
          {"method", kMethodVersion},
          {"commit", kBuildCommit},
          {"dirty", kBuildDirty}};
}

std::string describe(const Message& build) {
  return fmt::format("protocol {}, schema {}, method {}, commit {}{}", integer_in(build, "precbench", 0),
                     integer_in(build, "schema", 0), integer_in(build, "method", 0),
                     text_in(build, "commit", "unknown", kLongestWord),
                     flag_in(build, "dirty", false) ? " with changes" : "");
}

bool is_nonce(const std::string& text) {
  return text.size() == kNonceSize && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string proof_of(const std::string& secret, const char* role, const std::string& worker_nonce,
                     const std::string& coordinator_nonce, int process, int of) {
  return hex(
      hmac_sha256(secret, fmt::format("{} {} {} {} {}", role, worker_nonce, coordinator_nonce, process, of)));
}

}  // namespace

Reception::Reception(const Nodes& nodes, const Address& address, const std::string& secret,
                     std::chrono::seconds greeting_time)
    : nodes_(nodes), secret_(secret), greeting_time_(greeting_time), listener_(address) {}

std::vector<Guest> Reception::admit(std::chrono::milliseconds timeout,
                                    const std::function<bool(int)>& taken) {
  std::vector<Guest> guests;
  const auto here = [&](int process) {
    return taken(process) || std::any_of(guests.begin(), guests.end(),
                                         [&](const Guest& guest) { return guest.process == process; });
  };
  for (Stranger& stranger : strangers_) talk(stranger, guests, here);
  for (int i = 0; i < kMostAtOnce; ++i) {
    Link link = listener_.accept(i == 0 ? timeout : 0ms);
    if (!link.open()) break;
    const std::string address = link.peer();
    strangers_.push_back({std::move(link), address, Clock::now(), 0, "", "", ""});
    talk(strangers_.back(), guests, here);
  }
  std::erase_if(strangers_, [](const Stranger& s) { return !s.link.open(); });
  make_room();
  return guests;
}

void Reception::make_room() {
  std::map<std::string, int> count;
  for (const Stranger& stranger : strangers_) ++count[stranger.address];
  while (strangers_.size() > kMostStrangers) {
    const auto most = std::max_element(count.begin(), count.end(),
                                       [](const auto& x, const auto& y) { return x.second < y.second; });
    const auto oldest = std::find_if(strangers_.begin(), strangers_.end(),
                                     [&](const Stranger& s) { return count[s.address] == most->second; });
    --count[oldest->address];
    strangers_.erase(oldest);
  }
}

void Reception::talk(Stranger& stranger, std::vector<Guest>& guests, const std::function<bool(int)>& taken) {
  const auto message = stranger.link.receive();
  if (!message) {
    if (stranger.link.open() && Clock::now() - stranger.since > greeting_time_)
      refuse(stranger, fmt::format("has not come in within {} s", greeting_time_ / 1s));
  } else if (stranger.process == 0) {
    answer(stranger, *message, taken);
  } else if (!equal_in_constant_time(text_in(*message, "proof", ""), stranger.its_proof)) {
    refuse(stranger, "does not know the secret (PRECBENCH_SECRET)");
  } else if (taken(stranger.process)) {
    refuse(stranger, fmt::format("is the second that says it is process {}", stranger.process));
  } else {
    stranger.link.send({{"proof", stranger.our_proof}});
    stranger.link.trust();
    guests.push_back({stranger.process, stranger.host, std::exchange(stranger.link, Link())});
  }
}

void Reception::answer(Stranger& stranger, const Message& hello, const std::function<bool(int)>& taken) {
  const std::string nonce = text_in(hello, "nonce", "");
  const int process = integer_in(hello, "process", -1), of = integer_in(hello, "of", -1);
  if (describe(hello) != describe(build()) || !is_nonce(nonce))
    return refuse(stranger, fmt::format("is another version: {}", describe(hello)),
                  fmt::format("; this one is {}", describe(build())));
  if (of != nodes_.count || process < 1 || process >= nodes_.count)
    return refuse(stranger, fmt::format("says that it is process {} of {}", process, of),
                  fmt::format("; this one is 0 of {}", nodes_.count));
  if (taken(process))
    return refuse(stranger, fmt::format("is the second that says it is process {}", process));
  const std::string own = random_hex();
  stranger.host = text_in(hello, "host", stranger.address, kLongestHost);
  stranger.its_proof = proof_of(secret_, "worker", nonce, own, process, of);
  stranger.our_proof = proof_of(secret_, "coordinator", nonce, own, process, of);
  stranger.process = process;
  stranger.link.send({{"nonce", own}});
}

void Reception::refuse(Stranger& stranger, const std::string& why, const std::string& here) {
  last_refusal_ = fmt::format("a process at {} {}{}", stranger.address, why, here);
  stranger.link.send({{"refused", why}});
  stranger.link.close();
  if (Clock::now() < quiet_until_) {
    ++unsaid_;
    return;
  }
  tell(fmt::format("precbench: refused: {}{}", *last_refusal_,
                   unsaid_ ? fmt::format(" (and {} before it)", unsaid_) : ""));
  unsaid_ = 0;
  quiet_until_ = Clock::now() + kBetweenRefusals;
}

Greeting greet(const Nodes& nodes, const Address& address, const std::string& secret,
               const std::function<bool()>& give_up, std::chrono::seconds greeting_time) {
  Link link = connect_to(address);
  if (!link.open()) return {};
  const std::string own = random_hex();
  Message hello = build();
  hello.update({{"process", nodes.index}, {"of", nodes.count}, {"host", host_name()}, {"nonce", own}});
  link.send(hello);
  const auto end = std::chrono::steady_clock::now() + greeting_time;
  for (std::string nonce; link.open() && std::chrono::steady_clock::now() < end && !give_up();) {
    link.wait(kGreetingPoll);
    const auto message = link.receive();
    if (!message) continue;
    if (const std::string why = text_in(*message, "refused", "", Link::kLongestGreeting); !why.empty())
      return {Link(), "it refused this process, which " + why};
    if (nonce.empty()) {
      nonce = text_in(*message, "nonce", "");
      if (!is_nonce(nonce)) return {Link(), "it is not process 0 of this version"};
      link.send({{"proof", proof_of(secret, "worker", own, nonce, nodes.index, nodes.count)}});
      continue;
    }
    if (!equal_in_constant_time(text_in(*message, "proof", ""),
                                proof_of(secret, "coordinator", own, nonce, nodes.index, nodes.count)))
      return {Link(), "it does not know the secret (PRECBENCH_SECRET)"};
    link.trust();
    return {std::move(link), std::nullopt};
  }
  return {Link(), "it did not let this process in"};
}

}  // namespace precbench
