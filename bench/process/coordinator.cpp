// Connects the workers, runs cases with them, and determines which process failed first. See coordinator.h.
#include "bench/process/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "bench/case/rules.h"
#include "bench/machine/environment.h"
#include "bench/process/handshake.h"
#include "bench/process/standard_error.h"
#include "bench/process/sweep_summary.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

using End = CaseProcessResult::End;
using namespace std::chrono_literals;

constexpr auto kWorkerPoll = 50ms;
constexpr auto kBetweenLines = 30s;       ///< between lines that say for whom process 0 waits
constexpr auto kEndOfHandshakes = 500ms;  ///< longest wait, at the end, for handshakes that are under way
constexpr auto kBetweenPolls = 5ms;
constexpr std::size_t kLongestWords = 4096;  ///< bytes of a worker's text

/// Returns "process 1", "processes 1, 4 and 5", "processes 1 to 15".
std::string list_processes(const std::vector<int>& processes) {
  if (processes.size() == 1) return fmt::format("process {}", processes.front());
  const auto count = static_cast<std::ptrdiff_t>(processes.size());
  if (count > 3 && processes.back() - processes.front() == count - 1)
    return fmt::format("processes {} to {}", processes.front(), processes.back());
  return fmt::format("processes {} and {}",
                     fmt::join(processes.begin(), processes.begin() + (count - 1), ", "), processes.back());
}

/// Returns status and error of a record as text; an empty status if it is not a record.
std::pair<std::string, std::string> outcome_of(const std::string& record) {
  const auto json = nlohmann::ordered_json::parse(record, nullptr, false);
  if (!json.is_object() || !json.contains("status") || !json["status"].is_string()) return {};
  const bool error = json.contains("error") && json["error"].is_string();
  return {json["status"].get<std::string>(), error ? json["error"].get<std::string>() : ""};
}

/// Returns true if the child ended by itself with a row, whatever its status.
bool has_row(const CaseProcessResult& result) {
  return result.end == End::exited && result.code == 0 && !outcome_of(result.record).first.empty();
}

bool failed(const CaseProcessResult& result) { return result.end != End::stopped && !succeeded(result); }

/// Weight of a failure with a row. Such a process ends by itself, and its row has the measurements, so it is
/// given time.
constexpr int kRowWeight = 2;

/// Ranks failures that arrive together; the heaviest is the cause. A process that dies makes the others'
/// collectives fail, and those then report errors of their own.
int weight(const CaseProcessResult& result) {
  switch (result.end) {
    case End::interrupted:
      return 6;
    case End::signalled:
      return 5;
    case End::lost:
      return 4;
    case End::exited:
      return result.code == kBadInputExit ? 3 : has_row(result) ? succeeded(result) ? 0 : kRowWeight : 1;
    case End::timed_out:
      return 1;
    case End::stopped:
      break;
  }
  return 0;
}

}  // namespace

bool succeeded(const CaseProcessResult& result) {
  return result.end == End::exited && result.code == 0 &&
         outcome_of(result.record).first == name_of(Status::ok);
}

Coordinator::Coordinator(const Nodes& nodes, const Address& address, const std::string& secret,
                         const Timeouts& timeouts, const std::vector<Case>& grid)
    : nodes_(nodes),
      timeouts_(timeouts),
      visible_gpus_(find_gpus().count),
      host_(host_name()),
      listener_(std::make_unique<HandshakeListener>(nodes, address, secret, timeouts.handshake)) {
  for (int process = 1; process < nodes.count; ++process)
    workers_.push_back({process, "", Link(), grid.empty(), true});
  meet(address, grid);
  for (const Case& c : grid)
    if (const auto why = tensor_hosts_reason(c, hosts())) give_up(*why);
}

std::vector<std::string> Coordinator::hosts() const {
  std::vector<std::string> hosts = {host_};
  for (const Worker& f : workers_) hosts.push_back(f.host);
  return hosts;
}

int Coordinator::nodes() const {
  const std::vector<std::string> all = hosts();
  return static_cast<int>(std::set<std::string>(all.begin(), all.end()).size());
}

std::vector<int> Coordinator::missing() const {
  std::vector<int> processes;
  for (const Worker& f : workers_)
    if (!f.met()) processes.push_back(f.process);
  return processes;
}

std::optional<std::string> Coordinator::hear(Worker& worker, const nlohmann::ordered_json& own) {
  const auto message = worker.link.receive();
  if (!message) return std::nullopt;
  // A worker has nothing else to send before the first case.
  if (!message->contains("sweep")) worker.link.close();
  if (worker.agreed || !worker.link.open()) return std::nullopt;
  const auto difference = sweep_difference(own, *message, worker.process);
  worker.agreed = !difference;
  return difference ? std::optional(fmt::format("process {} ({}) has another sweep: {}", worker.process,
                                                worker.host, *difference))
                    : std::nullopt;
}

void Coordinator::meet(const Address& address, const std::vector<Case>& grid) {
  const nlohmann::ordered_json own = summarize_sweep(grid);
  std::optional<std::string> other_sweep;
  const auto listen_to = [&](Worker& f) {
    if (auto difference = hear(f, own)) other_sweep = std::move(difference);
  };
  // A worker that ends before the others have connected may be restarted, so its number must be free by then.
  const auto taken = [&](int process) {
    Worker& f = workers_[static_cast<std::size_t>(process) - 1];
    listen_to(f);
    return f.link.open();
  };
  const auto begin = Clock::now();
  for (auto next_line = begin; !missing().empty();) {
    if (const auto now = Clock::now(); now >= next_line) {
      log_line(fmt::format("precbench: process 0 of {} is {} for {} at {}", nodes_.count,
                           next_line == begin ? "waiting" : "still waiting", list_processes(missing()),
                           to_string(address)));
      next_line = now + kBetweenLines;
    }
    if (Clock::now() > begin + timeouts_.meet)
      give_up(fmt::format("process {} of {} has not connected to {} within {} s{}{}", missing().front(),
                          nodes_.count, to_string(address), timeouts_.meet / 1.0s,
                          listener_->last_refusal() ? "; refused meanwhile: " : "",
                          listener_->last_refusal().value_or("")));
    for (JoinedWorker& joined : listener_->admit(kWorkerPoll, taken))
      workers_[static_cast<std::size_t>(joined.process) - 1] = {joined.process, joined.host,
                                                                std::move(joined.link), grid.empty(), true};
    std::for_each(workers_.begin(), workers_.end(), listen_to);
    if (other_sweep) give_up(*other_sweep);
    // If all are connected, one more that cannot agree is not needed.
    const bool incomplete =
        std::any_of(workers_.begin(), workers_.end(), [](const Worker& f) { return !f.link.open(); });
    if (listener_->conflict() && incomplete) give_up(*listener_->conflict());
  }
}

void Coordinator::give_up(const std::string& why) {
  std::vector<bool> told(workers_.size(), false);
  const auto know = [&](const Worker& f) {
    return told[static_cast<std::size_t>(f.process) - 1] && !f.link.open();
  };
  for (const auto end = Clock::now() + timeouts_.farewell;;) {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Link& link = workers_[i].link;
      if (link.open() && !told[i]) {
        link.send({{"refused", why}});
        told[i] = true;
      }
      link.receive();  // closes it once the worker has left; closing it before could lose what was sent
    }
    if (std::all_of(workers_.begin(), workers_.end(), know) || Clock::now() >= end) throw InvalidInput(why);
    const auto taken = [&](int process) { return told[static_cast<std::size_t>(process) - 1]; };
    for (JoinedWorker& joined : listener_->admit(kWorkerPoll, taken))
      workers_[static_cast<std::size_t>(joined.process) - 1].link = std::move(joined.link);
  }
}

void Coordinator::refuse_latecomers() {
  if (std::any_of(workers_.begin(), workers_.end(), [](const Worker& f) { return !f.link.open(); }))
    listener_.reset();
  if (listener_) listener_->admit(0ms, [](int) { return true; });
}

bool Coordinator::says_lost(const std::string& error) { return error.find(kLost) != std::string::npos; }

std::string Coordinator::name(int process, const std::string& host, const Plan& plan) const {
  const int local = plan.ranks / nodes_.count, first = process * local;
  const std::string ranks =
      local > 1 ? fmt::format("ranks {}-{}", first, first + local - 1) : fmt::format("rank {}", first);
  return fmt::format("process {} ({}, {})", process, host, ranks);
}

bool Coordinator::all_reported() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& f) { return f.reported; });
}

std::vector<std::string> Coordinator::silent(const Plan& plan) const {
  std::vector<std::string> names;
  for (const Worker& f : workers_)
    if (!f.reported) names.push_back(name(f.process, f.host, plan));
  return names;
}

void Coordinator::listen(const Plan& plan) {
  refuse_latecomers();
  for (Worker& f : workers_) {
    if (f.reported) continue;
    CaseProcessResult result;
    result.where = name(f.process, f.host, plan);
    const auto report = f.link.receive();
    if (const int end = report ? integer_in(*report, "end", -1) : -1;
        end >= 0 && end < static_cast<int>(End::lost)) {
      result.end = static_cast<End>(end);
      result.code = integer_in(*report, "code", 0);
      result.out_of_memory = flag_in(*report, "out_of_memory", false);
      result.stopped_s = number_in(*report, "stopped_s", 0);
      result.last_lines = text_in(*report, "last_lines", "", kLongestWords);
      if (const std::string status = text_in(*report, "status", ""); !status.empty()) {
        // The environment of a row is always this process's, as in rows with measurements.
        const bool ok = status == name_of(Status::ok);
        nlohmann::ordered_json record =
            ok ? start_record(plan)
               : failed_record(plan, Status::crashed, text_in(*report, "error", "", kLongestWords));
        record["status"] = status;
        result.record = record.dump();
      }
    } else if (report || !f.link.open()) {
      if (report) result.last_lines = text_in(*report, "left", "", kLongestWords);
      f.link.close();  // after nonsense
      result.end = End::lost;
    } else {
      continue;
    }
    f.reported = true;
    results_.push_back(result);
    if (failed(result)) note_failure();
  }
}

void Coordinator::note_failure() { first_failure_ = std::min(first_failure_, Clock::now()); }

bool Coordinator::must_stop() const {
  const bool certain = std::any_of(results_.begin(), results_.end(), [](const CaseProcessResult& r) {
    return failed(r) && weight(r) > kRowWeight;
  });
  return certain || Clock::now() - timeouts_.row > first_failure_;
}

void Coordinator::wait_for_reports(const Plan& plan, const std::function<bool()>& give_up) {
  for (listen(plan); !all_reported() && !give_up(); listen(plan))
    std::find_if(workers_.begin(), workers_.end(), [](const Worker& f) {
      return !f.reported;
    })->link.wait(kWorkerPoll);
}

void Coordinator::stop_others(const Plan& plan) {
  for (Worker& f : workers_)
    if (!f.reported) f.link.send({{"do", "stop"}});
  wait_for_reports(plan, [&, end = Clock::now() + timeouts_.stop] { return Clock::now() >= end; });
}

CaseProcessResult Coordinator::verdict(const Plan& plan) const {
  // Among equal rows, prefers this process's own, which has the measurements.
  const std::string here = name(0, host_, plan);
  const auto key_of = [&](const CaseProcessResult& r) {
    return std::pair(weight(r), has_row(r) && r.where == here);
  };
  const auto cause = std::max_element(
      results_.begin(), results_.end(),
      [&](const CaseProcessResult& x, const CaseProcessResult& y) { return key_of(x) < key_of(y); });
  CaseProcessResult result = *cause;
  if (has_row(result)) {
    if (result.where == here) result.where.clear();  // a row like any other
    return result;
  }
  for (const CaseProcessResult& other : results_)
    if (&other != &*cause && failed(other) && !other.last_lines.empty())
      result.last_lines += fmt::format("; {}: {}", other.where, other.last_lines);
  return result;
}

CaseProcessResult Coordinator::timed_out(const std::vector<std::string>& suspects) const {
  CaseProcessResult result;
  result.end = End::timed_out;
  if (!suspects.empty()) result.where = fmt::format("{} did not report", fmt::join(suspects, ", "));
  // When told to end, a process prints the progress of its ranks; one that cannot is where the case hangs.
  for (const CaseProcessResult& r : results_) {
    const bool named = std::find(suspects.begin(), suspects.end(), r.where) != suspects.end();
    if (succeeded(r) || (named && r.last_lines.empty())) continue;
    result.last_lines += fmt::format("{}{}: {}", result.last_lines.empty() ? "" : "; ", r.where,
                                     r.last_lines.empty() ? "its ranks said nothing" : r.last_lines);
  }
  return result;
}

CaseProcessResult Coordinator::run(const std::vector<std::string>& command, const Plan& plan,
                                   double timeout_s, const Say& say) {
  results_.clear();
  first_failure_ = Clock::time_point::max();
  for (const Worker& f : workers_)
    if (!f.link.open()) {
      CaseProcessResult result;
      result.end = End::lost;
      result.where = name(f.process, f.host, plan);
      return result;
    }
  RunningTime running;
  const auto late = [&] {
    const double seconds = running.seconds();  // must be called in every round
    return timeout_s > 0 && seconds > timeout_s;
  };
  for (Worker& f : workers_) {
    f.reported = false;
    f.link.send({{"do", "run"}, {"case", case_to_json(plan.fields)}});
  }
  NodeShare share = share_of(nodes_, plan.ranks, visible_gpus_);
  share.nodes = nodes();
  const auto stop = [&] {
    listen(plan);
    late();
    return must_stop();
  };
  CaseProcessResult own = run_case_process(command, plan.fields, share, timeout_s, stop, say);
  own.where = name(0, host_, plan);
  results_.push_back(own);
  if (own.end == End::exited) {
    // A process that failed by itself may only be the first to notice what another will report.
    if (failed(own)) note_failure();
    wait_for_reports(plan, [&] { return late() || must_stop() || interrupted(); });
  }
  // A launcher whose process has died interrupts the others; then that failure counts, not the interrupt.
  if (interrupted() && first_failure_ == Clock::time_point::max()) own.end = End::interrupted;
  const bool timeout = own.end == End::timed_out || (succeeded(own) && !all_reported() && !must_stop());
  const std::vector<std::string> unfinished = silent(plan);
  stop_others(plan);
  const std::vector<std::string> gone = silent(plan);
  for (Worker& f : workers_)
    if (!f.reported) f.link.close();

  if (own.end == End::interrupted) return own;
  // All wait for the hanging process, so none has reported in time. It is the one that cannot be told to
  // stop, or else the last output tells.
  if (timeout) return timed_out(gone.empty() && succeeded(own) ? unfinished : gone);
  for (const std::string& name : gone) {
    CaseProcessResult lost;
    lost.end = End::lost;
    lost.where = name;
    results_.push_back(lost);
  }
  if (!std::all_of(results_.begin(), results_.end(), succeeded)) return verdict(plan);
  own.where.clear();
  for (const CaseProcessResult& other : results_) own.stopped_s = std::max(own.stopped_s, other.stopped_s);
  return own;
}

std::vector<std::string> Coordinator::lost() const {
  std::vector<std::string> names;
  for (const Worker& f : workers_)
    if (!f.link.open()) names.push_back(fmt::format("process {} ({})", f.process, f.host));
  return names;
}

void Coordinator::finish(int status) {
  for (Worker& f : workers_) f.link.send({{"do", "end"}, {"status", status}});
  // A process whose handshake is under way would otherwise wait for a process 0 that is gone.
  for (const auto end = Clock::now() + kEndOfHandshakes; Clock::now() < end;) {
    refuse_latecomers();
    if (!listener_ || !listener_->has_pending()) return;
    std::this_thread::sleep_for(kBetweenPolls);
  }
}

}  // namespace precbench
