// Messages over a real connection on this host, and peers that misbehave.
#include "bench/process/link.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

#include "bench/process/rendezvous_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

/// A link and the raw socket at its other end.
struct Ends {
  Ends() {
    std::array<int, 2> sockets = {};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
    link = Link(sockets[0]);
    other = sockets[1];
  }
  ~Ends() { ::close(other); }
  void write(const std::string& text) const {
    REQUIRE(::write(other, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  Link link;
  int other = -1;
};

}  // namespace

TEST_CASE("Link: messages arrive complete and in order", "[link]") {
  const Address address = free_address();
  Listener listener(address);
  Link here = connect_to(address), there = listener.accept(kHangGuard);
  REQUIRE((here.open() && there.open()));
  CHECK(there.peer() == "127.0.0.1");
  CHECK(!there.receive());
  here.send({{"text", "two\nlines, not UTF-8: \xff"}});
  here.send({{"number", 2}});
  there.wait(kHangGuard);
  const auto first = there.receive();
  REQUIRE(first);
  CHECK(first->at("text").get<std::string>().starts_with("two\nlines, not UTF-8: "));
  there.wait(kHangGuard);
  CHECK(there.receive().value_or(nullptr)["number"] == 2);
  CHECK(!there.receive());
  CHECK(there.open());
}

TEST_CASE("Link: messages sent before the peer closed are still received", "[link]") {
  Ends ends;
  ends.write("{\"a\": 1}\n{\"b\": ");
  CHECK(ends.link.receive().value_or(nullptr)["a"] == 1);
  CHECK(!ends.link.receive());
  ends.write("2}\n");
  shutdown(ends.other, SHUT_WR);
  CHECK(ends.link.receive().value_or(nullptr)["b"] == 2);
  CHECK(!ends.link.receive());
  CHECK(!ends.link.open());
}

TEST_CASE("Link: a peer that sends nonsense or endless lines or never reads is disconnected", "[link]") {
  for (const std::string& nonsense : {std::string("GET / HTTP/1.1\r\n"), std::string("[1]\n")}) {
    Ends ends;
    ends.write(nonsense);
    CHECK(!ends.link.receive());
    CHECK(!ends.link.open());
  }
  Ends endless;
  for (int i = 0; i < 64 && endless.link.open(); ++i) {
    endless.write(std::string(32768, 'x'));
    CHECK(!endless.link.receive());
  }
  CHECK(!endless.link.open());
  Ends deaf;
  for (int i = 0; i < 1000 && deaf.link.open(); ++i) deaf.link.send({{"text", std::string(32768, 'x')}});
  CHECK(!deaf.link.open());
}

TEST_CASE("Link: messages that are too deep or broad or long before the handshake close the link", "[link]") {
  const auto deep = [](std::size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + ",\"b\":1,\"c\":2}\n";
  };
  const auto broad = [](int keys) {
    std::string text = "{\"k\":0";
    for (int i = 0; i < keys; ++i) text += fmt::format(",\"k{}\":0", i);
    return text + "}\n";
  };
  const auto taken = [](const std::string& text, bool trusted) {
    Ends ends;
    if (trusted) ends.link.trust();
    std::thread peer([&] {
      for (std::size_t done = 0; done < text.size();) {
        const ssize_t sent = ::send(ends.other, text.data() + done, text.size() - done, MSG_NOSIGNAL);
        if (sent <= 0) return;
        done += static_cast<std::size_t>(sent);
      }
    });
    std::optional<nlohmann::ordered_json> message;
    while (!message && ends.link.open()) {
      ends.link.wait(kHangGuard);
      message = ends.link.receive();
    }
    peer.join();
    return message.has_value();
  };
  const std::string long_text = "{\"text\":\"" + std::string(8192, 'x') + "\"}\n";
  CHECK(taken(deep(3), false));
  CHECK(taken(broad(50), false));
  CHECK(taken(long_text, true));
  CHECK(!taken(long_text, false));
  CHECK(!taken(deep(400000), true));
  CHECK(!taken(broad(80000), true));  // an ordered object would search all keys for each
}

TEST_CASE("Link: a long message may directly follow the last of the handshake", "[link]") {
  Ends ends;
  const std::string text(2 * Link::kLongestGreeting, 'x');
  ends.write("{\"last\": true}\n{\"text\": \"" + text + "\"}\n");
  CHECK(flag_in(ends.link.receive().value_or(nullptr), "last", false));
  ends.link.trust();
  CHECK(text_in(ends.link.receive().value_or(nullptr), "text", "") == text);
  CHECK(ends.link.open());
}

TEST_CASE("text_in: truncates between characters", "[link]") {
  const nlohmann::ordered_json message = {{"text", "ab\u00e9\u00e9"}};
  CHECK(text_in(message, "text", "", 3) == "ab");
  CHECK(text_in(message, "text", "", 4) == "ab\xc3\xa9");
  CHECK(text_in(message, "text", "", 0) == "");
}

TEST_CASE("connect_to: nobody at an address gives a closed link", "[link]") {
  CHECK(!connect_to(free_address()).open());
}

TEST_CASE("Link: a silent host is given up after the same time with and without data in flight", "[link]") {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const Link link(socket);
  const auto seconds = [&](int option) {
    int value = 0;
    socklen_t size = sizeof value;
    getsockopt(socket, IPPROTO_TCP, option, &value, &size);
    return value;
  };
  const int silent = seconds(TCP_KEEPIDLE) + seconds(TCP_KEEPINTVL) * seconds(TCP_KEEPCNT);
  CHECK(silent == 25);
  CHECK(seconds(TCP_USER_TIMEOUT) == 1000 * silent);  // in milliseconds
}

TEST_CASE("integer_in: values of another type or out of range give the default", "[link]") {
  const nlohmann::ordered_json message = {{"number", 5},
                                          {"text", "x"},
                                          {"flag", true},
                                          {"huge", 1e300},
                                          {"long", std::int64_t{1} << 40},
                                          {"longer", std::numeric_limits<std::uint64_t>::max()}};
  CHECK(integer_in(message, "number", -1) == 5);
  CHECK(number_in(message, "number", -1) == 5);
  CHECK(number_in(message, "huge", -1) == 1e300);
  CHECK(text_in(message, "text", "") == "x");
  CHECK(flag_in(message, "flag", false));
  for (const char* key : {"text", "flag", "huge", "long", "longer", "none"}) {
    INFO(key);
    CHECK(integer_in(message, key, 7) == 7);
    if (std::string(key) != "text") CHECK(text_in(message, key, "other") == "other");
    if (std::string(key) != "flag") CHECK(flag_in(message, key, true));
  }
  CHECK(number_in(message, "text", -1) == -1);
}
