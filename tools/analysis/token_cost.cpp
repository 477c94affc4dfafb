// Converts gaps by a scaling law. See token_cost.h.
#include "tools/analysis/token_cost.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace precbench {

double ScalingLaw::loss(double parameters, double tokens) const {
  return irreducible + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

double ScalingLaw::slope(double tokens) const { return beta * b / std::pow(tokens, beta); }

std::optional<double> ScalingLaw::exact_token_factor(double gap, double tokens) const {
  const double share = gap * beta / slope(tokens);  // fraction of the loss that more tokens can still remove
  return share < 1 ? std::optional(std::pow(1 - share, -1 / beta)) : std::nullopt;
}

double token_factor(double gap, double slope) { return std::exp(gap / slope); }

double break_even_gap(double slope, double speedup) { return slope * std::log(speedup); }

std::string token_words(double tokens) {
  for (const auto& [unit, letter] :
       {std::pair(1e12, "T"), std::pair(1e9, "B"), std::pair(1e6, "M"), std::pair(1e3, "k")})
    if (tokens >= unit) return fmt::format("{:.3g}{}", tokens / unit, letter);
  return fmt::format("{:.0f}", tokens);
}

}  // namespace precbench
