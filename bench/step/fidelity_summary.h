// Turns sums over two gradients into the record's errors, cosines and biases: of the whole model, of roles
// and of blocks, with intervals over batches.
#pragma once

#include <string>
#include <vector>

#include "models/transformer/state/layout.h"
#include "results/record/record.h"

namespace precbench {

/// Sums of products over the elements of r, the recipe's gradient, and g, the BF16 gradient.
struct GradientSums {
  double rg = 0, rr = 0, gg = 0;
  double difference = 0;  ///< sum of (r - g)^2

  GradientSums& operator+=(const GradientSums& other);
};

/// Comparison of both gradients of one batch.
struct BatchFidelity {
  double bf16_loss = 0, loss = 0;        ///< nats
  std::vector<GradientSums> parameters;  ///< in layout order
  std::vector<double> route_flips = {};  ///< share of slots per block with experts
};

/// Returns the mean with its 95% interval (Student's t); null if a value is not finite, without bounds for a
/// single value.
MeanInterval interval_of(const std::vector<double>& values);

/// Summarizes `batches`, at least one, of one stress.
Fidelity summarize(const std::string& stress, const Layout& layout,
                   const std::vector<BatchFidelity>& batches);

}  // namespace precbench
