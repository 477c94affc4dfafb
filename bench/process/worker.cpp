// Waits for cases, runs them and reports. See worker.h and the messages in coordinator.h.
#include "bench/process/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "bench/process/handshake.h"
#include "bench/process/standard_error.h"
#include "bench/process/sweep_status.h"
#include "bench/process/sweep_summary.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

using End = CaseProcessResult::End;
using namespace std::chrono_literals;

/// Only the coordinator times a case: it may be stopped, and a lost link closes soon anyway.
constexpr double kNoLimit = 0;
constexpr std::chrono::milliseconds kRetry = 100ms, kRetryRefused = 1s;
constexpr std::size_t kLongestReason = 1000;  ///< bytes of a reason that the coordinator gives

/// Connects to the coordinator. Returns a closed link after an interrupt. Throws InvalidInput if the coordinator will
/// not admit this process.
Link meet(const Nodes& nodes, const Address& address, const std::string& secret, const Timeouts& timeouts) {
  const auto end = std::chrono::steady_clock::now() + timeouts.meet;
  bool announced = false;
  for (std::optional<std::string> refusal; !interrupted();) {
    HandshakeResult result = try_handshake(nodes, address, secret, interrupted, timeouts.handshake);
    if (result.link.open()) return std::move(result.link);
    if (result.final)
      throw InvalidInput(fmt::format("process {} of {} cannot join process 0 at {}: {}", nodes.index,
                                     nodes.count, to_string(address), result.refusal.value_or("")));
    if (!result.refusal && !std::exchange(announced, true) && !interrupted())
      log_line(fmt::format("precbench: process {} of {} is waiting for process 0 at {}", nodes.index,
                           nodes.count, to_string(address)));
    if (result.refusal && result.refusal != refusal) {
      refusal = result.refusal;
      log_line(fmt::format("precbench: process {} of {} is still waiting for process 0 at {}: {}",
                           nodes.index, nodes.count, to_string(address), *refusal));
    }
    if (std::chrono::steady_clock::now() > end)
      throw InvalidInput(fmt::format("process {} of {} found no process 0 at {} within {} s{}{}", nodes.index,
                                     nodes.count, to_string(address), timeouts.meet / 1.0s,
                                     refusal ? "; the program there: " : "", refusal.value_or("")));
    std::this_thread::sleep_for(result.refusal ? kRetryRefused : kRetry);
  }
  return {};
}

nlohmann::ordered_json report_of(const CaseProcessResult& result) {
  nlohmann::ordered_json report = {{"end", static_cast<int>(result.end)},
                                   {"code", result.code},
                                   {"out_of_memory", result.out_of_memory},
                                   {"stopped_s", result.stopped_s},
                                   {"last_lines", result.last_lines}};
  if (const auto record = nlohmann::ordered_json::parse(result.record, nullptr, false); record.is_object())
    for (const char* key : {"status", "error"})
      if (record.contains(key) && record[key].is_string()) report[key] = record[key];
  return report;
}

/// Returns the case that a message orders, if it is in `grid`; otherwise how it differs, because a coordinator sends
/// no other.
std::variant<const Case*, std::string> ordered_case(const nlohmann::ordered_json& message,
                                                    const std::vector<Case>& grid, int here) {
  const std::string no_case = "the order has no valid case";
  const auto fields = message.find("case");
  if (fields == message.end() || !fields->is_object()) return no_case;
  try {
    const Case ordered = case_from_json(*fields);
    const auto found = std::find(grid.begin(), grid.end(), ordered);
    if (found != grid.end()) return &*found;
    return case_difference(ordered, grid, here);
  } catch (const InvalidInput&) {
    return no_case;
  }
}

/// Runs one case until its child ends or the coordinator cancels it, and sends the report.
void run_part(Link& coordinator, const Nodes& nodes, const std::vector<std::string>& command, const Case& c) {
  const NodeShare share = share_of(nodes, static_cast<int>(c.gpus), find_gpus().count);
  coordinator.send(report_of(run_case_process(command, c, share, kNoLimit, [&] {
    const auto order = coordinator.receive();
    return order ? text_in(*order, "do", "") == "stop" : !coordinator.open();
  })));
}

}  // namespace

int run_worker(const Nodes& nodes, const Address& address, const std::string& secret,
               const std::vector<Case>& grid, const std::vector<std::string>& command,
               const Timeouts& timeouts) {
  const InterruptGuard guard;
  const auto leave = [&](const std::string& why) {
    log_line(fmt::format("precbench: process {} of {} ends: process 0 {}", nodes.index, nodes.count, why));
    return kCoordinatorGone;
  };
  Link coordinator = meet(nodes, address, secret, timeouts);
  if (!coordinator.open()) return kSweepInterrupted;
  coordinator.send(summarize_sweep(grid));
  while (!interrupted()) {
    coordinator.wait(kRetry);
    const auto order = coordinator.receive();
    if (!order && !coordinator.open()) return leave("ended before the sweep did");
    if (!order) continue;
    if (const std::string why = text_in(*order, "refused", "", kLongestReason); !why.empty())
      throw InvalidInput(fmt::format("process {} of {}: process 0 at {} ends the sweep: {}", nodes.index,
                                     nodes.count, to_string(address), why));
    const std::string what = text_in(*order, "do", "");
    const int status = integer_in(*order, "status", kCoordinatorGone);
    if (what == "end" && (status == kSweepDone || status == kSweepInterrupted)) return status;
    if (what == "stop") continue;  // crossed the report of a case that has just ended
    if (what != "run") return leave("sent an unknown order");
    const std::variant<const Case*, std::string> c = ordered_case(*order, grid, nodes.index);
    if (const auto* difference = std::get_if<std::string>(&c)) {
      const std::string why = "has a case that is not in this process's sweep: " + *difference;
      coordinator.send({{"left", "process 0 " + why}});
      return leave(why);
    }
    run_part(coordinator, nodes, command, *std::get<const Case*>(c));
  }
  CaseProcessResult last;
  last.end = End::interrupted;
  coordinator.send(report_of(last));
  return kSweepInterrupted;
}

}  // namespace precbench
