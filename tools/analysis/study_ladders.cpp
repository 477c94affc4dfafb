// Means over trunks, rung by rung. See study_ladders.h.
#include "tools/analysis/study_ladders.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "results/record/statistics.h"

namespace precbench {
namespace {

constexpr double kNone = NAN;  // value of a failed fork; makes the rung's mean NaN

/// Returns a ladder of mean values; a rung breaks if its mean exceeds the limit.
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

/// Parses the exponent of a stress: "ffn:-8:4" gives -8 for kind "ffn"; null for another kind.
std::optional<double> exponent_of(const std::string& stress, const std::string& kind) {
  if (!stress.starts_with(kind + ":")) return std::nullopt;
  const double exponent = std::strtod(stress.c_str() + kind.size() + 1, nullptr);
  return std::isfinite(exponent) ? std::optional(exponent) : std::nullopt;
}

/// Returns the highest learning rate of a run.
std::optional<double> highest_rate(const Record& record) {
  if (!record.training || record.training->lr.empty()) return std::nullopt;
  return *std::max_element(record.training->lr.begin(), record.training->lr.end());
}

/// Returns true if a fork's learning rate is at most that of the trunk's preceding step.
bool no_higher_than_trunks(const StudyRows& rows, std::int64_t age, const Record& fork) {
  constexpr double kRounding = 1e-6;  // rates are FP32
  if (!rows.trunk || !rows.trunk->training || age < 1) return false;
  const std::vector<double>& rates = rows.trunk->training->lr;
  const std::optional<double> rate = highest_rate(fork);
  return rate && rates.size() >= static_cast<std::size_t>(age) &&
         *rate <= rates[static_cast<std::size_t>(age) - 1] * (1 + kRounding);
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
  const std::optional<double> stable =
      part == StudyPart::learning_rate ? bf16_rates(rows, margin).holds() : std::nullopt;
  for (const StudyPair& pair : rows.pairs(part, recipe)) {
    if (part == StudyPart::learning_rate && !(stable && pair.cell.rung <= *stable)) continue;
    const std::optional<double> bf16 = trailing_loss(pair.bf16);
    const bool answered = pair.recipe.status == Status::ok || pair.recipe.status == Status::diverged;
    if (!bf16 || !answered) continue;
    rungs[pair.cell.rung].push_back(trailing_loss(pair.recipe).value_or(kNone) - *bf16);
  }
  return ladder_of(rungs, margin);
}

Ladder bf16_rates(const StudyRows& rows, double margin) {
  const StudyCells& own_rate = rows.of(StudyPart::fork, "bf16");
  std::map<double, std::vector<double>> rungs;
  std::map<double, bool> trunk_has_shown;
  for (const auto& [cell, record] : rows.of(StudyPart::learning_rate, "bf16")) {
    StudyCell same = cell;
    same.rung = 0;
    const auto other = own_rate.find(same);
    const std::optional<double> base = other == own_rate.end() ? std::nullopt : trailing_loss(*other->second);
    rungs[cell.rung].push_back(trailing_loss(*record).value_or(kNone) - base.value_or(kNone));
    bool& shown = trunk_has_shown.try_emplace(cell.rung, true).first->second;
    shown = shown && trailing_loss(*record) && no_higher_than_trunks(rows, cell.age, *record);
  }
  Ladder ladder = ladder_of(rungs, margin);
  for (LadderRung& rung : ladder.rungs) rung.holds = rung.holds || trunk_has_shown[rung.at];
  return ladder;
}

}  // namespace precbench
