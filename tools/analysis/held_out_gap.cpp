// Pairs and averages evaluations. See held_out_gap.h.
#include "tools/analysis/held_out_gap.h"

#include <map>

namespace precbench {
namespace {

/// Returns the finite losses by step.
std::map<std::int64_t, double> losses_of(const LocatedRecord& located) {
  std::map<std::int64_t, double> losses;
  for (const Evaluation& one : located.record.training->evaluations)
    if (one.loss) losses.emplace(one.step, *one.loss);
  return losses;
}

/// Returns the means over the steps that all `runs` have.
std::vector<HeldOutPoint> points_of(const std::vector<std::map<std::int64_t, double>>& runs) {
  std::map<std::int64_t, std::vector<double>> by_step;
  for (const auto& run : runs)
    for (const auto& [step, loss] : run) by_step[step].push_back(loss);
  std::vector<HeldOutPoint> points;
  for (const auto& [step, losses] : by_step)
    if (losses.size() == runs.size())
      points.push_back({step, mean_and_spread(losses).mean, mean_with_interval(losses)});
  return points;
}

}  // namespace

std::vector<HeldOutPoint> held_out_curve(const RecipeLosses& recipe) {
  std::vector<std::map<std::int64_t, double>> runs;
  for (const LocatedRecord* member : recipe.members) runs.push_back(losses_of(*member));
  return points_of(runs);
}

std::vector<HeldOutPoint> held_out_difference(const RecipeLosses& recipe,
                                              const RecipeLosses& bf16) {
  const SeedPairs partners(bf16.members);
  std::vector<std::map<std::int64_t, double>> runs;
  for (const LocatedRecord* member : recipe.members) {
    const LocatedRecord* partner = partners.of(*member);
    if (!partner) continue;
    const std::map<std::int64_t, double> theirs = losses_of(*partner);
    runs.emplace_back();
    for (const auto& [step, loss] : losses_of(*member))
      if (const auto same = theirs.find(step); same != theirs.end())
        runs.back().emplace(step, loss - same->second);
  }
  return points_of(runs);
}

}  // namespace precbench
