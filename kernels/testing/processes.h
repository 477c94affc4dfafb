// Processes in tests: commands and their output, and forks in the background.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/testing/catch.h"

namespace precbench {

/// Returns the exit status, or minus the signal that ended the process. `status`: from waitpid or pclose.
inline int exit_status_in(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

struct Answer {
  int status;
  std::string text;  ///< standard output and error together
};

/// Runs a shell command to its end, with empty standard input.
inline Answer output_of(const std::string& command) {
  FILE* pipe = popen(("{ " + command + "\n} 2>&1 </dev/null").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start " + command);
  Answer answer{};
  char buffer[4096];
  for (std::size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, got);
  answer.status = exit_status_in(pclose(pipe));
  return answer;
}

/// Returns the single line, without newline, that a program must print for bad input; checks for status 2.
inline std::string refusal_in(const Answer& answer) {
  INFO(answer.text);
  CHECK(answer.status == 2);
  CHECK(answer.text.find('\n') + 1 == answer.text.size());
  return answer.text.substr(0, answer.text.find('\n'));
}

/// Runs `action` in a forked process, which exits with the returned value.
template <class Action>
pid_t in_background(Action action) {
  const pid_t pid = fork();
  if (pid == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    int code = 99;
    try {
      code = action();
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    _exit(code);
  }
  return pid;
}

/// Redirects this process's standard error to a file.
inline void errors_to(const std::string& path) {
  dup2(open(path.c_str(), O_WRONLY | O_CREAT, 0644), STDERR_FILENO);
}

inline int exit_status(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return exit_status_in(status);
}

inline bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  return stat >> id >> name >> state && state != "Z" && state != "X";
}

/// Maximum wait for an event. Tests wait for events rather than for a fixed time, so this only determines
/// when a hanging test fails.
constexpr std::chrono::seconds kHangGuard = std::chrono::minutes(30);

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Waits for the condition. Returns false after kHangGuard.
inline bool eventually(const std::function<bool()>& condition) {
  const Stopwatch watch;
  while (!condition()) {
    if (watch.seconds() > static_cast<double>(kHangGuard.count())) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// Returns true if the process has a handler for the signal, so that the signal does not simply end it.
inline bool handles(pid_t pid, int signal) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string key, value; file >> key && std::getline(file, value);)
    if (key == "SigCgt:") return std::stoull(value, nullptr, 16) >> (signal - 1) & 1;
  return false;
}

/// For tests of time limits: calls attempt(limit) with doubled limits in seconds until it returns true. It
/// must return false if the machine was too slow for the limit to end only what the test expects.
inline void with_time_limit(double first_s, const std::function<bool(double)>& attempt) {
  for (double limit = first_s; limit < static_cast<double>(kHangGuard.count()); limit *= 2)
    if (attempt(limit)) return;
  FAIL("no time limit was long enough");
}

}  // namespace precbench
