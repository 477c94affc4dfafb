// Rows and tokens of experts at even load, and forced routing. See expected_load.h.
#include "models/transformer/routing/expected_load.h"

#include <algorithm>
#include <cmath>

#include "kernels/numerics/random.h"

namespace precbench {
namespace {

/// Draws the slots of a rank's tokens from the Zipf distribution, by its cumulative sum in 32 bits. An expert
/// that a token already has is drawn again.
std::vector<std::int32_t> drawn_experts(double exponent, const RoutingRule& rule, std::int64_t tokens) {
  std::vector<double> ends;
  double sum = 0;
  for (std::int64_t e = 0; e < rule.experts; ++e)
    ends.push_back(sum += std::pow(static_cast<double>(e + 1), -exponent));
  constexpr std::uint64_t kSeed = 17;
  std::uint64_t draws = 0;
  std::vector<std::int32_t> index;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(index.size());
    for (int tries = 0; static_cast<std::int64_t>(index.size()) - begin < rule.top_k;) {
      const double at = random_bits(kSeed, draws++) * 0x1p-32 * sum;
      auto e = static_cast<std::int32_t>(std::upper_bound(ends.begin(), ends.end() - 1, at) - ends.begin());
      const auto has = [&](std::int32_t expert) {
        return std::find(index.begin() + begin, index.end(), expert) != index.end();
      };
      constexpr int kTries = 1000;  // one expert may have nearly all of the probability
      while (++tries > kTries && has(e)) e = static_cast<std::int32_t>((e + 1) % rule.experts);
      if (!has(e)) index.push_back(e);
    }
  }
  return index;
}

/// Returns the number of slots that are not dropped if all experts are chosen equally often.
std::int64_t kept_at_even_load(const RoutingRule& rule, std::int64_t tokens, double capacity) {
  return std::min(tokens * rule.top_k, rule.experts * most_rows_of_expert(rule, tokens, capacity));
}

}  // namespace

std::vector<std::int32_t> forced_experts(Routing routing, double exponent, const RoutingRule& rule,
                                         std::int64_t tokens) {
  if (routing == Routing::learned) return {};
  if (routing == Routing::zipf) return drawn_experts(exponent, rule, tokens);
  std::vector<std::int32_t> index;
  for (std::int64_t slot = 0; slot < tokens * rule.top_k; ++slot)
    index.push_back(
        static_cast<std::int32_t>(routing == Routing::one ? slot % rule.top_k : slot % rule.experts));
  return index;
}

std::int64_t most_rows_of_expert(const RoutingRule& rule, std::int64_t tokens, double capacity) {
  if (capacity == 0) return tokens;  // a token goes to an expert at most once
  const double even = static_cast<double>(tokens * rule.top_k) / static_cast<double>(rule.experts);
  const double most = std::ceil(capacity * even);  // may exceed the range of int64
  return most < static_cast<double>(tokens) ? static_cast<std::int64_t>(most) : tokens;
}

std::int64_t tokens_to_rank(const RoutingRule& rule, std::int64_t own, std::int64_t tokens, double capacity) {
  // All slots of the first tokens are kept and none of the later ones.
  const std::int64_t kept = kept_at_even_load(rule, tokens, capacity) / rule.top_k;
  double none = 1;  // probability that a token chooses none of the rank's experts
  for (std::int64_t k = 0; k < rule.top_k; ++k)
    none *=
        std::max(0.0, static_cast<double>(rule.experts - own - k)) / static_cast<double>(rule.experts - k);
  return std::min(kept, static_cast<std::int64_t>(std::llround((1 - none) * static_cast<double>(kept))));
}

std::int64_t rows_at_even_load(const RoutingRule& rule, std::int64_t tokens, double capacity,
                               std::int64_t ranks, std::int64_t slots) {
  const std::int64_t rows = kept_at_even_load(rule, tokens, capacity);
  const std::int64_t sent = tokens_to_rank(rule, rule.experts / ranks, tokens, capacity);
  return slots > 0 && slots < sent ? rows * slots / sent : rows;
}

}  // namespace precbench
