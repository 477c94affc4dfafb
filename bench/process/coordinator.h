// Process 0 of a sweep that several processes run together. It alone decides, skips, records and prints; the
// others (worker.h) run their ranks of each case as it tells them, over a TCP connection each.
//
// Messages are JSON objects. Once it has let a worker in (handshake.h), the coordinator sends
// {"do": "run", "case"}, perhaps {"do": "stop"}, and at the end {"do": "end", "status"}. Every
// run is answered by one report on the worker's child: {"end", "code", "out_of_memory", "stopped_s",
// "last_lines", "status", "error"}, the last two from its record.
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

/// How long processes wait for each other.
struct Timeouts {
  std::chrono::milliseconds meet = std::chrono::seconds(120);  ///< at the start
  std::chrono::milliseconds stop = std::chrono::seconds(10);  ///< for the report of one that was told to stop
  std::chrono::milliseconds row = std::chrono::seconds(5);    ///< for a row, after another's failure
  std::chrono::seconds greeting = kGreetingTime;              ///< from connecting to being let in
};

class Coordinator {
 public:
  /// Waits for all other processes, which know `secret`. Throws InvalidInput where one does not come.
  Coordinator(const Nodes& nodes, const Address& address, const std::string& secret,
              const Timeouts& timeouts = {});

  /// Runs `command` on this process's share of the case while the others run theirs, and waits for the end of all.
  /// `timeout_s`: as of run_case_process, in this process's RunningTime; the others keep no time of their own.
  /// The first failure of any ends the case: the result is then that one's, and `where` names it. A process
  /// whose connection is lost, or that does not report at all, is lost() from then on: the case ends as
  /// `lost`, and so would every later one.
  CaseProcessResult run(const std::vector<std::string>& command, const Plan& plan, double timeout_s);

  /// The processes without which no further case can run, "process 1 (node-2)" each.
  std::vector<std::string> lost() const;

  /// Tells the others to end with this exit status. Where it is not called they take the coordinator for dead.
  void finish(int status);

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    int process;
    std::string host;
    Link link;
    bool reported = true;  // what the running case's child came to
  };
  void listen(const Plan& plan);
  bool all_reported() const;
  std::vector<std::string> silent(const Plan& plan) const;
  void note_failure();
  bool must_stop() const;
  /// Until all have reported, `give_up` says so, or an interrupt.
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
  std::vector<CaseProcessResult> results_;  // of the running case, as they came
  Clock::time_point first_failure_;
};

/// Whether the child ended by itself and its record says ok.
bool succeeded(const CaseProcessResult& result);

}  // namespace precbench
