// Process 0 of a sweep that several processes run together. It alone decides, skips, records and prints. The
// others (worker.h) run their ranks of each case on its orders, over a TCP connection each.
//
// Messages are JSON objects. After the handshake (handshake.h) each worker sends a summary of its sweep
// (sweep_summary.h). If processes turn out to be unable to agree before all have met, because of another sweep
// or by HandshakeListener::conflict, the coordinator sends all of them {"refused": why}, and all end.
// Otherwise it sends {"do": "run", "case"}, perhaps {"do": "stop"}, and at the end {"do": "end", "status"}. Each
// run is answered by one report about the worker's child: {"end", "code", "out_of_memory", "stopped_s",
// "last_lines", "status", "error"}, the last two from its record. A worker that cannot run a case says why,
// {"left": why}, and disconnects.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/process/case_process.h"
#include "bench/process/handshake.h"
#include "bench/process/link.h"
#include "bench/process/rendezvous.h"

namespace precbench {

/// Time limits of processes that wait for each other.
struct Timeouts {
  std::chrono::milliseconds meet = std::chrono::seconds(120);  ///< for all processes to connect at the start
  std::chrono::milliseconds stop = std::chrono::seconds(10);   ///< for the report of a process told to stop
  std::chrono::milliseconds row = std::chrono::seconds(5);  ///< for a row, after another process has failed
  std::chrono::seconds handshake = kHandshakeTimeout;       ///< from connecting to the end of the handshake
  /// For telling the others why the sweep cannot begin: those that have not come yet may still be starting.
  std::chrono::milliseconds farewell = std::chrono::seconds(3);
};

class Coordinator {
 public:
  /// Waits for all other processes, which must know `secret` and have the cases of `grid` (empty: any). Says at
  /// once on standard error for which ones it waits. Throws InvalidInput if one does not connect in time, as
  /// soon as it is known that the processes cannot agree, or if tensor ranks of a case would be on several hosts;
  /// the others then learn the reason.
  Coordinator(const Nodes& nodes, const Address& address, const std::string& secret,
              const Timeouts& timeouts = {}, const std::vector<Case>& grid = {});

  /// Runs `command` on this process's share of the case while the others run theirs, and waits for all to
  /// end.
  /// `timeout_s`: as in run_case_process, in this process's RunningTime; the others keep no time. The first
  /// failure of any process ends the case and is the result; `where` names the process. A process whose
  /// connection is lost, or that does not report at all, is lost() from then on: this case and every later
  /// one end as `lost`.
  CaseProcessResult run(const std::vector<std::string>& command, const Plan& plan, double timeout_s,
                        const Say& say = {});

  /// Returns the processes without which no further case can run, each as "process 1 (node-2)".
  std::vector<std::string> lost() const;

  /// Number of hosts with different names that the processes run on.
  int nodes() const;

  /// Tells the others to exit with this status. Without it they conclude that the coordinator has died.
  void finish(int status);

  /// Returns true if the error of a record says that a process of the sweep was lost. Such a row is no result of
  /// its case, which runs again at the next start.
  static bool says_lost(const std::string& error);
  static constexpr const char* kLost = "the connection to it is lost";

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    int process;
    std::string host;
    Link link;
    bool agreed = false;   // its sweep is this one
    bool reported = true;  // the result of the running case's child
    bool met() const { return agreed && link.open(); }
  };
  void meet(const Address& address, const std::vector<Case>& grid);
  std::vector<std::string> hosts() const;  // by process
  std::vector<int> missing() const;
  /// Reads the summary of a worker's sweep, if it has arrived. Returns why the sweeps differ; null if they do not.
  std::optional<std::string> hear(Worker& worker, const nlohmann::ordered_json& own);
  /// Tells all workers why the sweep cannot begin, and throws it.
  [[noreturn]] void give_up(const std::string& why);
  /// Refuses processes that come after all have met, so that they do not wait for this one.
  void refuse_latecomers();
  void listen(const Plan& plan);
  bool all_reported() const;
  std::vector<std::string> silent(const Plan& plan) const;
  void note_failure();
  bool must_stop() const;
  /// Waits until all have reported, `give_up` returns true, or an interrupt.
  void wait_for_reports(const Plan& plan, const std::function<bool()>& give_up);
  void stop_others(const Plan& plan);
  CaseProcessResult timed_out(const std::vector<std::string>& suspects) const;
  CaseProcessResult verdict(const Plan& plan) const;
  std::string name(int process, const std::string& host, const Plan& plan) const;

  Nodes nodes_;
  Timeouts timeouts_;
  int visible_gpus_;
  std::string host_;
  std::unique_ptr<HandshakeListener> listener_;  // until a process is lost: those that start again must wait
  std::vector<Worker> workers_;
  std::vector<CaseProcessResult> results_;  // of the running case, in order of arrival
  Clock::time_point first_failure_;
};

/// Returns true if the child ended by itself and its record has the status ok.
bool succeeded(const CaseProcessResult& result);

}  // namespace precbench
