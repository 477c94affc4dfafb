// Converts gaps by a scaling law. See token_cost.h.
#include "tools/analysis/token_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace precbench {

double ScalingLaw::loss(double parameters, double tokens) const {
  return irreducible + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

double ScalingLaw::slope(double tokens) const { return beta * b / std::pow(tokens, beta); }

double token_factor(double gap, double slope, double beta) {
  const double share = gap * beta / slope;  // fraction of the loss that more tokens can still remove
  return share < 1 ? std::pow(1 - share, -1 / beta) : std::numeric_limits<double>::infinity();
}

double break_even_gap(double slope, double speedup, double beta) {
  return slope / beta * (1 - std::pow(speedup, -beta));
}

BreakEvenRange break_even_range(double tokens, double speedup) {
  std::vector<double> gaps;
  for (const ScalingLaw* law : kScalingLaws)
    gaps.push_back(break_even_gap(law->slope(tokens), speedup, law->beta));
  const auto [low, high] = std::minmax_element(gaps.begin(), gaps.end());
  return {*low, *high};
}

std::string token_words(double tokens) {
  for (const auto& [unit, letter] :
       {std::pair(1e12, "T"), std::pair(1e9, "B"), std::pair(1e6, "M"), std::pair(1e3, "k")})
    if (tokens >= unit) return fmt::format("{:.3g}{}", tokens / unit, letter);
  return fmt::format("{:.0f}", tokens);
}

}  // namespace precbench
