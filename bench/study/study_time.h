// How long a study will take here: by a few steps of BF16 and of one recipe, each in a process of its own as its cases
// will be.
#pragma once

#include <string>
#include <vector>

#include "bench/study/study_plan.h"

namespace precbench {

/// What a case costs, by whether its recipe is BF16.
struct StudyPace {
  double startup_s = 0;  ///< of a process, until its first step and after its last
  double bf16_step_s = 0, recipe_step_s = 0;
  std::int64_t batch = 1;  ///< sequences of those steps

  /// Of the cases, `at_once` at a time, whose steps take turns on `gpus` GPUs (0: a CPU, which they share already).
  double seconds(const std::vector<StudyCase>& cases, int at_once, int gpus) const;
};

/// `child`: the command that case_process.h describes. `like`: a case of the study, whose model and shapes are timed.
/// Throws InvalidInput where it cannot run.
StudyPace measure_pace(const std::vector<std::string>& child, const Case& like, const std::string& recipe);

}  // namespace precbench
