// How far a gradient in a recipe is from BF16's, as records hold it.
#pragma once

#include <optional>
#include <string>

namespace precbench {

/// A mean with its 95% interval by Student's t. Null where it is not finite; the bounds of a single value too.
struct MeanInterval {
  std::optional<double> mean, low, high;
};

/// How far a gradient in the recipe, r, is from the BF16 one, g, of the same weights and tokens. Mean over batches; null
/// where it is not finite.
struct GradientFidelity {
  std::string name;             ///< what of the model: "qkv", "norm", a block's index
  std::optional<double> error;  ///< |r - g| / |g|
  std::optional<double> cosine;
  std::optional<double> bias;  ///< <r - g, g> / <g, g>: below 0 the recipe shrinks the gradient
};

struct WholeFidelity {
  MeanInterval error, cosine, bias;  ///< as in GradientFidelity, over batches
};

}  // namespace precbench
