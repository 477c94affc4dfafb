// Judges the final loss. See gate.h for the rules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/workloads.h"
#include "tools/gate/gate_match.h"

namespace precbench {

class LossJudge {
 public:
  /// Uses all matches that can be judged. `workloads`: of the baseline's records. `tolerance`: a fraction;
  /// null: kEmaTolerance, with seeds judged together.
  LossJudge(const std::vector<Match>& matches, const Workloads& workloads,
            const std::optional<double>& tolerance);

  /// Returns the metric "final loss" of a match. Null if the baseline has none.
  std::optional<MetricResult> judge(const Match& match) const;

 private:
  /// Cases whose work differs at most in the seed.
  struct Seeds {
    std::vector<double> changes{};
    double mean = 0, half_width = 0;  ///< of the changes; the 99% interval's
  };
  std::string work_of(const Match& match) const;
  void judge_alone(MetricResult& result) const;
  void judge_with(const Seeds& seeds, MetricResult& result) const;

  const Workloads& workloads_;
  double tolerance_;
  bool together_;
  std::map<std::string, Seeds> seeds_;  ///< by work_of
};

}  // namespace precbench
