// Signal handlers and the state that they change. See signals.h.
#include "bench/process/signals.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

namespace precbench {
namespace {

// Global, because a signal handler can reach nothing else.
volatile sig_atomic_t interrupt_signal = 0;
std::array<std::atomic<pid_t>, kMostStopped> stopped_groups = {};  ///< that stop with us; 0: free entry
static_assert(std::atomic<pid_t>::is_always_lock_free);
volatile sig_atomic_t stopped_ms = 0;  ///< total since the program started

void on_interrupt(int signal) { interrupt_signal = signal; }

/// Uses only async-signal-safe calls.
void on_stop(int) {
  const int error = errno;
  std::array<pid_t, kMostStopped> groups = {};
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = stopped_groups[i];
  timespec from = {}, to = {};
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (const pid_t group : groups)
    if (group > 0) kill(-group, SIGSTOP);
  raise(SIGSTOP);  // execution continues here after SIGCONT
  for (const pid_t group : groups)
    if (group > 0) kill(-group, SIGCONT);
  clock_gettime(CLOCK_MONOTONIC, &to);
  constexpr time_t kLongest_s = 1'000'000;  // fits into an int as milliseconds, and exceeds any case's time
  const time_t seconds = std::min(to.tv_sec - from.tv_sec, kLongest_s);
  stopped_ms = std::min<long>(stopped_ms + seconds * 1000L + (to.tv_nsec - from.tv_nsec) / 1'000'000L,
                              kLongest_s * 1000L);
  errno = error;
}

struct Handled {
  int signal;
  void (*handler)(int);
};
constexpr std::array<Handled, 4> kHandled = {
    {{SIGINT, on_interrupt}, {SIGTERM, on_interrupt}, {SIGHUP, on_interrupt}, {SIGTSTP, on_stop}}};
std::array<struct sigaction, kHandled.size()> former_actions;

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupt_signal = 0;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    struct sigaction action = {};
    action.sa_handler = kHandled[i].handler;
    sigaction(kHandled[i].signal, &action, &former_actions[i]);
    // Signals that nohup or a background shell made us ignore stay ignored.
    if (former_actions[i].sa_handler == SIG_IGN) sigaction(kHandled[i].signal, &former_actions[i], nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kHandled.size(); ++i)
    sigaction(kHandled[i].signal, &former_actions[i], nullptr);
}

bool interrupted() { return interrupt_signal != 0; }

StopsWithUs::StopsWithUs(pid_t group) : slot_(-1), before_ms_(stopped_ms) {
  for (int i = 0; i < kMostStopped && slot_ < 0; ++i)
    if (pid_t free = 0; stopped_groups[i].compare_exchange_strong(free, group)) slot_ = i;
}

StopsWithUs::~StopsWithUs() {
  if (slot_ >= 0) stopped_groups[slot_] = 0;
}

double StopsWithUs::seconds() const { return (stopped_ms - before_ms_) / 1e3; }

double RunningTime::seconds() {
  constexpr double kLongestLook = 0.5;
  const auto now = Clock::now();
  seconds_ += std::min(std::chrono::duration<double>(now - seen_).count(), kLongestLook);
  seen_ = now;
  return seconds_;
}

}  // namespace precbench
