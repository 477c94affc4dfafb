// `precbench plan`: the layouts of ranks with which a training step is predicted to be fastest on a number of GPUs, for
// each recipe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cli/axis.h"
#include "bench/predict/layout_search.h"

namespace CLI {
class App;
}

namespace precbench {

struct PlanCommand {
  Axes axes;                   ///< fields of the case; of those that are searched, the values to try
  std::string on;              ///< machine: a preset or a file
  std::string global_batch;    ///< sequences of a step, as typed
  std::int64_t proposals = 3;  ///< for each recipe
  std::string layout = "best";
  std::string published = "results/published/points.json";  ///< file of published runs
  std::string out;    ///< file of comparisons with published runs; empty: none
  std::string stack;  ///< whose speed stands beside ours (stack_factor.h); empty: ours alone
  bool json = false;
};

CLI::App* add_plan_command(CLI::App& app, PlanCommand& command);

/// Returns the fields of a case that differ from the defaults, but for the device, as flags of a sweep, with a space before
/// each.
std::string flags_of_case(const Case& c);

/// Prints the proposals, or with `layout` "published" their comparison with published runs. Returns 0, or 1 if no layout fits
/// for any recipe or `out` cannot be written. Throws InvalidInput.
int plan_layouts(const PlanCommand& command);

/// Search of one recipe.
struct RecipeSearch {
  std::string recipe;
  LayoutSearch found;
  std::string failure;  ///< why nothing was searched; empty: it was
};

/// Searches the layouts of every recipe, several at once. Throws InvalidInput if no recipe can be searched.
std::vector<RecipeSearch> search_recipes(const PlanCommand& command, const CostModel& cost_model);

}  // namespace precbench
