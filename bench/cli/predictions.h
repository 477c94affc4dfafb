// `precbench sweep --dry-run --on MACHINE`: step times, speeds and memory of every case on a machine that need not
// be present.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/layout_estimate.h"
#include "bench/predict/predict.h"
#include "bench/predict/stack_factor.h"
#include "results/text/screen.h"

namespace precbench {

/// Answer to whether a case fits a GPU: `tight` above kTight of the usable memory.
enum class Fit : std::uint8_t { yes, tight, no };
inline constexpr double kTight = 0.95;
const char* name_of(Fit fit);
Fit fit_of(std::int64_t peak, const Machine& machine);

/// Returns the name of the axis that a group of a plan's ranks spans: "shard", "data", "tensor", "experts", "replicas", "all
/// ranks".
std::string axis_of(const std::vector<int>& ranks, const Plan& plan);

/// Returns a whole number with commas: "2,462,512".
std::string with_commas(double value);
/// Returns milliseconds with three or more digits.
std::string ms_text(double ms);
/// Returns "1.30x (1.24-1.36)", of BF16 itself "1.00x".
std::string speedup_text(const SpeedUp& speedup);

/// Prediction of another stack's step: ours times a factor (stack_factor.h).
struct StackPrediction {
  StackFactor factor;
  SpeedUp tokens_per_s;                  ///< all GPUs together; `ratio` is the value
  std::optional<SpeedUp> over_bf16;      ///< the stack's own speed-up; null without a step in BF16
  std::vector<std::string> no_evidence;  ///< of the factor and of that of the speed-up
};
/// A plan with our prediction of its step.
struct PlannedStep {
  const Plan& plan;
  const StepEstimate& step;
};
/// `bf16`: the step that speed-ups are over; null for none. It may be `own`, whose speed-up is 1.
StackPrediction predict_stack(Stack stack, const Machine& machine, const PlannedStep& own,
                              const PlannedStep* bf16);
/// Returns the cells of a table: "62,356 (54,387-71,494)", and the speed-up, "-" without one.
std::vector<std::string> stack_cells(const StackPrediction& prediction);
nlohmann::ordered_json stack_json(const StackPrediction& prediction);
/// Prints which factors the predictions have, and what they have no evidence for, below a table of them.
void print_stack(Stack stack, const std::vector<StackPrediction>& predictions, const Screen& screen);

/// Prediction of one case on a machine.
struct CasePrediction {
  std::string failure;  ///< why the case cannot run: "unsupported: ...", "oom: ..."; empty: it can
  MemorySegments memory;
  Fit fit = Fit::yes;
  bool emulated = false;                 ///< formats that the machine does not multiply natively: no speed
  std::optional<StepEstimate> step;      ///< null for a failure or an emulated recipe
  std::vector<std::string> comm_names;   ///< of StepTime::exposed: axes of the groups
  double tokens_per_s = 0;               ///< all GPUs together
  double tflops_per_gpu = 0;             ///< model FLOPs
  std::vector<StageMemory> stages;       ///< of a layout with tensor or pipeline ranks; else empty
  double bubble_seconds = 0;             ///< that the busiest pipeline stage waits for others
  std::optional<SpeedUp> over_bf16;      ///< in the same setting; null without such a case in the grid
  std::optional<StackPrediction> stack;  ///< null without --stack, or without `step`
};

/// Predicts every case of a grid, those with tensor or pipeline ranks as layouts (case_layout.h). Throws InvalidInput if
/// every case is a layout that breaks a rule (layout_unsupported_reason).
std::vector<CasePrediction> predict_grid(const std::vector<Plan>& grid, const CostModel& model,
                                         Stack stack = Stack::precbench);

/// Returns the prediction as --json prints it: one object per case.
nlohmann::ordered_json predictions_json(const std::vector<Plan>& grid,
                                        const std::vector<CasePrediction>& predictions,
                                        const CostModel& model, Stack stack = Stack::precbench);

/// Prints the predictions as two tables, speeds and where the time goes, or as JSON. With another stack its speeds stand
/// beside ours. Returns false if no case can run.
bool print_predictions(const std::vector<Plan>& grid, const CostModel& model, bool json,
                       Stack stack = Stack::precbench);

}  // namespace precbench
