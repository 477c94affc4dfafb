// The cells of a sensitivity measurement: variants of a case's recipe that are compared with BF16 to find out
// which part of the recipe costs loss and what recovers it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "results/record/sensitivity_record.h"

namespace precbench {

/// A variant of the recipe to measure.
struct SensitivityCell {
  CellName name;
  ConvertedLayers layers;
  /// Words of --keep-bf16 that choose these layers; empty if the cell does not vary layers.
  std::vector<std::string> keep_bf16{};
  /// Share of the recipe's GEMM FLOPs that the cell runs in BF16 instead; null if a GEMM mixes operand
  /// dtypes.
  std::optional<double> kept_flops{};
  std::optional<std::string> note{};  ///< other changes in this cell; null if none
};

struct SensitivityCells {
  std::vector<SensitivityCell> cells;  ///< the whole recipe first, then a control that quantizes nothing
  std::vector<SkippedCell> skipped;    ///< variants that the model or the device cannot run
};

/// Returns the cells of the plan's groups, except those of `best`, which depend on the others' results.
SensitivityCells sensitivity_cells(const Plan& plan);

/// Returns sets of cells to keep in BF16 together: the first 1, 2, 4, 8, ... of `candidates`, each a cell
/// with keep_bf16. Skips candidates that keep nothing new, and omits sets that leave nothing in the recipe.
/// `ranking` becomes part of the names.
std::vector<SensitivityCell> sets_together(const Plan& plan,
                                           const std::vector<const SensitivityCell*>& candidates,
                                           const std::string& ranking);

/// Returns the cells from which sets are chosen: those that keep some linear layers in BF16.
std::vector<const SensitivityCell*> candidates_of(const std::vector<SensitivityCell>& cells);

/// Returns the FLOPs of the GEMMs that the plan's recipe quantizes, as a fraction of the model's FLOPs.
double quantized_flops(const Plan& plan);

/// Returns true if the plan's groups include `best`.
bool wants_sets(const Plan& plan);

/// Returns the largest number of cells that the plan's groups can have, including sets. 0 without
/// --sensitivity.
std::size_t most_cells(const Plan& plan);

}  // namespace precbench
