// Distance of a recipe's outputs from BF16's with the same weights, over several measurements.
#pragma once

#include <optional>
#include <vector>

#include "results/record/fidelity_record.h"

namespace precbench {

/// Means of the measured means, and the largest values of all measurements.
struct OutputMeans {
  double log_probability = 0, largest_log_probability = 0;  ///< |difference| of the next token's, nats
  double kl = 0, largest_kl = 0;                            ///< KL(BF16 || recipe), nats
};

/// Returns the distance over measurements, of which null stands for one that was not made. Returns null without a
/// measurement, or if any lacks a part.
std::optional<OutputMeans> output_means(const std::vector<const OutputDistance*>& measurements);

}  // namespace precbench
