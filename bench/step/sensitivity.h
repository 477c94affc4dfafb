// Measures the cells of --sensitivity: loss and gradient of each variant of the recipe against BF16's, of the same weights
// and tokens, in one process. BF16's are computed once a batch.
#pragma once

#include "bench/case/sensitivity.h"
#include "bench/step/fidelity.h"

namespace precbench {

/// Measures the plan's cells on the tokens of its first fidelity_batches steps. Sets of layers are then chosen by what their
/// parts bought back, and measured on as many batches after those, so that the choice does not flatter them. A collective;
/// returns the same on every rank. Weights, moments and random numbers of the training stay as they are.
SensitivityRecord measure_sensitivity(Rank& rank, const Plan& plan, const DataSource& data,
                                      ReferencePlace place);

/// Runs every cell once on the prepared tokens, and sets in an arbitrary order: on the dry device this takes as much memory
/// as a measurement can.
void account_sensitivity(Rank& rank, const Plan& plan, ReferencePlace place);

}  // namespace precbench
