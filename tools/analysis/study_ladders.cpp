// Means over trunks, rung by rung. See study_ladders.h.
#include "tools/analysis/study_ladders.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "results/statistics.h"

namespace precbench {
namespace {

constexpr double kNone = NAN;  // of a fork that has no value; so is then the mean

/// Of the values of each rung, which breaks where their mean is beyond the limit.
Ladder ladder_of(const std::map<double, std::vector<double>>& rungs, double limit) {
  Ladder ladder;
  for (const auto& [at, values] : rungs) {
    const double mean = mean_and_spread(values).mean;
    ladder.rungs.push_back({at, std::isfinite(mean) ? std::optional(mean) : std::nullopt, mean <= limit});
  }
  std::stable_sort(ladder.rungs.begin(), ladder.rungs.end(),
                   [](const LadderRung& a, const LadderRung& b) { return std::abs(a.at) < std::abs(b.at); });
  return ladder;
}

/// "ffn:-8:4" to -8 where the kind is ffn.
std::optional<double> exponent_of(const std::string& stress, const std::string& kind) {
  if (!stress.starts_with(kind + ":")) return std::nullopt;
  const double exponent = std::strtod(stress.c_str() + kind.size() + 1, nullptr);
  return std::isfinite(exponent) ? std::optional(exponent) : std::nullopt;
}

bool trains(const Record& bf16) {
  const std::optional<double> end = trailing_loss(bf16);
  if (!end) return false;
  const auto begin = bf16.training->loss.begin();
  const auto tenth =
      std::max<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(bf16.training->loss.size()) / 10);
  return *end <= mean_and_spread({begin, begin + tenth}).mean;
}

}  // namespace

std::optional<double> Ladder::holds() const {
  std::optional<double> highest;
  for (const LadderRung& rung : rungs) {
    if (!rung.holds) break;
    highest = rung.at;
  }
  return highest;
}

std::optional<double> Ladder::breaks() const {
  const auto first =
      std::find_if(rungs.begin(), rungs.end(), [](const LadderRung& rung) { return !rung.holds; });
  return first == rungs.end() ? std::nullopt : std::optional(first->at);
}

Ladder outlier_ladder(const StudyRows& rows, const std::string& recipe, const std::string& kind) {
  std::map<double, std::vector<double>> rungs;
  for (const auto& [cell, record] : rows.of(StudyPart::fork, recipe)) {
    if (record->fidelity.empty() || record->fidelity.front().stress != "none") continue;
    bool climbed = false;
    for (const Fidelity& one : record->fidelity)
      if (const auto exponent = exponent_of(one.stress, kind)) {
        rungs[*exponent].push_back(one.whole.error.mean.value_or(kNone));
        climbed = true;
      }
    if (climbed) rungs[0].push_back(record->fidelity.front().whole.error.mean.value_or(kNone));
  }
  return ladder_of(rungs, kLargestGradientError);
}

Ladder loss_ladder(const StudyRows& rows, StudyPart part, const std::string& recipe, double margin) {
  std::map<double, std::vector<double>> rungs;
  for (const StudyPair& pair : rows.pairs(part, recipe)) {
    const std::optional<double> bf16 = trailing_loss(pair.bf16);
    const bool answered = pair.recipe.status == Status::ok || pair.recipe.status == Status::diverged;
    if (!bf16 || !answered) continue;
    if (!takes_bits(part) && !trains(pair.bf16)) continue;
    rungs[pair.cell.rung].push_back(trailing_loss(pair.recipe).value_or(kNone) - *bf16);
  }
  return ladder_of(rungs, margin);
}

std::optional<double> highest_bf16_rate(const StudyRows& rows) {
  std::map<double, bool> good;
  for (const auto& [cell, record] : rows.of(StudyPart::learning_rate, "bf16"))
    if (const auto [rung, added] = good.try_emplace(cell.rung, true); !trains(*record)) rung->second = false;
  std::optional<double> highest;
  for (const auto& [factor, all] : good) {
    if (!all) break;
    highest = factor;
  }
  return highest;
}

}  // namespace precbench
