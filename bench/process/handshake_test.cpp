// The handshake between processes: clients that know the secret are admitted soon, whatever other clients
// send.
#include "bench/process/handshake.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <thread>

#include "bench/machine/environment.h"
#include "bench/process/coordinator.h"
#include "bench/process/rendezvous_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

using Message = nlohmann::ordered_json;

const Nodes kFirst = {0, 3, 0, "the test"}, kSecond = {1, 3, 0, "the test"}, kThird = {2, 3, 0, "the test"};

/// The complete answer of the coordinator to a wrong proof.
const Message kNotKnown = {{"refused", "does not know the secret (PRECBENCH_SECRET)"}};

bool never() { return false; }

/// The coordinator's side, with the clients that it has admitted.
struct Door {
  explicit Door(const std::string& secret, std::chrono::seconds greeting_time = kHangGuard)
      : reception(kFirst, address, secret, greeting_time) {}
  void admit() {
    const auto here = [&](int process) {
      return std::any_of(guests.begin(), guests.end(), [&](const Guest& g) { return g.process == process; });
    };
    for (Guest& guest : reception.admit(10ms, here)) guests.push_back(std::move(guest));
  }
  /// Returns this worker's result of one attempt.
  Greeting attempt(const Nodes& nodes, const std::string& secret) {
    auto greeting =
        std::async(std::launch::async, [&] { return greet(nodes, address, secret, never, kHangGuard); });
    while (greeting.wait_for(0s) != std::future_status::ready) admit();
    return greeting.get();
  }
  /// Returns the next message on this link; an empty object if it is closed.
  Message next(Link& link) {
    std::optional<Message> message;
    CHECK(eventually([&] {
      admit();
      return (message = link.receive()) || !link.open();
    }));
    return message.value_or(Message::object());
  }
  Address address = free_address();
  Reception reception;
  std::vector<Guest> guests;
};

/// A man in the middle between a worker and the coordinator, who relays and records their messages.
struct Between {
  Between(Door& to, const Nodes& nodes, const std::string& secret)
      : door(to), greeting(std::async(std::launch::async, [this, nodes, secret] {
          return greet(nodes, address, secret, never, kHangGuard);
        })) {
    worker = listener.accept(kHangGuard);
    hello = door.next(worker);
  }
  /// Relays the hello with these changes, and the nonce back. Returns the link to the coordinator, which
  /// waits for the worker's proof.
  Link present(const Message& changes = Message::object()) {
    Link coordinator = connect_to(door.address);
    hello.update(changes);
    coordinator.send(hello);
    worker.send(nonce = door.next(coordinator));
    worker_proof = door.next(worker);
    return coordinator;
  }
  void pass_on(const Message& changes = Message::object()) {
    Link coordinator = present(changes);
    coordinator.send(worker_proof);
    worker.send(coordinator_proof = door.next(coordinator));
  }
  Door& door;
  Address address = free_address();
  Listener listener{address};
  Link worker;
  Message hello, nonce, worker_proof, coordinator_proof;
  std::future<Greeting> greeting;
};

/// Opens a connection from an address of this host, as some other program; -1 on failure.
int connected(const Address& address, const char* from = "127.0.0.1") {
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in here = {}, there = {};
  here.sin_family = there.sin_family = AF_INET;
  inet_pton(AF_INET, from, &here.sin_addr);
  [[maybe_unused]] const int bound = bind(stranger, reinterpret_cast<sockaddr*>(&here), sizeof here);
  there.sin_port = htons(static_cast<std::uint16_t>(address.port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  [[maybe_unused]] const int pending = connect(stranger, reinterpret_cast<sockaddr*>(&there), sizeof there);
  return stranger;
}

/// Returns the first message of a process of this build.
Message hello_of_this_build() {
  const Address address = free_address();
  Listener listener(address);
  auto greeting =
      std::async(std::launch::async, [&] { return greet(kSecond, address, "", never, kHangGuard); });
  Link link = listener.accept(kHangGuard);
  std::optional<Message> hello;
  eventually([&] { return (hello = link.receive()).has_value(); });
  link.close();
  greeting.get();
  return hello.value_or(Message());
}

}  // namespace

TEST_CASE("Reception: processes with one secret connect and may then send long messages", "[hello]") {
  Door door("a secret");
  const std::string text(100'000, 'x');
  auto greeting = std::async(std::launch::async,
                             [&] { return greet(kThird, door.address, "a secret", never, kHangGuard); });
  while (greeting.wait_for(0s) != std::future_status::ready) {
    const std::size_t before = door.guests.size();
    door.admit();
    if (door.guests.size() > before)
      door.guests.back().link.send({{"text", text}});  // right after the handshake
  }
  Link link = greeting.get().link;
  REQUIRE(link.open());
  REQUIRE(door.guests.size() == 1);
  CHECK(door.guests[0].process == 2);
  CHECK(door.guests[0].host == host_name());
  CHECK(text_in(door.next(link), "text", "") == text);
  link.send({{"text", text}});
  CHECK(text_in(door.next(door.guests[0].link), "text", "") == text);
  CHECK(!door.reception.last_refusal());
}

TEST_CASE("Reception: a client without the secret is refused and receives no proof", "[hello]") {
  Door door("a secret");
  for (const char* other : {"another", ""}) {
    const Greeting failed = door.attempt(kSecond, other);
    CHECK(!failed.link.open());
    CHECK(failed.refusal == "it refused this process, which does not know the secret (PRECBENCH_SECRET)");
  }
  // A client that continues anyway.
  Between stranger(door, kSecond, "another");
  stranger.pass_on();
  CHECK(stranger.nonce.size() == 1);
  CHECK(stranger.coordinator_proof == kNotKnown);
  CHECK(door.guests.empty());
  CHECK(door.reception.last_refusal() ==
        "a process at 127.0.0.1 does not know the secret (PRECBENCH_SECRET)");
}

TEST_CASE("Reception: a proof is valid for one connection and process and number of processes and role only",
          "[hello]") {
  Door door("a secret");
  Between heard(door, kSecond, "a secret");
  heard.pass_on();
  REQUIRE(door.guests.size() == 1);
  CHECK(heard.greeting.get().link.open());
  door.guests.clear();

  Link replay = connect_to(door.address);
  replay.send(heard.hello);
  CHECK(door.next(replay) != heard.nonce);
  replay.send(heard.worker_proof);
  CHECK(door.next(replay) == kNotKnown);

  Between third(door, kThird, "a secret");
  third.pass_on({{"process", 1}});
  CHECK(third.coordinator_proof == kNotKnown);
  Between of_four(door, {1, 4, 0, "the test"}, "a secret");
  of_four.pass_on({{"of", 3}});
  CHECK(of_four.coordinator_proof == kNotKnown);

  // A worker rejects a recorded coordinator proof and its own proof sent back.
  for (const bool reflects : {false, true}) {
    Between again(door, kSecond, "a secret");
    again.worker.send(heard.nonce);
    const Message proof = door.next(again.worker);
    again.worker.send(reflects ? proof : heard.coordinator_proof);
    CHECK(again.greeting.get().refusal == "it does not know the secret (PRECBENCH_SECRET)");
  }
  CHECK(door.guests.empty());
}

TEST_CASE("Reception: another build and unexpected or duplicate process numbers are refused by name",
          "[hello]") {
  Door door("");
  const auto refusal = [&](const Nodes& nodes) { return door.attempt(nodes, "").refusal; };
  CHECK(refusal({5, 3, 0, ""}) == "it refused this process, which says that it is process 5 of 3");
  CHECK(door.reception.last_refusal() ==
        "a process at 127.0.0.1 says that it is process 5 of 3; this one is 0 of 3");
  CHECK(refusal({1, 2, 0, ""}) == "it refused this process, which says that it is process 1 of 2");
  CHECK(!refusal(kSecond));
  CHECK(refusal(kSecond) == "it refused this process, which is the second that says it is process 1");
  CHECK(door.guests.size() == 1);
  for (const char* key : {"precbench", "schema", "method", "commit", "dirty"}) {
    INFO(key);
    Message hello = hello_of_this_build();
    REQUIRE(hello.contains(key));
    Message& value = hello[key];
    value = value.is_string() ? Message("0123") : value.is_boolean() ? Message(!value) : Message(77);
    Link link = connect_to(door.address);
    link.send(hello);
    const std::string why = text_in(door.next(link), "refused", "");
    CHECK(why.starts_with("is another version: protocol "));
    CHECK(why.find("this one is") == std::string::npos);  // only for the coordinator's own error stream
    CHECK(door.reception.last_refusal().value_or("").find("; this one is protocol ") != std::string::npos);
  }
}

TEST_CASE("Reception: of two simultaneous clients with one number one is admitted", "[hello]") {
  Door door("");
  Between one(door, kSecond, ""), other(door, kSecond, "");
  // Both have sent their proofs before the coordinator reads either.
  Link links[] = {one.present(), other.present()};
  links[0].send(one.worker_proof);
  links[1].send(other.worker_proof);
  one.worker.send(door.next(links[0]));
  other.worker.send(door.next(links[1]));
  CHECK(door.guests.size() == 1);
  const Greeting first = one.greeting.get(), second = other.greeting.get();
  CHECK(first.link.open() != second.link.open());
  CHECK(first.refusal.value_or("") + second.refusal.value_or("") ==
        "it refused this process, which is the second that says it is process 1");
}

TEST_CASE("Reception: idle clients do not keep out a worker", "[hello]") {
  const Message hello = hello_of_this_build();  // valid, but without a proof
  for (const bool says_hello : {true, false}) {
    Door door("a secret");
    std::vector<Link> strangers;
    for (int i = 0; i < 300; ++i) {
      strangers.push_back(connect_to(door.address));
      if (says_hello) strangers.back().send(hello);
      door.admit();
    }
    Link slow = connect_to(door.address);
    door.admit();  // before it has sent anything
    slow.send(hello);
    CHECK(door.next(slow).contains("nonce"));
    CHECK(door.attempt(kSecond, "a secret").link.open());
  }
}

TEST_CASE("Reception: clients of one address do not displace those of another", "[hello]") {
  Door door("a secret");
  Link slow = connect_to(door.address);
  door.admit();
  std::vector<int> strangers;
  for (int i = 0; i < 600; ++i) {
    strangers.push_back(connected(door.address, "127.0.0.2"));
    if (i % 20 == 0) door.admit();
  }
  for (int i = 0; i < 20; ++i) door.admit();
  slow.send(hello_of_this_build());
  CHECK(door.next(slow).contains("nonce"));
  for (const int stranger : strangers) close(stranger);
}

TEST_CASE("Coordinator: unknown clients cost no waiting and at most one line", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const Nodes first = {0, 2, 0, "the test"}, second = {1, 2, 0, "the test"};
  const pid_t coordinator = in_background([&] {
    errors_to(directory / "stderr");
    const Coordinator met(first, address, "a secret", {.meet = kHangGuard, .greeting = kHangGuard});
    return 0;
  });
  CHECK(eventually([&] { return connect_to(address).open(); }));
  Message wrong = hello_of_this_build();
  wrong["of"] = 9;
  std::string broad = "{\"k\":0";
  for (int i = 0; i < 100'000; ++i) broad += fmt::format(",\"k{}\":0", i);
  std::vector<std::string> packets = {
      "GET / HTTP/1.1\r\n\r\n",
      wrong.dump() + "\n",
      R"({"process": 1, "of": 2, "host": "old"})"
      "\n",
      R"({"process": 7, "of": 9})"
      "\n",
      "{\"a\":" + std::string(400'000, '[') + std::string(400'000, ']') + ",\"b\":1}\n",
      broad + "}\n",
      std::string(100'000, '\0'),
      "[]\n{}\n\n",
  };
  std::vector<int> sockets;
  for (int i = 0; i < 300; ++i) sockets.push_back(connected(address));  // and send nothing
  for (const std::string& packet : packets)
    for (int i = 0; i < 3; ++i) {
      sockets.push_back(connected(address));
      std::this_thread::sleep_for(1ms);
      [[maybe_unused]] const ssize_t sent = send(sockets.back(), packet.data(), packet.size(), MSG_NOSIGNAL);
    }
  // A coordinator that waited for one of the silent clients would do so until the test is killed.
  Link link;
  CHECK(
      eventually([&] { return (link = greet(second, address, "a secret", never, kHangGuard).link).open(); }));
  CHECK(exit_status(coordinator) == 0);
  for (const int stranger : sockets) close(stranger);
  const std::string said = file_text(directory / "stderr");
  INFO(said);
  CHECK(said.starts_with("precbench: refused: a process at 127.0.0.1 "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("Coordinator: if nobody joins the error names the last refused client", "[together]") {
  with_time_limit(1.5, [](double limit) {
    const Address address = free_address();
    std::atomic<bool> gone = false;
    // Returns the answers to both clients; empty if the coordinator ends first.
    auto refused = std::async(std::launch::async, [&] {
      Greeting greeting;
      eventually([&] {
        greeting = greet({1, 2, 0, ""}, address, "another", never);
        return greeting.refusal || gone;
      });
      Link link = connect_to(address);
      link.send({{"process", 1}, {"of", 2}});
      std::optional<Message> answer;
      eventually([&] { return (answer = link.receive()) || !link.open(); });
      return std::pair(greeting.refusal, answer.has_value());
    });
    std::string said;
    try {
      Coordinator({0, 2, 0, "the test"}, address, "a secret",
                  {.meet = std::chrono::milliseconds(std::lround(1000 * limit))});
    } catch (const InvalidInput& error) {
      said = error.what();
    }
    gone = true;
    const auto [refusal, answered] = refused.get();
    if (!answered) return false;
    CHECK(said.starts_with(
        fmt::format("process 1 of 2 has not connected to {} within {} s; refused meanwhile: a process at "
                    "127.0.0.1 is another version: protocol 0",
                    to_string(address), limit)));
    CHECK(refusal == "it refused this process, which does not know the secret (PRECBENCH_SECRET)");
    return true;
  });
}

TEST_CASE("Reception: a silent client is dropped after the greeting time", "[hello]") {
  Door door("a secret", std::chrono::seconds(0));
  Link silent = connect_to(door.address);
  CHECK(text_in(door.next(silent), "refused", "") == "has not come in within 0 s");
}
