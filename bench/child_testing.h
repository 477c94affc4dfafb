// Sweeps of the tests run the test binary itself as their child: a hidden test that plays one case.
#pragma once

#include <unistd.h>

#include <string>

#include "bench/child.h"
#include "tools/temp_directory.h"

namespace precbench {

/// The whole body of such a test. Where the process was started for `test` alone it becomes the child and
/// ends; in a run of many tests, which some filters let hidden ones into, nothing happens.
inline void be_child(const std::string& test, Record (*run)(const Case&, const NodeShare&, StepBoard&)) {
  const std::string words = file_text("/proc/self/cmdline");  // each ends in a null character
  const std::string last = '\0' + test + '\0';
  // _exit: the test framework's own report must not follow.
  if (words.ends_with(last) && words.find('\0') + last.size() == words.size()) _exit(child_main(run));
}

}  // namespace precbench
