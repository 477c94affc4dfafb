// How long a study will take here: by a few steps of BF16 and of one recipe, each in a process of its own as its cases
// will be.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/study/study_plan.h"

namespace precbench {

/// Returns the largest number of cells that a case's --sensitivity can have; 0 without it.
std::size_t cells_of(Case c);

/// What a case costs, by whether its recipe is BF16.
struct StudyPace {
  double startup_s = 0;  ///< of a process, until its first step and after its last
  double bf16_step_s = 0, recipe_step_s = 0;
  std::int64_t batch = 1;  ///< sequences of those steps

  /// Of the cases, `at_once` at a time, whose steps take turns on `gpus` GPUs (0: a CPU, which they share already).
  double seconds(const std::vector<StudyCase>& cases, int at_once, int gpus) const;
};

/// Of each of the timings: steps that take longer are no pace that anybody waits to be told.
inline constexpr double kPacePatienceS = 30;

/// `child`: the command that case_process.h describes. `like`: a case of the study, whose model and shapes are timed.
/// Null where a few steps take longer than `patience_s`. Throws InvalidInput where it cannot run.
std::optional<StudyPace> measure_pace(const std::vector<std::string>& child, const Case& like,
                                      const std::string& recipe, double patience_s = kPacePatienceS);

}  // namespace precbench
