// From sums over two gradients to what a record says of them: errors, cosines and biases of the whole, of roles and of
// blocks, with intervals over batches.
#pragma once

#include <string>
#include <vector>

#include "models/transformer/layout.h"
#include "results/record.h"

namespace precbench {

/// Over the elements of r, the gradient in the recipe, and g, the BF16 one.
struct GradientSums {
  double rg = 0, rr = 0, gg = 0;
  double difference = 0;  ///< of (r - g)^2

  GradientSums& operator+=(const GradientSums& other);
};

/// Both gradients of one batch.
struct BatchFidelity {
  double bf16_loss = 0, loss = 0;        ///< nats
  std::vector<GradientSums> parameters;  ///< in layout order
  std::vector<double> route_flips = {};  ///< of the blocks with experts
};

/// Mean with its 95% interval by Student's t; null where the values are not finite, without bounds for a single one.
MeanInterval interval_of(const std::vector<double>& values);

/// `batches`: at least one.
Fidelity summarize(const std::string& stress, const Layout& layout,
                   const std::vector<BatchFidelity>& batches);

}  // namespace precbench
