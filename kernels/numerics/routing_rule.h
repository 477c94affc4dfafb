// How a router chooses a token's experts and weighs them: the rules of the published models, as data.
#pragma once

#include <cstdint>

namespace precbench {

/// What makes probabilities of the logits z: softmax over all experts, or the sigmoid of each.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// What a group of experts is chosen by: its best key, or the sum of its two best.
enum class GroupScore : std::uint8_t { max, top2 };

/// Who chooses. Speed is published with experts that do not come from the logits: slots take them in turn, draw them with
/// probability 1 / rank^exponent, or take the first ones.
enum class Routing : std::uint8_t { learned, balanced, zipf, one };

/// A token takes the top_k experts with the largest keys; equal keys: the lower index. The key is the probability p, plus
/// a bias where there is one. With groups (neighbouring experts, equally many each) the experts outside the best
/// group_top_k groups have no chance. The weight of a chosen expert is scale * p, or with `normalise` scale * p over the
/// sum of p of those chosen.
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
