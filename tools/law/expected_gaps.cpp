// Looks up studies and asks the law. See expected_gaps.h.
#include "tools/law/expected_gaps.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/plural.h"
#include "tools/analysis/token_cost.h"
#include "tools/law/study_spread.h"

namespace precbench {
namespace {

/// Ratios up to which a study is of this very model and age.
constexpr double kSameModel = 1.01, kSameAge = 1.25;

bool within(double a, double b, double factor) { return std::fabs(std::log(a / b)) <= std::log(factor); }

/// Returns the studies of the recipe on this very model and age that started as the planned run does and have its gap as served.
/// If a run from scratch has none, returns the continued ones.
std::vector<const GapEvidence*> studies_of(const std::vector<GapEvidence>& evidence,
                                           const std::string& recipe, const PlannedRun& run, double tokens) {
  std::vector<const GapEvidence*> same, continued;
  for (const GapEvidence& one : evidence) {
    if (one.recipe != recipe || !within(one.parameters, run.parameters, kSameModel) ||
        !within(one.tokens_per_parameter * one.parameters, tokens, kSameAge))
      continue;
    if (one.training == TrainingStart::continued) continued.push_back(&one);
    if (one.training == run.training && served_gap(one, run.serving)) same.push_back(&one);
  }
  return same.empty() && run.training == TrainingStart::from_scratch ? continued : same;
}

/// A standard error with its degrees of freedom.
struct ErrorPart {
  double error = 0;
  int freedom = 1;
};

/// Returns half the width of the interval around a value with two independent errors, with the degrees of freedom of
/// Welch and Satterthwaite.
double half_width(const ErrorPart& a, const ErrorPart& b) {
  const double variance = a.error * a.error + b.error * b.error;
  if (!(variance > 0)) return 0;
  const double freedom =
      variance * variance / (std::pow(a.error, 4) / a.freedom + std::pow(b.error, 4) / b.freedom);
  return forecast_half_width(std::sqrt(variance), std::max(1, static_cast<int>(std::lround(freedom))));
}

/// Returns the mean over the studies, weighted by their errors and the spread between studies, with its interval.
MeanWithInterval pooled(const std::vector<const GapEvidence*>& studies, Serving serving,
                        const StudySpread& spread) {
  double raw = 0;
  for (const GapEvidence* one : studies) raw += one->gap / static_cast<double>(studies.size());
  const double between = spread.share * std::fabs(raw);
  constexpr double kExact = 1e-24;  // avoids a division by zero for studies without an error
  double sum = 0, mean = 0, squares = 0, errors = 0;
  int freedom = 0;
  for (const GapEvidence* one : studies) {
    const MeasuredGap gap = *served_gap(*one, serving);
    const double weight = 1 / (gap.error * gap.error + between * between + kExact);
    sum += weight, mean += weight * gap.mean;
    squares += weight * weight, errors += weight * weight * gap.error * gap.error;
    freedom += one->runs - 1;
  }
  mean /= sum;
  const ErrorPart runs{std::sqrt(errors) / sum, std::max(1, freedom)},
      texts{between * std::sqrt(1 + squares / (sum * sum)), std::max(1, spread.freedom)};
  const double half = half_width(runs, texts);
  return {mean, mean - half, mean + half};
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
    : law_(law), own_(std::move(own)), committed_(committed), diverged_(std::move(diverged)) {}

bool ExpectedGaps::diverged(const std::string& recipe) const {
  return std::find(diverged_.begin(), diverged_.end(), recipe) != diverged_.end();
}

std::optional<ExpectedGap> ExpectedGaps::at(const std::string& recipe, const PlannedRun& run,
                                            double tokens) const {
  if (!(run.parameters > 0)) return std::nullopt;
  ExpectedGap expected;
  expected.models = law_.models_of(recipe);
  const auto own = studies_of(own_, recipe, run, tokens);
  if (const auto studies = own.empty() ? studies_of(committed_, recipe, run, tokens) : own;
      !studies.empty()) {
    const bool other_start = studies.front()->training != run.training;
    const Serving read = other_start ? Serving::raw : run.serving;
    expected.gap =
        pooled(studies, read, own.empty() ? spread_between_studies(committed_, read) : StudySpread{});
    if (other_start)
      if (const auto scratch = law_.from_continued(recipe, expected.gap, run.serving))
        expected.gap = {scratch->median, scratch->low, scratch->high};
    expected.measured = *studies.front(), expected.studies = static_cast<int>(studies.size());
    return expected;
  }
  const double oldest = std::max(tokens, kYoungestLawAge * run.parameters);
  expected.younger = oldest > tokens;
  const auto share = law_.share({recipe, run.parameters, oldest, run.serving, run.training});
  if (!share) return std::nullopt;
  const GapForecast nats = share->times(kBesiroglu2024.loss(run.parameters, tokens));
  expected.gap = {nats.median, nats.low, nats.high};
  return expected;
}

}  // namespace precbench
