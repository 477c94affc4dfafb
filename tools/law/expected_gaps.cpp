// Looks up studies and asks the law. See expected_gaps.h.
#include "tools/law/expected_gaps.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/plural.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

/// Ratios up to which a study is of this very model and age.
constexpr double kSameModel = 1.01, kSameAge = 1.25;

bool within(double a, double b, double factor) { return std::fabs(std::log(a / b)) <= std::log(factor); }

std::optional<MeasuredGap> served(const GapEvidence& one, Serving serving) {
  if (serving == Serving::bf16) return one.in_bf16;
  if (serving == Serving::recipe) return one.in_recipe;
  return MeasuredGap{one.gap, one.gap_error};
}

}  // namespace

const char* ExpectedGap::evidence() const {
  return measured ? "measured" : models > 0 ? "law" : "law, young models";
}

std::string ExpectedGap::evidence_words() const {
  if (measured) return "this model";
  return models > 0 ? plural(models, "trained model") : "young models";
}

ExpectedGaps::ExpectedGaps(const LossLaw& law, std::vector<GapEvidence> own,
                           const std::vector<GapEvidence>& committed, std::vector<std::string> diverged)
    : law_(law), evidence_(std::move(own)), diverged_(std::move(diverged)) {
  evidence_.insert(evidence_.end(), committed.begin(), committed.end());
}

bool ExpectedGaps::diverged(const std::string& recipe) const {
  return std::find(diverged_.begin(), diverged_.end(), recipe) != diverged_.end();
}

const GapEvidence* ExpectedGaps::measured(const std::string& recipe, const PlannedRun& run,
                                          double tokens) const {
  const auto found = std::find_if(evidence_.begin(), evidence_.end(), [&](const GapEvidence& one) {
    return one.recipe == recipe && within(one.parameters, run.parameters, kSameModel) &&
           within(one.tokens_per_parameter * one.parameters, tokens, kSameAge) && served(one, run.serving);
  });
  return found == evidence_.end() ? nullptr : &*found;
}

std::optional<ExpectedGap> ExpectedGaps::at(const std::string& recipe, const PlannedRun& run,
                                            double tokens) const {
  if (!(run.parameters > 0)) return std::nullopt;
  ExpectedGap expected;
  expected.models = law_.models_of(recipe);
  if (const GapEvidence* study = measured(recipe, run, tokens)) {
    const MeasuredGap gap = *served(*study, run.serving);
    const double half = forecast_half_width(gap.error, std::max(1, study->runs - 1));
    expected.gap = {gap.mean, gap.mean - half, gap.mean + half};
    expected.measured = *study;
    return expected;
  }
  const double oldest = std::max(tokens, kYoungestLawAge * run.parameters);
  expected.younger = oldest > tokens;
  const auto share = law_.share({recipe, run.parameters, oldest, run.serving, TrainingStart::from_scratch});
  if (!share) return std::nullopt;
  const GapForecast nats = share->times(kBesiroglu2024.loss(run.parameters, tokens));
  expected.gap = {nats.median, nats.low, nats.high};
  return expected;
}

}  // namespace precbench
