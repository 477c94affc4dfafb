// The door between processes: who knows the secret comes in, and whatever strangers send, soon.
#include "bench/hello.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

#include "bench/environment.h"
#include "bench/leader.h"
#include "bench/nodes_testing.h"
#include "kernels/errors.h"
#include "tools/catch.h"
#include "tools/temp_directory.h"
#include "tools/test_processes.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

using Message = nlohmann::ordered_json;

const Nodes kLeader = {0, 3, 0, "the test"}, kSecond = {1, 3, 0, "the test"}, kThird = {2, 3, 0, "the test"};

bool nobody(int) { return false; }
bool never() { return false; }

/// A follower that greets once, in a thread, and what the leader's door makes of it within some seconds.
struct Attempt {
  Greeting greeting;
  std::vector<Guest> guests;
};
Attempt attempt(Reception& reception, const Nodes& nodes, const Address& address, const std::string& secret,
                const std::function<bool(int)>& taken = nobody) {
  Attempt result;
  auto greeting = std::async(std::launch::async, [&] { return greet(nodes, address, secret, never); });
  while (greeting.wait_for(0s) != std::future_status::ready)
    for (Guest& guest : reception.admit(10ms, taken)) result.guests.push_back(std::move(guest));
  result.greeting = greeting.get();
  return result;
}

/// A connection of somebody else's program; -1 where there is none.
int connected(const Address& address) {
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<std::uint16_t>(address.port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  [[maybe_unused]] const int pending = connect(stranger, reinterpret_cast<sockaddr*>(&there), sizeof there);
  return stranger;
}

/// What a process of this build says first.
Message hello_of_this_build() {
  const Address address = free_address();
  Listener listener(address);
  auto greeting = std::async(std::launch::async, [&] { return greet(kSecond, address, "", never); });
  Link link = listener.accept(10s);
  std::optional<Message> hello;
  eventually([&] { return (hello = link.receive()).has_value(); });
  link.close();
  greeting.get();
  return hello.value_or(Message());
}

}  // namespace

TEST_CASE("processes of one secret meet, and may then send long messages", "[hello]") {
  const Address address = free_address();
  Reception reception(kLeader, address, "a secret");
  Attempt met = attempt(reception, kThird, address, "a secret");
  REQUIRE(met.guests.size() == 1);
  REQUIRE(met.greeting.link.open());
  CHECK(met.guests[0].process == 2);
  CHECK(met.guests[0].host == host_name());
  const std::string text(100'000, 'x');
  met.greeting.link.send({{"text", text}});
  std::optional<Message> message;
  CHECK(eventually([&] { return (message = met.guests[0].link.receive()).has_value(); }));
  CHECK(text_in(message.value_or(Message::object()), "text", "") == text);
  CHECK(reception.last_refusal().empty());
}

TEST_CASE("who does not know the secret is not let in, and a leader that does not know it is not believed",
          "[hello]") {
  const Address address = free_address();
  Reception reception(kLeader, address, "a secret");
  for (const char* other : {"another", ""}) {
    const Attempt failed = attempt(reception, kSecond, address, other);
    CHECK(failed.guests.empty());
    CHECK(!failed.greeting.link.open());
    CHECK(failed.greeting.refusal == "it does not know the secret (PRECBENCH_SECRET)");
  }
  // One that goes on all the same, with what it cannot know.
  Link link = connect_to(address);
  Message hello = hello_of_this_build();
  hello["of"] = 3;
  link.send(hello);
  std::optional<Message> challenge;
  std::size_t let_in = 0;
  CHECK(eventually([&] {
    let_in += reception.admit(10ms, nobody).size();
    return (challenge = link.receive()).has_value();
  }));
  link.send({{"proof", text_in(challenge.value_or(Message::object()), "proof", "")}});  // the leader's own
  CHECK(eventually([&] {
    let_in += reception.admit(10ms, nobody).size();
    link.receive();
    return !link.open();
  }));
  CHECK(let_in == 0);
  CHECK(reception.last_refusal() == "a process at 127.0.0.1 does not know the secret (PRECBENCH_SECRET)");
}

TEST_CASE("another build, a number that is not wanted and a second process of one are refused by name",
          "[hello]") {
  const TempDirectory directory;
  const Address address = free_address();
  Reception reception(kLeader, address, "");
  const auto refusal = [&](const Nodes& nodes, const std::function<bool(int)>& taken = nobody) {
    const Attempt failed = attempt(reception, nodes, address, "", taken);
    CHECK(failed.guests.empty());
    return failed.greeting.refusal;
  };
  CHECK(refusal({5, 3, 0, ""}) ==
        "it refused this process, which says that it is process 5 of 3; this one is 0 of 3");
  CHECK(refusal({1, 2, 0, ""}) ==
        "it refused this process, which says that it is process 1 of 2; this one is 0 of 3");
  CHECK(refusal(kSecond, [](int process) { return process == 1; }) ==
        "it refused this process, which is the second that says it is process 1");
  for (const char* key : {"precbench", "schema", "method", "commit"}) {
    INFO(key);
    Message hello = hello_of_this_build();
    REQUIRE(hello.contains(key));
    hello[key] = hello[key].is_string() ? Message("0123") : Message(77);
    Link link = connect_to(address);
    link.send(hello);
    std::optional<Message> answer;
    CHECK(eventually([&] {
      reception.admit(10ms, nobody);
      return (answer = link.receive()).has_value();
    }));
    CHECK(text_in(answer.value_or(Message::object()), "refused", "").starts_with("is another version: "));
  }
}

TEST_CASE("strangers cost the processes that meet no second and a line at most", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const Nodes first = {0, 2, 0, "the test"}, second = {1, 2, 0, "the test"};
  const pid_t leader = in_background([&] {
    errors_to(directory / "stderr");
    const Leader met(first, address, "a secret", {.meet = 60s});
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
  for (int i = 0; i < 300; ++i) sockets.push_back(connected(address));  // and say nothing
  for (const std::string& packet : packets)
    for (int i = 0; i < 3; ++i) {
      sockets.push_back(connected(address));
      std::this_thread::sleep_for(1ms);
      [[maybe_unused]] const ssize_t sent = send(sockets.back(), packet.data(), packet.size(), MSG_NOSIGNAL);
    }
  const auto begin = std::chrono::steady_clock::now();
  Link link;
  CHECK(eventually([&] { return (link = greet(second, address, "a secret", never).link).open(); }));
  // Measured without load it is a tenth of a second; five are for a machine that others use too.
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK(exit_status(leader) == 0);
  for (const int stranger : sockets) close(stranger);
  const std::string said = file_text(directory / "stderr");
  INFO(said);
  CHECK(said.starts_with("precbench: refused: a process at 127.0.0.1 "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("a leader that nobody joins says whom it refused", "[together]") {
  const Address address = free_address();
  auto refused = std::async(std::launch::async, [&] {
    Greeting greeting;
    eventually([&] {
      greeting = greet({1, 2, 0, ""}, address, "another", never);
      return !greeting.refusal.empty();
    });
    Link link = connect_to(address);
    link.send({{"process", 1}, {"of", 2}});
    std::this_thread::sleep_for(1s);
    return greeting.refusal;
  });
  CHECK_THROWS_WITH(
      Leader({0, 2, 0, "the test"}, address, "a secret", {.meet = 1500ms}),
      Catch::Matchers::StartsWith(fmt::format(
          "process 1 of 2 has not come to {} within 1.5 s; refused meanwhile: a process at 127.0.0.1 is "
          "another version: protocol 0",
          to_string(address))));
  CHECK(refused.get() == "it does not know the secret (PRECBENCH_SECRET)");
}
