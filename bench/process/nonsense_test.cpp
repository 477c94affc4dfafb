// Processes of a sweep whose peer is a different program or an older version: nonsense costs the connection
// and is reported as its loss.
#include <string>

#include "bench/machine/environment.h"
#include "bench/process/coordinator.h"
#include "bench/process/handshake.h"
#include "bench/process/rendezvous_testing.h"
#include "bench/process/worker.h"
#include "bench/sweep/sweep.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

using Message = nlohmann::ordered_json;

constexpr const char* kSharedSecret = "of these processes";
constexpr Timeouts kShort = {.meet = kHangGuard, .stop = 1s, .row = 5s, .handshake = kHangGuard};
const std::vector<std::string> kEndless = {"/bin/sleep", "3600"};  // a case

Case case_of_two() {
  Case c;
  c.device = "cpu";
  c.gpus = 2;
  return c;
}

/// Connects to the coordinator there as process 1 of 2.
Link reach(const Address& address) {
  Link link;
  eventually([&] {
    link = try_handshake(
               {1, 2, 0, "the test"}, address, kSharedSecret, [] { return false; }, kHangGuard)
               .link;
    return link.open();
  });
  return link;
}

std::optional<Message> next(Link& link) {
  std::optional<Message> message;
  eventually([&] { return (message = link.receive()) || !link.open(); });
  return message;
}

/// Returns the exit status and the output of a worker whose coordinator sends `order`.
std::pair<int, std::string> answer_to(const Message& order) {
  const TempDirectory directory;
  const Address address = free_address();
  HandshakeListener listener({0, 2, 0, "the test"}, address, kSharedSecret, kHangGuard);
  const pid_t pid = in_background([&] {
    errors_to(directory / "stderr");
    return run_worker({1, 2, 0, "the test"}, address, kSharedSecret, {case_of_two()}, kEndless, kShort);
  });
  std::vector<JoinedWorker> joined_workers;
  const auto nobody = [](int) { return false; };
  CHECK(eventually([&] { return !(joined_workers = listener.admit(50ms, nobody)).empty(); }));
  for (JoinedWorker& joined : joined_workers) joined.link.send(order);
  return {exit_status(pid), file_text(directory / "stderr")};
}

}  // namespace

TEST_CASE("Coordinator: a worker that sends nonsense is lost and named", "[together]") {
  for (const Message& report :
       {Message{{"end", "x"}}, Message{{"end", 17}}, Message{{"end", -1}}, Message{{"code", 0}}}) {
    INFO(report.dump());
    const TempDirectory directory;
    const Address address = free_address();
    const pid_t pid = in_background([&] {
      errors_to(directory / "stderr");
      Coordinator coordinator({0, 2, 0, "the test"}, address, kSharedSecret, kShort);
      const CaseProcessResult result = coordinator.run(kEndless, validate(case_of_two()), 0);
      fmt::print(stderr, "{}\n{}\n", result.where, fmt::join(coordinator.lost(), ", "));
      return static_cast<int>(result.end);
    });
    Link link = reach(address);
    const auto order = next(link);
    CHECK(order.has_value());
    link.send(report);
    CHECK(exit_status(pid) == static_cast<int>(CaseProcessResult::End::lost));
    CHECK(file_text(directory / "stderr") ==
          fmt::format("precbench: process 0 of 2 is waiting for process 1 at {1}\nprocess 1 ({0}, rank 1)\n"
                      "process 1 ({0})\n",
                      host_name(), to_string(address)));
  }
}

TEST_CASE("run_worker: disconnects from a coordinator that sends nonsense", "[together]") {
  for (const Message& order :
       {Message{{"do", 5}}, Message{{"do", "dance"}}, Message{{"do", "end"}, {"status", "x"}},
        Message{{"do", "end"}, {"status", 3}}, Message{{"do", "end"}, {"status", 1}}}) {
    INFO(order.dump());
    const auto [status, said] = answer_to(order);
    CHECK(status == kCoordinatorGone);
    CHECK(said == "precbench: process 1 of 2 ends: process 0 sent an unknown order\n");
  }
}

TEST_CASE("run_worker: refuses a case that is not in its own sweep and says how it differs", "[together]") {
  Case other = case_of_two();
  other.data = "/etc/passwd";
  const std::string invalid = "the order has no valid case";
  for (const auto& [c, difference] :
       {std::pair(Message(), invalid), std::pair(Message(5), invalid),
        std::pair(Message{{"seq", "x"}}, invalid), std::pair(Message{{"none", 1}}, invalid),
        std::pair(case_to_json(other),
                  std::string("--data is synthetic in process 1 and /etc/passwd in process 0; "
                              "start all processes with the same arguments"))}) {
    INFO(c.dump());
    const auto [status, said] = answer_to({{"do", "run"}, {"case", c}});
    CHECK(status == kCoordinatorGone);
    CHECK(said ==
          "precbench: process 1 of 2 ends: process 0 has a case that is not in this process's sweep: " +
              difference + "\n");
  }
}

TEST_CASE("Coordinator: the row of a case that a worker refuses has the worker's reason", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const pid_t pid = in_background([&] {
    Coordinator coordinator({0, 2, 0, "the test"}, address, kSharedSecret, kShort);
    const CaseProcessResult result = coordinator.run(kEndless, validate(case_of_two()), 0);
    std::ofstream(directory / "said") << result.last_lines;
    return static_cast<int>(result.end);
  });
  Link link = reach(address);
  CHECK(next(link).has_value());
  link.send({{"left", "process 0 has another case"}});
  CHECK(exit_status(pid) == static_cast<int>(CaseProcessResult::End::lost));
  CHECK(file_text(directory / "said") == "process 0 has another case");
}
