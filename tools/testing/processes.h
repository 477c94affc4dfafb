// Processes in tests: commands and what they answer; forks in the background, watched and waited for.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tools/testing/catch.h"

namespace precbench {

/// The exit status, or minus the signal that ended the process. `status`: what waitpid and pclose give.
inline int exit_status_in(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

struct Answer {
  int status;
  std::string text;  ///< standard output and error together
};

/// Runs a command of the shell with nothing on its standard input, to its end.
inline Answer output_of(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start " + command);
  Answer answer{};
  char buffer[4096];
  for (std::size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, got);
  answer.status = exit_status_in(pclose(pipe));
  return answer;
}

/// The one line, without its newline, with which a program that is given bad input must end, at status 2.
inline std::string refusal_in(const Answer& answer) {
  INFO(answer.text);
  CHECK(answer.status == 2);
  CHECK(answer.text.find('\n') + 1 == answer.text.size());
  return answer.text.substr(0, answer.text.find('\n'));
}

/// Runs `action` in a forked process, whose exit status is what it returns.
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

/// From here on, this process's standard error goes to a file.
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

/// Within a minute: processes of a sanitizer's build, beside others that compute, take seconds to start.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (condition()) return true;
  return false;
}

/// A time limit, whole seconds, that no process of this binary spends on its start: 4 s, and more where a start that
/// does nothing took long.
inline double ample_time_s() {
  static const double limit = [] {
    const auto begin = std::chrono::steady_clock::now();
    exit_status(
        in_background([] { return execl("/proc/self/exe", "precbench_tests", "no such test", nullptr); }));
    const std::chrono::duration<double> start = std::chrono::steady_clock::now() - begin;
    return std::max(4.0, std::ceil(20 * start.count()));
  }();
  return limit;
}

}  // namespace precbench
