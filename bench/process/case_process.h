// A case in a process of its own, so that a crash, a hang or an exhausted memory ends the case and not the
// sweep.
//
// The child is a command, normally this program's hidden subcommand `run-case`. On standard input it
// reads {"case": {...}, "ranks": {"world", "first", "local", "first_gpu"}}: the case, and the NodeShare that
// is its own; writes its record on file descriptor kRecordFd and exits 0; or it exits 2 with one line on
// standard error for bad input. Whatever else it prints goes to a pipe whose last lines become the error of a
// case that failed. It leads a process group of its own and is killed when its parent dies, however that
// happens. One that is to end gets SIGTERM first, at which it says how far its ranks are, and SIGKILL a
// little later. Its environment is ours and, unless the user has decided how OpenMP's threads wait,
// GOMP_SPINCOUNT.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/process/rendezvous.h"
#include "bench/process/signals.h"
#include "bench/process/step_board.h"
#include "results/record.h"

namespace precbench {

inline constexpr int kRecordFd = 3;
inline constexpr int kBadInputExit = 2;

struct CaseProcessResult {
  enum class End {
    exited,
    signalled,
    timed_out,
    interrupted,
    stopped,  ///< as its caller wished
    lost,     ///< it belongs to another process of the sweep, whose connection is gone
  } end = End::exited;
  int code = 0;                ///< exit status, or the signal
  bool out_of_memory = false;  ///< the kernel's out-of-memory killer was at work meanwhile
  double stopped_s = 0;        ///< of its time, stopped together with its parent (signals.h)
  std::string record;          ///< what came through kRecordFd
  std::string last_lines;      ///< the end of what it printed
  std::string where;           ///< of several processes, which one this is about
};

/// Runs `command` on this process's `share` of `c` and waits for its end, for `timeout_s` RunningTime (0: for
/// ever), for interrupted(), or until `stop`, which is asked ten times a second. Throws std::system_error
/// where no process can be started.
CaseProcessResult run_case_process(const std::vector<std::string>& command, const Case& c,
                                   const NodeShare& share, double timeout_s,
                                   const std::function<bool()>& stop = {});

/// The child's side: reads the case, runs `run`, writes the record. Returns the exit status.
/// `run` is a parameter so that the runner can be tested with cases that crash on request.
int child_main(Record (*run)(const Case&, const NodeShare&, StepBoard&));

}  // namespace precbench
