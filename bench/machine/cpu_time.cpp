// Reads the process's CPU clock and the kernel's scheduling statistics. See cpu_time.h.
#include "bench/machine/cpu_time.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace precbench {

CpuTime read_cpu_time(const std::string& tasks) {
  namespace fs = std::filesystem;
  CpuTime time;
  timespec used{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0)
    time.used_s = static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  std::error_code error;
  for (fs::directory_iterator task(tasks, error), end; !error && task != end; task.increment(error)) {
    // Nanoseconds on a CPU, nanoseconds ready and waiting for one, number of time slices.
    std::ifstream statistics(task->path() / "schedstat");
    double ran_ns = 0, waited_ns = 0;
    if (statistics >> ran_ns >> waited_ns) time.waited_s[task->path().filename().string()] = 1e-9 * waited_ns;
  }
  return time;
}

CpuTimeSpent cpu_time_between(const CpuTime& begin, const CpuTime& end) {
  CpuTimeSpent spent;
  spent.used_s = std::max(0.0, end.used_s - begin.used_s);
  if (end.waited_s.empty()) return spent;
  double waited_s = 0;
  for (const auto& [thread, seconds] : end.waited_s) {
    const auto before = begin.waited_s.find(thread);
    waited_s += std::max(0.0, seconds - (before == begin.waited_s.end() ? 0 : before->second));
  }
  spent.waited_s = waited_s;
  return spent;
}

}  // namespace precbench
