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
struct TestServer {
  explicit TestServer(const std::string& secret, std::chrono::seconds handshake_timeout = kHangGuard)
      : listener(kFirst, address, secret, handshake_timeout) {}
  void admit() {
    const auto here = [&](int process) {
      return std::any_of(joined_workers.begin(), joined_workers.end(),
                         [&](const JoinedWorker& g) { return g.process == process; });
    };
    for (JoinedWorker& joined : listener.admit(10ms, here)) joined_workers.push_back(std::move(joined));
  }
  /// Returns this worker's result of one attempt.
  HandshakeResult attempt(const Nodes& nodes, const std::string& secret) {
    auto result = std::async(std::launch::async,
                             [&] { return try_handshake(nodes, address, secret, never, kHangGuard); });
    while (result.wait_for(0s) != std::future_status::ready) admit();
    return result.get();
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
  HandshakeListener listener;
  std::vector<JoinedWorker> joined_workers;
};

/// A man in the middle between a worker and the coordinator, who relays and records their messages.
struct ManInTheMiddle {
  ManInTheMiddle(TestServer& to, const Nodes& nodes, const std::string& secret)
      : server(to), result(std::async(std::launch::async, [this, nodes, secret] {
          return try_handshake(nodes, address, secret, never, kHangGuard);
        })) {
    worker = listener.accept(kHangGuard);
    hello = server.next(worker);
  }
  /// Relays the hello with these changes, and the nonce back. Returns the link to the coordinator, which
  /// waits for the worker's proof.
  Link present(const Message& changes = Message::object()) {
    Link coordinator = connect_to(server.address);
    hello.update(changes);
    coordinator.send(hello);
    worker.send(nonce = server.next(coordinator));
    worker_proof = server.next(worker);
    return coordinator;
  }
  void pass_on(const Message& changes = Message::object()) {
    Link coordinator = present(changes);
    coordinator.send(worker_proof);
    worker.send(coordinator_proof = server.next(coordinator));
  }
  TestServer& server;
  Address address = free_address();
  Listener listener{address};
  Link worker;
  Message hello, nonce, worker_proof, coordinator_proof;
  std::future<HandshakeResult> result;
};

/// Opens a connection from an address of this host, as some other program; -1 on failure.
int connected(const Address& address, const char* from = "127.0.0.1") {
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in here = {}, there = {};
  here.sin_family = there.sin_family = AF_INET;
  inet_pton(AF_INET, from, &here.sin_addr);
  [[maybe_unused]] const int bound = bind(client, reinterpret_cast<sockaddr*>(&here), sizeof here);
  there.sin_port = htons(static_cast<std::uint16_t>(address.port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  [[maybe_unused]] const int pending = connect(client, reinterpret_cast<sockaddr*>(&there), sizeof there);
  return client;
}

/// Returns the first message of a process of this build.
Message hello_of_this_build() {
  const Address address = free_address();
  Listener listener(address);
  auto result =
      std::async(std::launch::async, [&] { return try_handshake(kSecond, address, "", never, kHangGuard); });
  Link link = listener.accept(kHangGuard);
  std::optional<Message> hello;
  eventually([&] { return (hello = link.receive()).has_value(); });
  link.close();
  result.get();
  return hello.value_or(Message());
}

}  // namespace

TEST_CASE("HandshakeListener: processes with one secret connect and may then send long messages", "[hello]") {
  TestServer server("a secret");
  const std::string text(100'000, 'x');
  auto result = std::async(std::launch::async, [&] {
    return try_handshake(kThird, server.address, "a secret", never, kHangGuard);
  });
  while (result.wait_for(0s) != std::future_status::ready) {
    const std::size_t before = server.joined_workers.size();
    server.admit();
    if (server.joined_workers.size() > before)
      server.joined_workers.back().link.send({{"text", text}});  // right after the handshake
  }
  Link link = result.get().link;
  REQUIRE(link.open());
  REQUIRE(server.joined_workers.size() == 1);
  CHECK(server.joined_workers[0].process == 2);
  CHECK(server.joined_workers[0].host == host_name());
  CHECK(text_in(server.next(link), "text", "") == text);
  link.send({{"text", text}});
  CHECK(text_in(server.next(server.joined_workers[0].link), "text", "") == text);
  CHECK(!server.listener.last_refusal());
}

TEST_CASE("HandshakeListener: a client without the secret is refused and receives no proof", "[hello]") {
  TestServer server("a secret");
  for (const char* other : {"another", ""}) {
    const HandshakeResult failed = server.attempt(kSecond, other);
    CHECK(!failed.link.open());
    CHECK(failed.refusal == "it refused this process, which does not know the secret (PRECBENCH_SECRET)");
  }
  // A client that continues anyway.
  ManInTheMiddle client(server, kSecond, "another");
  client.pass_on();
  CHECK(client.nonce.size() == 1);
  CHECK(client.coordinator_proof == kNotKnown);
  CHECK(server.joined_workers.empty());
  CHECK(server.listener.last_refusal() ==
        "a process at 127.0.0.1 does not know the secret (PRECBENCH_SECRET)");
}

TEST_CASE(
    "HandshakeListener: a proof is valid for one connection and process and number of processes and role only",
    "[hello]") {
  TestServer server("a secret");
  ManInTheMiddle heard(server, kSecond, "a secret");
  heard.pass_on();
  REQUIRE(server.joined_workers.size() == 1);
  CHECK(heard.result.get().link.open());
  server.joined_workers.clear();

  Link replay = connect_to(server.address);
  replay.send(heard.hello);
  CHECK(server.next(replay) != heard.nonce);
  replay.send(heard.worker_proof);
  CHECK(server.next(replay) == kNotKnown);

  ManInTheMiddle third(server, kThird, "a secret");
  third.pass_on({{"process", 1}});
  CHECK(third.coordinator_proof == kNotKnown);
  ManInTheMiddle of_four(server, {1, 4, 0, "the test"}, "a secret");
  of_four.pass_on({{"of", 3}});
  CHECK(of_four.coordinator_proof == kNotKnown);

  // A worker rejects a recorded coordinator proof and its own proof sent back.
  for (const bool reflects : {false, true}) {
    ManInTheMiddle again(server, kSecond, "a secret");
    again.worker.send(heard.nonce);
    const Message proof = server.next(again.worker);
    again.worker.send(reflects ? proof : heard.coordinator_proof);
    CHECK(again.result.get().refusal == "it does not know the secret (PRECBENCH_SECRET)");
  }
  CHECK(server.joined_workers.empty());
}

TEST_CASE("HandshakeListener: another build and unexpected or duplicate process numbers are refused by name",
          "[hello]") {
  TestServer server("");
  const auto refusal = [&](const Nodes& nodes) { return server.attempt(nodes, "").refusal; };
  CHECK(!server.listener.conflict());
  const std::string fifth = "says that it is process 5 of 3, while process 0 says that there are 3";
  CHECK(refusal({5, 3, 0, ""}) == "it refused this process, which " + fifth);
  CHECK(server.listener.conflict() == "a process at 127.0.0.1 " + fifth);
  CHECK(
      refusal({1, 2, 0, ""}) ==
      "it refused this process, which says that it is process 1 of 2, while process 0 says that there are 3");
  CHECK(!refusal(kSecond));
  CHECK(refusal(kSecond) == "it refused this process, which is the second that says it is process 1");
  CHECK(server.joined_workers.size() == 1);
  for (const char* key : {"precbench", "schema", "method", "commit", "dirty"}) {
    INFO(key);
    TestServer other("");
    Message value = hello_of_this_build().at(key);
    value = value.is_string() ? Message("0123") : value.is_boolean() ? Message(!value) : Message(77);
    const bool protocol = key == std::string("precbench");  // its proofs may be others
    ManInTheMiddle client(other, kSecond, "");
    if (protocol) {
      Link link = connect_to(other.address);
      client.hello[key] = value;
      link.send(client.hello);
      client.coordinator_proof = other.next(link);
      client.worker.close();
    } else {
      client.pass_on({{key, value}});
    }
    const std::string why = text_in(client.coordinator_proof, "refused", "");
    CHECK(why.starts_with("is another version: protocol "));
    // The name of this build goes to processes of this sweep only.
    CHECK((why.find("; process 0 is protocol ") == std::string::npos) == protocol);
    CHECK(other.listener.conflict().has_value() != protocol);
    CHECK(other.listener.last_refusal().value_or("").find(
              protocol ? "; this one is protocol " : "; process 0 is protocol ") != std::string::npos);
    client.result.get();
  }
}

TEST_CASE("HandshakeListener: only a client that knows the secret is a conflict", "[hello]") {
  TestServer server("a secret");
  CHECK(server.attempt({1, 2, 0, ""}, "another").final);
  CHECK(server.attempt(kSecond, "another").final);
  CHECK(!server.listener.conflict());
  Link link = connect_to(server.address);
  link.send({{"process", 1}, {"of", 2}});
  CHECK(server.next(link).contains("refused"));
  CHECK(!server.listener.conflict());
  CHECK(server.attempt({1, 2, 0, ""}, "a secret").final);
  CHECK(server.listener.conflict());
}

TEST_CASE("HandshakeListener: of two simultaneous clients with one number one is admitted", "[hello]") {
  TestServer server("");
  ManInTheMiddle one(server, kSecond, ""), other(server, kSecond, "");
  // Both have sent their proofs before the coordinator reads either.
  Link links[] = {one.present(), other.present()};
  links[0].send(one.worker_proof);
  links[1].send(other.worker_proof);
  one.worker.send(server.next(links[0]));
  other.worker.send(server.next(links[1]));
  CHECK(server.joined_workers.size() == 1);
  const HandshakeResult first = one.result.get(), second = other.result.get();
  CHECK(first.link.open() != second.link.open());
  CHECK(first.refusal.value_or("") + second.refusal.value_or("") ==
        "it refused this process, which is the second that says it is process 1");
}

TEST_CASE("HandshakeListener: idle clients do not keep out a worker", "[hello]") {
  const Message hello = hello_of_this_build();  // valid, but without a proof
  for (const bool says_hello : {true, false}) {
    TestServer server("a secret");
    std::vector<Link> clients;
    for (int i = 0; i < 300; ++i) {
      clients.push_back(connect_to(server.address));
      if (says_hello) clients.back().send(hello);
      server.admit();
    }
    Link slow = connect_to(server.address);
    server.admit();  // before it has sent anything
    slow.send(hello);
    CHECK(server.next(slow).contains("nonce"));
    CHECK(server.attempt(kSecond, "a secret").link.open());
  }
}

TEST_CASE("HandshakeListener: clients of one address do not displace those of another", "[hello]") {
  TestServer server("a secret");
  Link slow = connect_to(server.address);
  server.admit();
  std::vector<int> clients;
  for (int i = 0; i < 600; ++i) {
    clients.push_back(connected(server.address, "127.0.0.2"));
    if (i % 20 == 0) server.admit();
  }
  for (int i = 0; i < 20; ++i) server.admit();
  slow.send(hello_of_this_build());
  CHECK(server.next(slow).contains("nonce"));
  for (const int client : clients) close(client);
}

TEST_CASE("Coordinator: unknown clients cost no waiting and at most one line", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const Nodes first = {0, 2, 0, "the test"}, second = {1, 2, 0, "the test"};
  const pid_t coordinator = in_background([&] {
    errors_to(directory / "stderr");
    const Coordinator met(first, address, "a secret", {.meet = kHangGuard, .handshake = kHangGuard});
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
  CHECK(eventually(
      [&] { return (link = try_handshake(second, address, "a secret", never, kHangGuard).link).open(); }));
  CHECK(exit_status(coordinator) == 0);
  for (const int client : sockets) close(client);
  const std::string said = file_text(directory / "stderr");
  INFO(said);
  CHECK(said.starts_with("precbench: process 0 of 2 is waiting for process 1 at " + to_string(address) +
                         "\nprecbench: refused: a process at 127.0.0.1 "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 2);
}

TEST_CASE("Coordinator: if nobody joins the error names the last refused client", "[together]") {
  with_time_limit(1.5, [](double limit) {
    const Address address = free_address();
    std::atomic<bool> gone = false;
    // Returns the answers to both clients; empty if the coordinator ends first.
    auto refused = std::async(std::launch::async, [&] {
      HandshakeResult result;
      eventually([&] {
        result = try_handshake({1, 2, 0, ""}, address, "another", never);
        return result.refusal || gone;
      });
      Link link = connect_to(address);
      link.send({{"process", 1}, {"of", 2}});
      std::optional<Message> answer;
      eventually([&] { return (answer = link.receive()) || !link.open(); });
      return std::pair(result.refusal, answer.has_value());
    });
    std::string said;
    try {
      Coordinator({0, 2, 0, "the test"}, address, "a secret",
                  {.meet = std::chrono::milliseconds(std::lround(1000 * limit)), .farewell = 10ms});
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

TEST_CASE("HandshakeListener: a silent client is dropped after the timeout", "[hello]") {
  TestServer server("a secret", std::chrono::seconds(0));
  Link silent = connect_to(server.address);
  const Message answer = server.next(silent);
  CHECK(text_in(answer, "refused", "") == "has not completed the handshake within 0 s");
  CHECK(flag_in(answer, "again", false));  // a slow process may try once more
}
