// Converts a gap in the loss into tokens: by which factor more tokens make up for it.
//
// A model that ends `gap` nats above BF16's makes up for it with more tokens. The loss falls by S with each factor e of the
// tokens, S = -dL/d ln(tokens), so the tokens grow by the factor exp(gap / S). S is that of a published law at the horizon of
// the reader's run. The slope of a study's own trunk would not do: a young model's is 30 to 80 times as steep, and every gap
// would look free.
//
// A law is a fit to one family of models, one text and one tokenizer. Another text has another S.
#pragma once

#include <optional>
#include <string>

namespace precbench {

/// Loss in nats by parameters N and tokens D: irreducible + a / N^alpha + b / D^beta.
struct ScalingLaw {
  const char *name, *source;
  double irreducible, a, alpha, b, beta;

  double loss(double parameters, double tokens) const;
  /// Returns S = -dL/d ln(tokens) = beta * b / tokens^beta, nats. The terms of the law add up, so S is the same for every
  /// model size, compute-optimal or not.
  double slope(double tokens) const;
  /// Returns the factor of the tokens at which this law makes up for `gap` at this horizon; null where no number of tokens
  /// does. Never below token_factor(), which takes the slope as constant.
  std::optional<double> exact_token_factor(double gap, double tokens) const;
};

/// Besiroglu et al., 2024, "Chinchilla Scaling: A replication attempt": a refit to the runs of Hoffmann et al., 2022.
inline constexpr ScalingLaw kBesiroglu2024{
    "Besiroglu et al. 2024", "arXiv 2404.10102", 1.8172, 482.01, 0.3478, 2085.43, 0.3658};

/// Tokens of the runs that reports reckon for.
inline constexpr double kHorizons[] = {1e12, 15e12};

/// Returns exp(gap / slope): the factor of the tokens that makes up for a gap, to first order.
double token_factor(double gap, double slope);

/// Returns the gap in nats at which a recipe that is `speedup` times as fast is level with BF16 at equal time:
/// slope * ln(speedup).
double break_even_gap(double slope, double speedup);

/// "1T", "15T", "300B", "27M", "512"
std::string token_words(double tokens);

}  // namespace precbench
