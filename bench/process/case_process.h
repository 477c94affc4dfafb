// Runs a case in a process of its own, so that a crash, a hang or exhausted memory ends the case and not the
// sweep.
//
// The child is a command, normally this program's hidden subcommand `run-case`. On standard input it reads
// {"case": {...}, "ranks": {...}}: the case and its own NodeShare. It writes its record to file descriptor kRecordFd and
// exits with 0. If no step has finished after a minute, a line before the record says what the case waits for. For bad input
// it exits with 2 and one line on standard error. Its other output goes to a pipe, whose last lines become the error of a
// case that failed. The child leads its own process group and is killed when its parent dies for any reason. To end it
// early, it gets SIGTERM, upon which it prints the progress of its ranks, and SIGKILL a little later. Its
// environment is the parent's, plus GOMP_SPINCOUNT unless the user has configured how OpenMP threads wait.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/process/rendezvous.h"
#include "bench/process/signals.h"
#include "bench/process/step_board.h"
#include "kernels/base/slow_notice.h"
#include "results/record/record.h"

namespace precbench {

inline constexpr int kRecordFd = 3;
inline constexpr int kBadInputExit = 2;

struct CaseProcessResult {
  enum class End {
    exited,
    signalled,
    timed_out,
    interrupted,
    stopped,  ///< at the caller's request
    lost,     ///< belongs to another process of the sweep, whose connection is lost
  } end = End::exited;
  int code = 0;                ///< exit status, or the signal
  bool out_of_memory = false;  ///< the kernel's out-of-memory killer was active meanwhile
  double stopped_s = 0;        ///< seconds for which it was stopped together with its parent (signals.h)
  std::string record;          ///< received through kRecordFd
  std::string last_lines;      ///< end of the child's output
  std::string where;           ///< with several processes: name of the one concerned
};

/// Receives what a case says while it runs.
using Say = std::function<void(const std::string& words)>;

/// Runs `command` on this process's `share` of `c`. Returns when it has ended, after `timeout_s` of
/// RunningTime (0: no limit), after interrupted(), or when `stop`, polled ten times a second, returns true.
/// `say` gets what a slow child waits for; by default that is a line on standard error.
/// Throws std::system_error if no process can be started.
CaseProcessResult run_case_process(const std::vector<std::string>& command, const Case& c,
                                   const NodeShare& share, double timeout_s,
                                   const std::function<bool()>& stop = {}, const Say& say = {});

/// The child's side: reads the case, calls `run`, writes the record. Returns the exit status. `run` is a
/// parameter so that tests can use cases that crash on request. `slow_after`: time without a step before it says why.
int child_main(Record (*run)(const Case&, const NodeShare&, StepBoard&),
               std::chrono::milliseconds slow_after = kSlowAfter);

}  // namespace precbench
