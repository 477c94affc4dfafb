// Signals that a sweep lives with: those that end it in order, and a stop that its case shares.
//
// Ctrl-Z (SIGTSTP) stops the case with the sweep, and both go on together; the row says so, since step times may
// hold the stop. SIGSTOP cannot be caught: the case runs on. In neither is the time of the stop part of a case's
// --timeout. Of several processes that is so of process 0, which times the case; a stop of another is a hang to it.
#pragma once

#include <sys/types.h>

#include <chrono>

namespace precbench {

/// While one of these lives, SIGINT, SIGTERM and SIGHUP set interrupted() instead of ending the process, and
/// SIGTSTP stops it together with its case.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};
bool interrupted();

/// As many of these may live at one time, in any threads; a case beyond them would run on while we are stopped.
inline constexpr int kMostStopped = 64;

/// While this lives, the process group `group` is stopped and continued with this process.
class StopsWithUs {
 public:
  explicit StopsWithUs(pid_t group);
  ~StopsWithUs();
  StopsWithUs(const StopsWithUs&) = delete;
  StopsWithUs& operator=(const StopsWithUs&) = delete;
  /// How long it was stopped so far.
  double seconds() const;

 private:
  int slot_;       // among those that live; -1: none was free
  int before_ms_;  // of stops before it began to live
};

/// The time in which this process has been running, by being looked at ten times a second: where nobody looked
/// for longer, it was stopped.
class RunningTime {
 public:
  double seconds();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point seen_ = Clock::now();
  double seconds_ = 0;
};

}  // namespace precbench
