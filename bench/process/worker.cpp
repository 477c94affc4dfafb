// Waits for cases, runs them and reports. See worker.h and the messages in coordinator.h.
#include "bench/process/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "bench/process/handshake.h"
#include "bench/process/sweep_status.h"
#include "bench/process/tell.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

using End = CaseProcessResult::End;
using namespace std::chrono_literals;

/// Only the coordinator times a case: it may be stopped, and a lost link closes soon anyway.
constexpr double kNoLimit = 0;
constexpr std::chrono::milliseconds kRetry = 100ms, kRetryRefused = 1s;

/// Connects to the coordinator. Returns a closed link after an interrupt.
Link meet(const Nodes& nodes, const Address& address, const std::string& secret, const Timeouts& timeouts) {
  const auto end = std::chrono::steady_clock::now() + timeouts.meet;
  for (std::optional<std::string> refusal; !interrupted();) {
    HandshakeResult result = try_handshake(nodes, address, secret, interrupted, timeouts.handshake);
    if (result.link.open()) return std::move(result.link);
    if (result.refusal && result.refusal != refusal) {
      refusal = result.refusal;
      tell(fmt::format("precbench: process {} of {} is still waiting for process 0 at {}: {}", nodes.index,
                       nodes.count, to_string(address), *refusal));
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

/// Returns the case that a message orders, if it is in `grid`; null otherwise, because a coordinator sends no
/// other.
const Case* ordered_case(const nlohmann::ordered_json& message, const std::vector<Case>& grid) {
  const auto fields = message.find("case");
  if (fields == message.end() || !fields->is_object()) return nullptr;
  try {
    const auto found = std::find(grid.begin(), grid.end(), case_from_json(*fields));
    return found == grid.end() ? nullptr : &*found;
  } catch (const InvalidInput&) {
    return nullptr;
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
  const auto leave = [&](const char* why) {
    tell(fmt::format("precbench: process {} of {} ends: process 0 {}", nodes.index, nodes.count, why));
    return kCoordinatorGone;
  };
  Link coordinator = meet(nodes, address, secret, timeouts);
  if (!coordinator.open()) return kSweepInterrupted;
  while (!interrupted()) {
    coordinator.wait(kRetry);
    const auto order = coordinator.receive();
    if (!order && !coordinator.open()) return leave("ended before the sweep did");
    if (!order) continue;
    const std::string what = text_in(*order, "do", "");
    const int status = integer_in(*order, "status", kCoordinatorGone);
    if (what == "end" && (status == kSweepDone || status == kSweepInterrupted)) return status;
    if (what == "stop") continue;  // crossed the report of a case that has just ended
    if (what != "run") return leave("sent an unknown order");
    const Case* c = ordered_case(*order, grid);
    if (!c) return leave("has a case that is not in this process's sweep: start all with the same command");
    run_part(coordinator, nodes, command, *c);
  }
  CaseProcessResult last;
  last.end = End::interrupted;
  coordinator.send(report_of(last));
  return kSweepInterrupted;
}

}  // namespace precbench
