// The settings that advise compares: for each recipe the micro-batch, recomputation and gather with which a case fits
// and is predicted to train fastest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/cost_model.h"
#include "tools/advise/advise_host.h"

namespace precbench {

/// Tokens of a GPU in an optimizer step where the user gives no batch: more make GEMMs hardly faster.
inline constexpr std::int64_t kTokensOfStepPerGpu = 16384;

/// Number of steps of a predicted case whose recipe changes at a fraction of the run.
inline constexpr std::int64_t kScheduleSteps = 100;

/// Returns the case with kScheduleSteps steps if its recipe needs a number of them and it has none.
Case with_steps_of_schedule(Case c);

/// Returns the estimate of a step as a mean over a run: that of the case's first recipe and of later ones, weighted by
/// their steps. Null like estimated_step().
std::optional<StepEstimate> mean_step(const std::string& gpu, const Plan& plan);

/// As AdviseHost::best_settings.
std::vector<RecipeSetting> best_settings(const AdviseHost::SettingQuestion& question);

/// As AdviseHost::case_bytes: where a dry run says that a case fits, without "tight".
std::optional<std::int64_t> case_bytes(const GpuModel& gpu);

/// As AdviseHost::native_recipes.
std::optional<std::vector<std::string>> native_recipes(const GpuModel& gpu);

}  // namespace precbench
