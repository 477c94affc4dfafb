// Measures the cells of --sensitivity in one process: loss and gradient of each variant of the recipe against
// BF16's, for the same weights and tokens. BF16's are computed once per batch.
#pragma once

#include "bench/case/sensitivity.h"
#include "bench/step/fidelity.h"

namespace precbench {

/// Measures the plan's cells on the tokens of its first fidelity_batches steps. Then chooses sets of layers
/// by how much their parts recovered, and measures these sets on as many later batches, so that the choice
/// does not bias them. A collective; returns the same on every rank. Leaves the training's weights, moments
/// and random numbers unchanged.
SensitivityRecord measure_sensitivity(Rank& rank, const Plan& plan, const DataSource& data,
                                      ReferencePlace place);

/// Runs every cell once on the prepared tokens, and sets in an arbitrary order. On the dry device this yields
/// the largest memory that a measurement can need.
void account_sensitivity(Rank& rank, const Plan& plan, ReferencePlace place);

}  // namespace precbench
