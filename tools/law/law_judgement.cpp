// Compares forecasts with published gaps. See law_judgement.h.
#include "tools/law/law_judgement.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

JudgedLoss judge(const LossLaw& law, const PublishedLoss& published) {
  JudgedLoss one;
  one.published = &published;
  const double parameters = *published.parameters;
  const double tokens = *published.tokens + published.tokens_before.value_or(0);
  const double loss = kBesiroglu2024.loss(parameters, tokens);
  const bool is_bound = published.kind == PublishedLoss::Kind::no_difference;
  const auto &nats = is_bound ? published.bound_nats : published.gap_nats,
             &percent = is_bound ? published.bound_percent : published.gap_percent;
  one.value = nats ? *nats : *percent, one.unit = nats ? "nats" : "%";
  one.age = tokens / parameters;
  const auto share =
      law.share({published.nearest, parameters, tokens, Serving::raw,
                 published.from_scratch ? TrainingStart::from_scratch : TrainingStart::continued});
  if (!share) {
    one.not_forecast =
        one.age < kYoungestLawAge ? "younger than the law's models" : "recipe not linked to older models";
    return one;
  }
  one.forecast = share->times(nats ? loss : 100);
  const double noise = published.noise_nats.value_or(0) * (nats ? 1 : 100 / loss);
  if (is_bound) {
    one.near = one.forecast->median <= one.value, one.inside = one.forecast->low <= one.value;
    return one;
  }
  one.near =
      std::fabs(one.value - one.forecast->median) <= noise ||
      (one.value > 0 && std::fabs(std::log(one.value / one.forecast->median)) <= std::log(kNearFactor));
  one.inside = one.forecast->low - noise <= one.value && one.value <= one.forecast->high + noise;
  return one;
}

}  // namespace

std::vector<JudgedLoss> judge_law(const LossLaw& law, const std::vector<PublishedLoss>& losses) {
  std::vector<JudgedLoss> judged;
  for (const PublishedLoss& one : losses)
    if (one.kind != PublishedLoss::Kind::failure && one.tier != "shown") judged.push_back(judge(law, one));
  return judged;
}

JudgedShare judged_share(const std::vector<JudgedLoss>& judged) {
  struct Counts {
    double gaps = 0, near = 0, inside = 0;
  };
  std::map<std::string, Counts> groups;
  JudgedShare all;
  for (const JudgedLoss& one : judged) {
    if (!one.forecast || one.published->kind != PublishedLoss::Kind::gap) continue;
    Counts& group = groups[one.published->group];
    ++group.gaps, group.near += one.near, group.inside += one.inside;
  }
  for (const auto& [name, group] : groups) {
    all.gaps += static_cast<int>(group.gaps), all.near += group.near, all.inside += group.inside;
    all.near_by_group += group.near / group.gaps, all.inside_by_group += group.inside / group.gaps;
  }
  all.groups = static_cast<int>(groups.size());
  if (all.gaps == 0) return all;
  all.near /= all.gaps, all.inside /= all.gaps;
  all.near_by_group /= all.groups, all.inside_by_group /= all.groups;
  return all;
}

}  // namespace precbench
