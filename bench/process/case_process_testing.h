// For tests of sweeps, whose child is the test binary itself with a hidden test that plays one case: that
// test, the sweep's options, and its rows.
#pragma once

#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "bench/process/case_process.h"
#include "bench/sweep/sweep.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"

namespace precbench {

/// The whole body of such a test. If the process was started for `test` alone, it becomes the child and
/// exits. Otherwise does nothing, because some filters include hidden tests in a run of many.
inline void be_child(const std::string& test, Record (*run)(const Case&, const NodeShare&, StepBoard&),
                     std::chrono::milliseconds slow_after = kSlowAfter) {
  const std::string words = file_text("/proc/self/cmdline");  // each word ends in a null character
  const std::string last = '\0' + test + '\0';
  if (!words.ends_with(last) || words.find('\0') + last.size() != words.size()) return;
  // Buffered output of the test framework must not follow; ThreadSanitizer's _exit would flush it.
  __fpurge(stdout);
  _exit(child_main(run, slow_after));
}

/// A gate in a case: reports that it was reached, and waits until the test opens it. Also creates the file
/// `gate`: if that is one that the case saves, the case is not run again after it has passed.
inline void wait_at_gate(const std::string& gate) {
  std::ofstream(gate, std::ios::app).put('\n');
  std::ofstream(gate + ".here").put('\n');
  eventually([&] { return std::filesystem::exists(gate + ".open"); });
}
inline bool reached_gate(const std::string& gate) { return std::filesystem::exists(gate + ".here"); }
inline void open_gate(const std::string& gate) { std::ofstream(gate + ".open").put('\n'); }

/// Starts `sweep` in the background and kills it at random moments until it ends by itself, which must be
/// with kSweepDone. After each kill it opens the gates that were reached. Returns the number of kills.
inline std::size_t kill_until_done(const std::function<int()>& sweep, const std::vector<std::string>& gates) {
  std::mt19937 random(7);
  for (std::size_t kills = 0;; ++kills) {
    const pid_t pid = in_background(sweep);
    // Waits longer each time, so that slow machines make progress too.
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 150 + 20 * kills));
    kill(pid, SIGKILL);
    if (const int status = exit_status(pid); status != -SIGKILL) {
      CHECK(status == kSweepDone);
      return kills;
    }
    for (const std::string& gate : gates)
      if (reached_gate(gate)) open_gate(gate);
  }
}

/// Returns the command of a child that runs such a test.
inline std::vector<std::string> child_command(const std::string& test) { return {"/proc/self/exe", test}; }

/// Returns the options of a sweep into the directory's "out" with such a test as its child.
inline SweepOptions sweep_into(const TempDirectory& directory, const std::string& test) {
  SweepOptions options;
  options.out = directory / "out";
  options.quiet = true;
  options.child = child_command(test);
  return options;
}

/// Resolves the cases and runs the sweep.
inline int run_sweep(const std::vector<Case>& grid, const SweepOptions& options) {
  return run_sweep(validate(grid), options);
}

/// Returns the rows of the file by seed. Every line must be a record, and every case must be there once.
inline std::map<std::int64_t, Record> rows_by_seed(const SweepOptions& options) {
  std::map<std::int64_t, Record> rows;
  const RecordSet set = read_records({options.out + "/records.jsonl"});
  CHECK(set.problems == std::vector<std::string>{});
  for (const LocatedRecord& located : set.records)
    rows[located.record.case_fields["seed"].get<std::int64_t>()] = located.record;
  return rows;
}

}  // namespace precbench
