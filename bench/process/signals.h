// Signals that a sweep handles: those that end it in order, and a stop that its case shares.
//
// Ctrl-Z (SIGTSTP) stops the case together with the sweep, and both continue together. The row says so, since
// step times may include the stop. SIGSTOP cannot be caught, so the case keeps running. Neither kind of stop
// counts towards a case's --timeout. With several processes this holds for process 0, which times the case;
// it sees a stop of another as a hang.
#pragma once

#include <sys/types.h>

#include <chrono>

namespace precbench {

/// During its lifetime, SIGINT, SIGTERM and SIGHUP set interrupted() instead of ending the process, and
/// SIGTSTP stops it together with its case.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};
bool interrupted();

/// Largest number of StopsWithUs objects at a time, over all threads; further cases would keep running during
/// a stop.
inline constexpr int kMostStopped = 64;

/// During its lifetime, the process group `group` is stopped and continued with this process.
class StopsWithUs {
 public:
  explicit StopsWithUs(pid_t group);
  ~StopsWithUs();
  StopsWithUs(const StopsWithUs&) = delete;
  StopsWithUs& operator=(const StopsWithUs&) = delete;
  /// Returns the seconds for which it was stopped so far.
  double seconds() const;

 private:
  int slot_;       // index among the living ones; -1: none was free
  int before_ms_;  // stopped time before its construction
};

/// Time during which this process has been running. seconds() must be called about ten times a second: a
/// longer gap between calls counts as a stop.
class RunningTime {
 public:
  double seconds();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point seen_ = Clock::now();
  double seconds_ = 0;
};

}  // namespace precbench
