// Difference of a recipe's gradient from BF16's, as stored in records.
#pragma once

#include <optional>
#include <string>

namespace precbench {

/// A mean with its 95% confidence interval by Student's t. Null if not finite; the bounds also for a single
/// value.
struct MeanInterval {
  std::optional<double> mean, low, high;
};

/// Difference of the recipe's gradient, r, from the BF16 gradient, g, with the same weights and tokens. Mean
/// over batches; null if not finite.
struct GradientFidelity {
  std::string name;             ///< part of the model: "qkv", "norm", a block's index
  std::optional<double> error;  ///< |r - g| / |g|
  std::optional<double> cosine;
  std::optional<double> bias;  ///< <r - g, g> / <g, g>; negative: the recipe shrinks the gradient
};

struct WholeFidelity {
  MeanInterval error, cosine, bias;  ///< see GradientFidelity; over batches
};

}  // namespace precbench
