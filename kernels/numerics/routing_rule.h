// How a router chooses and weighs a token's experts: the rules of published models, as data.
#pragma once

#include <cstdint>

namespace precbench {

/// Probabilities from the logits z: softmax over all experts, or the sigmoid of each.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// Score by which a group of experts is chosen: its best key, or the sum of its two best.
enum class GroupScore : std::uint8_t { max, top2 };

/// Source of the expert choice. learned: the logits. The others serve published speed measurements: slots
/// take experts in turn, draw them with probability 1 / rank^exponent, or take the first ones.
enum class Routing : std::uint8_t { learned, balanced, zipf, one };

/// A token takes the top_k experts with the largest keys; ties: the lower index. The key is the probability
/// p, plus a bias if there is one. With groups (consecutive experts, equal sizes) experts outside the best
/// group_top_k groups are excluded. The weight of a chosen expert is scale * p, or with `normalise` scale * p
/// over the sum of p of the chosen ones.
struct RoutingRule {
  std::int64_t experts = 0;  ///< E
  std::int64_t top_k = 0;    ///< K
  RouterScore score = RouterScore::softmax;
  bool normalise = true;
  double scale = 1;
  std::int64_t groups = 1, group_top_k = 1;
  GroupScore group_score = GroupScore::max;

  bool operator==(const RoutingRule&) const = default;
};

}  // namespace precbench
