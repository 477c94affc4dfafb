// The cells of a sensitivity measurement: which variants of a case's recipe are compared with BF16, to find which part of
// the recipe costs loss and what buys it back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "results/sensitivity.h"

namespace precbench {

/// A variant of the recipe, as it is measured.
struct SensitivityCell {
  CellName name;
  ConvertedLayers layers;
  /// Words for --keep-bf16 that choose these layers; empty where layers are not what the cell varies.
  std::vector<std::string> keep_bf16{};
  /// GEMM FLOPs that the recipe runs and the cell runs in BF16, as a fraction of the recipe's; null where operands are mixed.
  std::optional<double> kept_flops{};
  std::string note{};  ///< what else the cell changes; empty: nothing
};

struct SensitivityCells {
  std::vector<SensitivityCell>
      cells;                         ///< the whole recipe first, then a control in which nothing is quantized
  std::vector<SkippedCell> skipped;  ///< variants that the model or the device cannot compute
};

/// Returns the cells of the plan's groups, but for those of `best`, which depend on the others' results.
SensitivityCells sensitivity_cells(const Plan& plan);

/// Returns sets of cells that are kept in BF16 together: the first 1, 2, 4, 8, ... of `candidates`, each a cell with
/// keep_bf16. A candidate that keeps nothing which those before it do not keep is passed over, and sets that leave nothing
/// in the recipe are left out. `ranking` goes into the names.
std::vector<SensitivityCell> sets_together(const Plan& plan,
                                           const std::vector<const SensitivityCell*>& candidates,
                                           const std::string& ranking);

/// Returns the cells that sets are chosen from: the linear layers that are alone in BF16.
std::vector<const SensitivityCell*> candidates_of(const std::vector<SensitivityCell>& cells);

/// Returns the FLOPs of the GEMMs that the plan's recipe quantizes, as a fraction of the model's FLOPs.
double quantized_flops(const Plan& plan);

/// Returns true if the plan's groups include `best`.
bool wants_sets(const Plan& plan);

/// Returns the largest number of cells that the plan's groups can have, sets included. 0 without --sensitivity.
std::size_t most_cells(const Plan& plan);

}  // namespace precbench
