// Converts a loss gap into tokens: the factor of additional tokens that makes up for it.
//
// The loss falls by S per factor e of tokens, S = -dL/d ln(tokens), so a gap costs the factor exp(gap / S). S
// comes from a published scaling law at the horizon of the reader's run. The slope of a study's own trunk is
// unsuitable: a young model's is 30 to 80 times as steep, so every gap would look free.
//
// A law is fitted to one model family, text and tokenizer. Another text has another S.
#pragma once

#include <optional>
#include <string>

namespace precbench {

/// Loss in nats for N parameters and D tokens: irreducible + a / N^alpha + b / D^beta.
struct ScalingLaw {
  const char *name, *source;
  double irreducible, a, alpha, b, beta;

  double loss(double parameters, double tokens) const;
  /// Returns S = -dL/d ln(tokens) = beta * b / tokens^beta, nats. The terms of the law are additive, so S is
  /// the same for every model size, compute-optimal or not.
  double slope(double tokens) const;
  /// Returns the factor of tokens at which this law makes up for `gap` at this horizon; null if no number of
  /// tokens does. At least token_factor(), which assumes a constant slope.
  std::optional<double> exact_token_factor(double gap, double tokens) const;
};

/// Besiroglu et al., 2024, "Chinchilla Scaling: A replication attempt": a refit to the runs of Hoffmann et
/// al., 2022.
inline constexpr ScalingLaw kBesiroglu2024{
    "Besiroglu et al. 2024", "arXiv 2404.10102", 1.8172, 482.01, 0.3478, 2085.43, 0.3658};

/// Token counts for which reports convert gaps.
inline constexpr double kHorizons[] = {1e12, 15e12};
/// Speed-ups over BF16 whose break-even gaps are stated where none was measured: FP8 on Hopper is between them.
inline constexpr double kStatedSpeedups[] = {1.2, 1.4};

/// Returns exp(gap / slope): the factor of tokens that makes up for a gap, to first order.
double token_factor(double gap, double slope);

/// Returns the gap in nats at which a recipe that is `speedup` times as fast matches BF16 at equal time:
/// slope * ln(speedup).
double break_even_gap(double slope, double speedup);

/// Formats a token count: "1T", "15T", "300B", "27M", "512".
std::string token_words(double tokens);

}  // namespace precbench
