// Estimates the time of a study from a few steps of BF16 and of one recipe, each run in a process of its own
// like its cases.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/study/study_plan.h"

namespace precbench {

/// Returns the largest number of cells that a case's --sensitivity can have; 0 without it.
std::size_t cells_of(Case c);

/// Cost of a case with BF16 and with another recipe.
struct StudyPace {
  double startup_s = 0;  ///< of a process, before its first step and after its last
  double bf16_step_s = 0, recipe_step_s = 0;
  std::int64_t batch = 1;  ///< sequences per rank in those steps

  /// Returns the time of the cases, `at_once` at a time. Their steps take turns on `gpus` GPUs (0: the
  /// measured CPU is shared).
  double seconds(const std::vector<StudyCase>& cases, int at_once, int gpus) const;
};

/// Time limit of each measurement; an estimate is not worth waiting longer.
inline constexpr double kPacePatienceS = 30;

/// `child`: command as in case_process.h. `like`: a case of the study, whose model and shapes are timed.
/// Returns null if a few steps take longer than `patience_s`. Throws InvalidInput if it cannot run.
std::optional<StudyPace> measure_pace(const std::vector<std::string>& child, const Case& like,
                                      const std::string& recipe, double patience_s = kPacePatienceS);

}  // namespace precbench
