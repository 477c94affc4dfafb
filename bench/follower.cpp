// Waiting for cases, running them, reporting. See follower.h and the messages in leader.h.
#include "bench/follower.h"

#include <fmt/format.h>

#include <thread>

#include "bench/environment.h"
#include "bench/sweep.h"
#include "kernels/cuda/device_info.h"
#include "kernels/errors.h"

namespace precbench {
namespace {

using End = ChildResult::End;
using namespace std::chrono_literals;

constexpr auto kRetry = 100ms;

/// A closed link after an interrupt.
Link meet(const Nodes& nodes, const Address& address, const Patience& patience) {
  const auto end = std::chrono::steady_clock::now() + patience.meet;
  while (!interrupted()) {
    Link link = connect_to(address);
    if (link.open()) {
      link.send({{"process", nodes.index}, {"of", nodes.count}, {"host", host_name()}});
      return link;
    }
    if (std::chrono::steady_clock::now() > end)
      throw InvalidInput(fmt::format("process {} of {} finds no process 0 at {} within {} s", nodes.index,
                                     nodes.count, to_string(address), patience.meet / 1.0s));
    std::this_thread::sleep_for(kRetry);
  }
  return {};
}

nlohmann::ordered_json report_of(const ChildResult& result) {
  nlohmann::ordered_json report = {{"end", static_cast<int>(result.end)},
                                   {"code", result.code},
                                   {"out_of_memory", result.out_of_memory},
                                   {"last_lines", result.last_lines}};
  if (const auto record = nlohmann::ordered_json::parse(result.record, nullptr, false); record.is_object())
    for (const char* key : {"status", "error"})
      if (record.contains(key) && record[key].is_string()) report[key] = record[key];
  return report;
}

/// One case, until its child ends or the leader does not want it any more; then the report.
void run_part(Link& leader, const Nodes& nodes, const std::vector<std::string>& command,
              const nlohmann::ordered_json& message, const Patience& patience) {
  const double timeout_s = number_in(message, "timeout_s", -1);
  const auto fields = message.find("case");
  if (timeout_s < 0 || fields == message.end() || !fields->is_object()) return leader.close();
  const Case c = case_from_json(*fields);
  const NodeShare share = share_of(nodes, static_cast<int>(c.gpus), find_gpus().count);
  // The leader ends a case in time; if it hangs itself, this process does not hang with it.
  const double limit_s = timeout_s > 0 ? timeout_s + patience.stop / 1.0s : 0;
  leader.send(report_of(run_child(command, c, share, limit_s, [&] {
    const auto order = leader.receive();
    return order ? text_in(*order, "do", "") == "stop" : !leader.open();
  })));
}

}  // namespace

int follow(const Nodes& nodes, const Address& address, const std::vector<std::string>& command,
           const Patience& patience) {
  const InterruptGuard guard;
  Link leader = meet(nodes, address, patience);
  if (!leader.open()) return kSweepInterrupted;
  while (!interrupted()) {
    leader.wait(kRetry);
    const auto order = leader.receive();
    if (!order && !leader.open()) {
      fmt::print(stderr, "precbench: process {} of {} ends: process 0 ended before the sweep did\n",
                 nodes.index, nodes.count);
      return kLeaderGone;
    }
    if (!order) continue;
    const std::string what = text_in(*order, "do", "");
    if (what == "end") return integer_in(*order, "status", kLeaderGone);
    if (what == "run")
      run_part(leader, nodes, command, *order, patience);
    else if (what != "stop")  // one that crosses the report of a case that has just ended stops nothing
      leader.close();
  }
  ChildResult last;
  last.end = End::interrupted;
  leader.send(report_of(last));
  return kSweepInterrupted;
}

}  // namespace precbench
