// Process 0 of a sweep that several processes run together. It alone decides, skips, records and prints. The
// others (worker.h) run their ranks of each case on its orders, over a TCP connection each.
//
// Messages are JSON objects. After the handshake (handshake.h) the coordinator sends {"do": "run", "case"},
// perhaps {"do": "stop"}, and at the end {"do": "end", "status"}. Each run is answered by one report about
// the worker's child: {"end", "code", "out_of_memory", "stopped_s", "last_lines", "status", "error"}, the
// last two from its record.
#pragma once

#include <chrono>
#include <functional>
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
};

class Coordinator {
 public:
  /// Waits for all other processes, which must know `secret`. Throws InvalidInput if one does not connect in
  /// time.
  Coordinator(const Nodes& nodes, const Address& address, const std::string& secret,
              const Timeouts& timeouts = {});

  /// Runs `command` on this process's share of the case while the others run theirs, and waits for all to
  /// end.
  /// `timeout_s`: as in run_case_process, in this process's RunningTime; the others keep no time. The first
  /// failure of any process ends the case and is the result; `where` names the process. A process whose
  /// connection is lost, or that does not report at all, is lost() from then on: this case and every later
  /// one end as `lost`.
  CaseProcessResult run(const std::vector<std::string>& command, const Plan& plan, double timeout_s);

  /// Returns the processes without which no further case can run, each as "process 1 (node-2)".
  std::vector<std::string> lost() const;

  /// Tells the others to exit with this status. Without it they conclude that the coordinator has died.
  void finish(int status);

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    int process;
    std::string host;
    Link link;
    bool reported = true;  // the result of the running case's child
  };
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
  std::vector<Worker> workers_;
  std::vector<CaseProcessResult> results_;  // of the running case, in order of arrival
  Clock::time_point first_failure_;
};

/// Returns true if the child ended by itself and its record has the status ok.
bool succeeded(const CaseProcessResult& result);

}  // namespace precbench
