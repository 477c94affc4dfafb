// Progress of a running sweep on standard error: one line per finished case, and on a terminal, below them, one
// line per running case that is overwritten.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/sweep/status_lines.h"
#include "results/record/record.h"

namespace precbench {

/// Labels of cases, "tiny mxfp8 seq=256 gpus=2": model, recipe, layers if reduced, and every axis that varies
/// over the grid.
class CaseLabels {
 public:
  explicit CaseLabels(const std::vector<Plan>& grid);
  std::string of(const Plan& plan) const;
  /// Returns model and recipe first, then the rest.
  const std::vector<const Field*>& fields() const { return fields_; }

 private:
  std::vector<const Field*> fields_;
};

/// Returns "1 case", "32 cases".
std::string count_cases(std::size_t count);

/// Returns "7 s", "1 m 20 s", "2 h 05 m".
std::string describe_seconds(double seconds);

/// Returns the outcome in a few words: "ok, loss 3.214, 30100 tokens/s", "oom: 141 GiB needed ...".
std::string describe_outcome(const Record& record);

class Progress {
 public:
  struct Start {
    std::size_t finished = 0;       ///< cases of the grid that have rows already; they are not announced
    std::size_t half_finished = 0;  ///< cases that have the first of two runs
    bool quiet = false;
  };
  Progress(const std::vector<Plan>& grid, const Start& start);
  void start(const Plan& plan);
  void finish(const Plan& plan, const Record& record);
  /// Reports that the first of two runs has ended; the case is not done yet.
  void first_run(const Plan& plan, const Record& record);
  /// Reports what a slow case waits for.
  void waiting(const Plan& plan, const std::string& words);
  /// Prints a line that does not report the end of a case.
  void note(const std::string& line);
  /// Call before anything else is printed.
  void clear_status();

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    std::string id, label;
  };
  std::string remaining() const;
  void end_of_run(const Plan& plan);
  void show_status();
  double seconds_of_run(const Plan& plan) const;

  CaseLabels labels_;
  std::size_t total_, done_;
  double left_;        ///< cases left at the start; half-finished ones count half
  double worked_ = 0;  ///< cases done since the start; the first of two runs counts half
  bool quiet_, terminal_;
  std::vector<Running> running_{};
  StatusLines status_{};
  Clock::time_point began_ = Clock::now();
  std::map<std::string, Clock::time_point> cases_began_;  // by id
};

}  // namespace precbench
