// Restricts a test to one CPU, as taskset does.
#pragma once

#include <sched.h>

namespace precbench {

/// Pins the calling thread to the first CPU of its affinity mask while it lives.
class OnOneCpu {
 public:
  OnOneCpu() {
    sched_getaffinity(0, sizeof before_, &before_);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneCpu() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCpu(const OnOneCpu&) = delete;
  OnOneCpu& operator=(const OnOneCpu&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace precbench
