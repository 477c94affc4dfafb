// Processes of a sweep whose peer is somebody else's program, or an older one: nonsense costs the connection,
// and is told as its loss.
#include <string>
#include <thread>

#include "bench/follower.h"
#include "bench/leader.h"
#include "bench/nodes_testing.h"
#include "bench/sweep.h"
#include "tools/catch.h"
#include "tools/temp_directory.h"
#include "tools/test_processes.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

using Message = nlohmann::ordered_json;

constexpr Patience kShort = {.meet = 20s, .stop = 1s, .row = 5s};
const std::vector<std::string> kEndless = {"/bin/sleep", "60"};  // a case

Link reach(const Address& address) {
  Link link;
  eventually([&] { return (link = connect_to(address)).open(); });
  return link;
}

std::optional<Message> next(Link& link) {
  std::optional<Message> message;
  eventually([&] { return (message = link.receive()) || !link.open(); });
  return message;
}

/// The exit status of a follower whose leader sends `order`, and what it says.
std::pair<int, std::string> answer_to(const Message& order) {
  const TempDirectory directory;
  const Address address = free_address();
  Listener listener(address);
  const pid_t pid = in_background([&] {
    errors_to(directory / "stderr");
    return follow({1, 2, 0, "the test"}, address, kEndless, kShort);
  });
  Link link = listener.accept(20s);
  const bool met = next(link).has_value();
  CHECK(met);
  link.send(order);
  return {exit_status(pid), file_text(directory / "stderr")};
}

}  // namespace

TEST_CASE("a follower that talks nonsense is lost, and its leader says so", "[together]") {
  for (const Message& report :
       {Message{{"end", "x"}}, Message{{"end", 17}}, Message{{"end", -1}}, Message{{"code", 0}}}) {
    INFO(report.dump());
    const TempDirectory directory;
    const Address address = free_address();
    Case c;
    c.device = "cpu";
    c.gpus = 2;
    const pid_t pid = in_background([&] {
      errors_to(directory / "stderr");
      Leader leader({0, 2, 0, "the test"}, address, kShort);
      const ChildResult result = leader.run(kEndless, c, 0);
      fmt::print(stderr, "{}\n{}\n", result.where, fmt::join(leader.lost(), ", "));
      return static_cast<int>(result.end);
    });
    Link link = reach(address);
    link.send({{"process", 1}, {"of", 2}, {"host", 5}});
    const auto order = next(link);
    CHECK(order.has_value());
    link.send(report);
    CHECK(exit_status(pid) == static_cast<int>(ChildResult::End::lost));
    // A host that is no text is where it came from.
    CHECK(file_text(directory / "stderr") == "process 1 (127.0.0.1, rank 1)\nprocess 1 (127.0.0.1)\n");
  }
}

TEST_CASE("a leader that talks nonsense is left", "[together]") {
  const Message c = case_to_json({});
  for (const Message& order :
       {Message{{"do", 5}}, Message{{"do", "dance"}}, Message{{"do", "run"}},
        Message{{"do", "run"}, {"case", c}}, Message{{"do", "run"}, {"case", 5}, {"timeout_s", 0}},
        Message{{"do", "run"}, {"case", c}, {"timeout_s", "x"}}}) {
    INFO(order.dump());
    const auto [status, said] = answer_to(order);
    CHECK(status == kLeaderGone);
    CHECK(said == "precbench: process 1 of 2 ends: process 0 ended before the sweep did\n");
  }
  CHECK(answer_to({{"do", "end"}, {"status", "x"}}).first == kLeaderGone);
}
