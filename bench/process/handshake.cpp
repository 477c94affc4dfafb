// Implements both sides of the handshake. See handshake.h.
#include "bench/process/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bench/machine/build_info.h"
#include "bench/machine/environment.h"
#include "bench/process/standard_error.h"
#include "kernels/base/sha256.h"
#include "results/record/record.h"

namespace precbench {
namespace {

using namespace std::chrono_literals;
using Message = nlohmann::ordered_json;

constexpr int kProtocol = 4;
constexpr auto kHandshakePoll = 50ms;
// Large enough that a new client is polled several times before enough newer ones have come to make it the
// oldest.
constexpr std::size_t kMaxPending = 256;
constexpr int kMaxAcceptsAtOnce = 32;  ///< connections accepted before existing ones are polled again
constexpr auto kBetweenReports = 10s;  ///< least interval between messages about refusals
constexpr std::size_t kLongestHost = 255, kLongestWord = 80;
constexpr std::size_t kNonceSize = 64;  ///< hex digits

/// Returns what both processes must have in common. Two builds of one commit with local changes may still
/// differ.
Message build() {
  return {{"precbench", kProtocol},
          {"schema", kSchemaVersion},
          {"method", kMethodVersion},
          {"commit", build_info().commit},
          {"dirty", build_info().dirty}};
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

HandshakeListener::HandshakeListener(const Nodes& nodes, const Address& address, const std::string& secret,
                                     std::chrono::seconds handshake_timeout)
    : nodes_(nodes), secret_(secret), handshake_timeout_(handshake_timeout), listener_(address) {}

std::vector<JoinedWorker> HandshakeListener::admit(std::chrono::milliseconds timeout,
                                                   const std::function<bool(int)>& taken) {
  std::vector<JoinedWorker> joined_workers;
  const auto here = [&](int process) {
    return taken(process) ||
           std::any_of(joined_workers.begin(), joined_workers.end(),
                       [&](const JoinedWorker& joined) { return joined.process == process; });
  };
  for (PendingConnection& connection : pending_) advance(connection, joined_workers, here);
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    Link link = listener_.accept(i == 0 ? timeout : 0ms);
    if (!link.open()) break;
    const std::string address = link.peer();
    pending_.push_back({std::move(link), address, Clock::now()});
    advance(pending_.back(), joined_workers, here);
  }
  std::erase_if(pending_, [](const PendingConnection& s) { return !s.link.open(); });
  drop_excess();
  return joined_workers;
}

void HandshakeListener::drop_excess() {
  std::map<std::string, int> count;
  for (const PendingConnection& connection : pending_) ++count[connection.address];
  while (pending_.size() > kMaxPending) {
    const auto most = std::max_element(count.begin(), count.end(),
                                       [](const auto& x, const auto& y) { return x.second < y.second; });
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const PendingConnection& s) {
      return count[s.address] == most->second;
    });
    --count[oldest->address];
    pending_.erase(oldest);
  }
}

void HandshakeListener::advance(PendingConnection& connection, std::vector<JoinedWorker>& joined_workers,
                                const std::function<bool(int)>& taken) {
  const auto message = connection.link.receive();
  if (!message) {
    if (connection.link.open() && Clock::now() - connection.since > handshake_timeout_)
      refuse(connection, fmt::format("has not completed the handshake within {} s", handshake_timeout_ / 1s),
             "", Refusal::again);
    return;
  }
  if (!connection.greeted) return answer_hello(connection, *message);
  if (!equal_in_constant_time(text_in(*message, "proof", ""), connection.its_proof))
    return refuse(connection, "does not know the secret (PRECBENCH_SECRET)");
  if (connection.mismatch.empty() && taken(connection.process))
    connection.mismatch = fmt::format("is the second that says it is process {}", connection.process);
  if (!connection.mismatch.empty()) {
    refuse(connection, connection.mismatch);
    conflict_ = last_refusal_;
    return;
  }
  connection.link.send({{"proof", connection.our_proof}});
  connection.link.trust();
  joined_workers.push_back({connection.process, connection.host, std::exchange(connection.link, Link())});
}

void HandshakeListener::answer_hello(PendingConnection& connection, const Message& hello) {
  const std::string nonce = text_in(hello, "nonce", "");
  const int process = integer_in(hello, "process", -1), of = integer_in(hello, "of", -1);
  const bool other_version = describe(hello) != describe(build());
  const std::string version = fmt::format("is another version: {}", describe(hello));
  const std::string own_version = fmt::format("; this one is {}", describe(build()));
  // Another protocol may have other proofs.
  if (integer_in(hello, "precbench", 0) != kProtocol || !is_nonce(nonce))
    return refuse(connection, version, own_version);
  if (other_version)
    connection.mismatch = fmt::format("{}; process 0 is {}", version, describe(build()));
  else if (of != nodes_.count || process < 1 || process >= nodes_.count)
    connection.mismatch =
        fmt::format("says that it is process {} of {}, while process 0 says that there are {}", process, of,
                    nodes_.count);
  const std::string own = random_hex();
  connection.host = text_in(hello, "host", connection.address, kLongestHost);
  connection.its_proof = proof_of(secret_, "worker", nonce, own, process, of);
  connection.our_proof = proof_of(secret_, "coordinator", nonce, own, process, of);
  connection.process = process;
  connection.greeted = true;
  connection.link.send({{"nonce", own}});
}

void HandshakeListener::refuse(PendingConnection& connection, const std::string& why, const std::string& here,
                               Refusal kind) {
  last_refusal_ = fmt::format("a process at {} {}{}", connection.address, why, here);
  Message answer = {{"refused", why}};
  if (kind == Refusal::again) answer["again"] = true;
  connection.link.send(answer);
  connection.link.close();
  if (Clock::now() < next_report_) {
    ++unreported_;
    return;
  }
  log_line(fmt::format("precbench: refused: {}{}", *last_refusal_,
                       unreported_ ? fmt::format(" (and {} before it)", unreported_) : ""));
  unreported_ = 0;
  next_report_ = Clock::now() + kBetweenReports;
}

HandshakeResult try_handshake(const Nodes& nodes, const Address& address, const std::string& secret,
                              const std::function<bool()>& give_up, std::chrono::seconds handshake_timeout) {
  Link link = connect_to(address);
  if (!link.open()) return {};
  const std::string own = random_hex();
  Message hello = build();
  hello.update({{"process", nodes.index}, {"of", nodes.count}, {"host", host_name()}, {"nonce", own}});
  link.send(hello);
  const auto end = std::chrono::steady_clock::now() + handshake_timeout;
  for (std::string nonce; link.open() && std::chrono::steady_clock::now() < end && !give_up();) {
    link.wait(kHandshakePoll);
    const auto message = link.receive();
    if (!message) continue;
    if (const std::string why = text_in(*message, "refused", "", Link::kLongestHandshakeMessage);
        !why.empty())
      return {Link(), "it refused this process, which " + why, !flag_in(*message, "again", false)};
    if (nonce.empty()) {
      nonce = text_in(*message, "nonce", "");
      if (!is_nonce(nonce)) return {Link(), "it is not process 0 of this version", false};
      link.send({{"proof", proof_of(secret, "worker", own, nonce, nodes.index, nodes.count)}});
      continue;
    }
    if (!equal_in_constant_time(text_in(*message, "proof", ""),
                                proof_of(secret, "coordinator", own, nonce, nodes.index, nodes.count)))
      return {Link(), "it does not know the secret (PRECBENCH_SECRET)", false};
    link.trust();
    return {std::move(link), std::nullopt, false};
  }
  return {Link(), "it did not admit this process", false};
}

}  // namespace precbench
