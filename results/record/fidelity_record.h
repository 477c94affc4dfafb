// Difference of a recipe's gradient from BF16's, as stored in records.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

/// Distance of the recipe's next-token distributions from BF16's with the same weights and tokens, nats. Null
/// if not finite.
struct OutputDistance {
  std::int64_t tokens = 0;                        ///< compared
  bool held_out = false;                          ///< true: of --eval-data; false: of the fidelity batches
  MeanInterval log_probability;                   ///< |difference| of the next token's, mean over batches
  std::optional<double> largest_log_probability;  ///< of all tokens
  MeanInterval divergence;                        ///< KL(BF16 || recipe), mean over batches
  std::optional<double> largest_divergence;       ///< of all tokens
};

/// Weights after the last step, evaluated on --eval-data with the formats of one recipe: what a user of these weights
/// gets who serves them in it.
struct Reading {
  std::string recipe;          ///< "bf16" for the weights as they are
  std::optional<double> loss;  ///< mean over all targets, nats; null if not finite
  std::vector<double> groups;  ///< mean losses of up to kReadingGroups runs of consecutive sequences, nats
  std::optional<OutputDistance> outputs =
      {};  ///< from BF16's reading of the same weights; null for BF16 itself
};
/// Number of groups of sequences whose losses a reading keeps, enough for the standard error of a paired difference.
inline constexpr std::int64_t kReadingGroups = 32;

}  // namespace precbench
