// Converts a loss gap into tokens: the factor of additional tokens that makes up for it.
//
// The part of the loss that tokens D can remove is R = b / D^beta, and its slope S = -dL/d ln(D) = beta R. A gap costs the factor
// (1 - gap / R)^(-1/beta) of tokens, which is exp(gap / S) to first order and more for every gap above 0. S
// comes from a published scaling law at the horizon of the reader's run. The slope of a study's own trunk is
// unsuitable: a young model's is 30 to 80 times as steep, so every gap would look free.
//
// A law is fitted to one model family, text and tokenizer. Another text has another S.
#pragma once

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
};

/// Besiroglu et al., 2024, "Chinchilla Scaling: A replication attempt": a refit to the runs of Hoffmann et
/// al., 2022.
inline constexpr ScalingLaw kBesiroglu2024{
    "Besiroglu et al. 2024", "arXiv 2404.10102", 1.8172, 482.01, 0.3478, 2085.43, 0.3658};

/// Hoffmann et al., 2022, and Muennighoff et al., 2023: what other fits say.
inline constexpr ScalingLaw kHoffmann2022{
    "Hoffmann et al. 2022", "arXiv 2203.15556", 1.69, 406.4, 0.34, 410.7, 0.28};
inline constexpr ScalingLaw kMuennighoff2023{
    "Muennighoff et al. 2023", "arXiv 2305.16264", 1.87, 521, 0.353, 1488, 0.353};
inline constexpr const ScalingLaw* kScalingLaws[] = {&kBesiroglu2024, &kHoffmann2022, &kMuennighoff2023};

/// Token counts for which reports convert gaps.
inline constexpr double kHorizons[] = {1e12, 15e12};
/// Speed-ups over BF16 whose break-even gaps are stated where none was measured: FP8 on Hopper is between them.
inline constexpr double kStatedSpeedups[] = {1.2, 1.4};

/// Returns the factor of tokens that makes up for a gap where the loss has this slope: (1 - gap beta / slope)^(-1/beta);
/// infinite if no number of tokens does.
double token_factor(double gap, double slope, double beta = kBesiroglu2024.beta);

/// Returns the gap in nats at which a recipe that is `speedup` times as fast matches BF16 at equal time:
/// slope / beta * (1 - speedup^-beta).
double break_even_gap(double slope, double speedup, double beta = kBesiroglu2024.beta);

/// Least and largest break-even gap at a horizon by the laws of kScalingLaws, nats.
struct BreakEvenRange {
  double low = 0, high = 0;
};
BreakEvenRange break_even_range(double tokens, double speedup);

/// Formats a token count: "1T", "15T", "300B", "27M", "512".
std::string token_words(double tokens);

}  // namespace precbench
