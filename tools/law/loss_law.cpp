// Fits the law and forecasts with it. See loss_law.h.
#include "tools/law/loss_law.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/errors.h"
#include "results/record/statistics.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

constexpr double kReferenceParameters = 1e9, kReferenceAge = 100;
constexpr std::size_t kFewestModels = 4;
constexpr int kCoefficientsBetweenModels = 3;  // a level and two exponents, which models, not gaps, determine
/// Standard error of an offset, as a logarithm, above which no study links the recipe with those of older models.
constexpr double kLargestOffsetError = kUndetermined / 10;

bool is_young(const GapEvidence& one) { return one.tokens_per_parameter < kYoungestLawAge; }

/// Returns true if the gap has a logarithm: its own error tells it from zero.
bool is_resolved(const GapEvidence& one) { return one.gap > one.gap_error && one.gap > 0; }

/// Returns what tells models apart in the evidence. Models whose sizes agree to three digits are the same.
std::string model_key(const GapEvidence& one) { return fmt::format("{:.2e}", one.parameters); }

double relative_error(const GapEvidence& one) { return one.gap_error / one.gap; }

/// Values of gaps by class of formats (FP4 or not) and model.
using ByModel = std::map<std::string, std::vector<double>>;

/// Returns mean and spread of the models' means.
ServingRatio ratio_of(const ByModel& values) {
  std::vector<double> means;
  for (const auto& [model, own] : values) means.push_back(mean_and_spread(own).mean);
  if (means.empty()) return {};
  const MeanAndSpread all = mean_and_spread(means);
  return {all.mean, all.sd, static_cast<int>(means.size())};
}

/// A value with Student's t distribution.
struct Distribution {
  double center = 0, spread = 0;
  int freedom = 1;
  double quantile(double p) const { return center + spread * student_t_quantile(p, freedom); }
};

/// Returns the quantiles of exp(a) b, with a and b independent: from equally probable values of both.
GapForecast product(const Distribution& a, const Distribution& b, double tail) {
  constexpr int kValues = 100;
  std::vector<double> factors, values;
  for (int j = 0; j < kValues; ++j) factors.push_back(b.quantile((j + 0.5) / kValues));
  for (int i = 0; i < kValues; ++i) {
    const double raw = std::exp(a.quantile((i + 0.5) / kValues));
    for (const double factor : factors) values.push_back(factor * raw);
  }
  // Advice asks for hundreds of forecasts: only the two values that a quantile lies between are put in their places.
  const auto at = [&](double p) {
    const auto below =
        values.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), below, values.end());
    if (below + 1 < values.end()) std::nth_element(below + 1, below + 1, values.end());
    return quantile(values, p);
  };
  return {at(0.5), at(tail), at(1 - tail)};
}

}  // namespace

const char* name_of(Serving serving) {
  return serving == Serving::bf16 ? "bf16" : serving == Serving::recipe ? "recipe" : "raw";
}

const char* served_words(Serving serving) { return serving == Serving::bf16 ? "BF16" : "the recipe"; }

double forecast_half_width(double error, int freedom) {
  return student_t_quantile((1 + kForecastCoverage) / 2, freedom) * error;
}

bool is_fp4(const std::string& recipe) {
  return recipe.find("fp4") != std::string::npos || recipe.starts_with("quartet");
}

LossLaw::LossLaw(const std::vector<GapEvidence>& evidence) {
  std::vector<const GapEvidence*> used;
  std::map<std::string, std::set<std::string>> studied;  // recipe -> models of kYoungestLawAge and older
  std::set<std::string> models;
  for (const GapEvidence& one : evidence) {
    if (!is_resolved(one) || (is_young(one) && one.training == TrainingStart::from_scratch)) continue;
    used.push_back(&one);
    offsets_.emplace(one.recipe, 0);
    if (is_young(one)) continue;
    models.insert(model_key(one));
    largest_ = std::max(largest_, one.parameters);
    studied[one.recipe].insert(model_key(one));
    has_scratch_ = has_scratch_ || one.training == TrainingStart::from_scratch;
  }
  if (models.size() < kFewestModels)
    throw InvalidInput(
        fmt::format("law of the loss gap: {} models of {} tokens per parameter and older; it takes {}",
                    models.size(), kYoungestLawAge, kFewestModels));
  models_ = static_cast<int>(models.size()), gaps_ = static_cast<int>(used.size());
  for (auto& [recipe, index] : offsets_) index = first_exponent_++;
  for (const auto& [recipe, names] : studied) studied_[recipe] = static_cast<int>(names.size());

  std::vector<MixedPoint> points;
  std::vector<bool> free;
  std::map<std::string, std::size_t> groups;
  for (const GapEvidence* one : used) {
    std::string key = model_key(*one);
    if (is_young(*one)) key += fmt::format(" {:.2g} {}", one->tokens_per_parameter, one->fork_steps);
    const auto [group, added] = groups.try_emplace(key, groups.size());
    if (added) free.push_back(is_young(*one));
    points.push_back({factors(one->recipe, one->parameters, one->tokens_per_parameter, one->training),
                      std::log(one->share()), std::pow(relative_error(*one), 2), group->second});
  }
  fit_ = fit_mixed_model(points, free);

  std::map<bool, ByModel> in_weights, in_weights_from_scratch, of_bf16_weights;
  for (const GapEvidence* one : used) {
    if (is_young(*one)) continue;
    const bool scratch = one->training == TrainingStart::from_scratch, fp4 = is_fp4(one->recipe);
    if (one->in_bf16)
      (scratch ? in_weights_from_scratch : in_weights)[fp4][model_key(*one)].push_back(one->in_bf16->mean /
                                                                                       one->gap);
    // As a ratio to the raw gap of continued runs: ratio() converts it for those from scratch.
    if (const auto cost = one->recipe_of_bf16_weights(); cost && !scratch)
      of_bf16_weights[fp4][model_key(*one)].push_back(*cost / one->gap);
  }
  for (const bool fp4 : {false, true}) {
    in_weights_[fp4] = ratio_of(in_weights[fp4]);
    in_weights_from_scratch_[fp4] = ratio_of(in_weights_from_scratch[fp4]);
    of_bf16_weights_[fp4] = ratio_of(of_bf16_weights[fp4]);
  }
}

std::vector<double> LossLaw::factors(const std::string& recipe, double parameters, double age,
                                     TrainingStart training) const {
  std::vector<double> x(first_exponent_ + (has_scratch_ ? 3 : 2), 0.0);
  x[offsets_.at(recipe)] = 1;
  x[first_exponent_] = std::log(parameters / kReferenceParameters);
  x[first_exponent_ + 1] = std::log(age / kReferenceAge);
  if (has_scratch_ && training == TrainingStart::from_scratch) x[first_exponent_ + 2] = 1;
  return x;
}

std::optional<Estimate> LossLaw::from_scratch() const {
  return has_scratch_ ? std::optional(fit_.estimate(first_exponent_ + 2)) : std::nullopt;
}

bool LossLaw::knows(const std::string& recipe) const {
  return offsets_.contains(recipe) && offset(recipe).error < kLargestOffsetError;
}

int LossLaw::freedom() const { return std::max(1, models_ - kCoefficientsBetweenModels); }

std::vector<std::string> LossLaw::recipes() const {
  std::vector<std::string> names;
  for (const auto& [recipe, index] : offsets_)
    if (knows(recipe)) names.push_back(recipe);
  return names;
}

int LossLaw::models_of(const std::string& recipe) const {
  const auto found = studied_.find(recipe);
  return found == studied_.end() ? 0 : found->second;
}

ServingRatio LossLaw::ratio(Serving serving, TrainingStart training, bool fp4) const {
  if (serving == Serving::raw) return {1, 0, models_};
  const bool scratch = training == TrainingStart::from_scratch && has_scratch_;
  const ServingRatio &forks = in_weights_.at(fp4), &from_scratch = in_weights_from_scratch_.at(fp4);
  if (serving == Serving::bf16)
    // One model was trained from scratch: the spread between models is that of the forks.
    return scratch && from_scratch.models > 0 ? ServingRatio{from_scratch.mean, forks.spread, forks.models}
                                              : forks;
  // The cost of the recipe for BF16's weights does not depend on how the recipe's weights were trained; the raw gap
  // does.
  const ServingRatio& cost = of_bf16_weights_.at(fp4);
  const double factor = scratch ? std::exp(this->from_scratch()->value) : 1;
  return {1 - cost.mean / factor, cost.spread / factor, cost.models};
}

std::optional<GapForecast> LossLaw::share(const GapQuestion& question, double noise) const {
  const double age = question.tokens / question.parameters;
  if (!knows(question.recipe) || !(question.parameters > 0) || !(age >= kYoungestLawAge)) return std::nullopt;
  const bool scratch = question.training == TrainingStart::from_scratch;
  if (scratch && !has_scratch_) return std::nullopt;
  const Estimate mean = fit_.mean_at(factors(question.recipe, question.parameters, age, question.training));
  const double factor_spread = scratch ? from_scratch()->value : 0;
  const Distribution raw{mean.value,
                         std::hypot(std::hypot(mean.error, fit_.between, fit_.within), noise, factor_spread),
                         freedom()};
  const double tail = (1 - kForecastCoverage) / 2;
  if (question.serving == Serving::raw)
    return GapForecast{std::exp(mean.value), std::exp(raw.quantile(tail)), std::exp(raw.quantile(1 - tail))};
  const ServingRatio served = ratio(question.serving, question.training, is_fp4(question.recipe));
  if (served.models < 2) return std::nullopt;
  return product(raw, {served.mean, served.spread * std::sqrt(1 + 1.0 / served.models), served.models - 1},
                 tail);
}

std::optional<GapForecast> LossLaw::from_continued(const std::string& recipe, const MeanWithInterval& raw,
                                                   Serving serving) const {
  const auto factor = from_scratch();
  const ServingRatio served = ratio(serving, TrainingStart::from_scratch, is_fp4(recipe));
  if (!factor || served.models < 2) return std::nullopt;
  const int freedom = served.models - 1;
  const double error = (raw.high - raw.low) / 2 / forecast_half_width(1, freedom);
  const double spread = served.spread * std::sqrt(1 + 1.0 / served.models);
  // The spread of a product of independent values.
  const Distribution as_served{raw.mean * served.mean,
                               std::hypot(raw.mean * spread, served.mean * error, spread * error), freedom};
  // The factor is known from one model: that of others may differ by as much as the factor itself.
  return product({factor->value, std::hypot(factor->error, factor->value), this->freedom()}, as_served,
                 (1 - kForecastCoverage) / 2);
}

std::optional<GapForecast> LossLaw::nats(const GapQuestion& question) const {
  const auto forecast = share(question);
  if (!forecast) return std::nullopt;
  return forecast->times(kBesiroglu2024.loss(question.parameters, question.tokens));
}

const LossLaw& committed_law() {
  static const LossLaw kLaw(committed_evidence());
  return kLaw;
}

std::vector<LeftOut> leave_one_model_out(const std::vector<GapEvidence>& evidence) {
  std::map<double, std::string> models;  // in order of size
  for (const GapEvidence& one : evidence)
    if (!is_young(one) && is_resolved(one)) models.emplace(std::stod(model_key(one)), model_key(one));
  std::vector<LeftOut> results;
  for (const auto& [size, key] : models) {
    std::vector<GapEvidence> rest;
    std::copy_if(evidence.begin(), evidence.end(), std::back_inserter(rest),
                 [&, key = key](const GapEvidence& one) { return model_key(one) != key; });
    const LossLaw law(rest);
    LeftOut result;
    double errors = 0, bias = 0;
    for (const GapEvidence& one : evidence) {
      if (model_key(one) != key || is_young(one) || !is_resolved(one)) continue;
      const auto forecast = law.share(
          {one.recipe, one.parameters, one.parameters * one.tokens_per_parameter, Serving::raw, one.training},
          relative_error(one));
      if (!forecast) continue;  // a recipe that no other model was studied in, or the only runs from scratch
      const double error = std::log(one.share() / forecast->median);
      if (result.gaps++ == 0) result.youngest = result.oldest = one.tokens_per_parameter;
      result.youngest = std::min(result.youngest, one.tokens_per_parameter);
      result.oldest = std::max(result.oldest, one.tokens_per_parameter);
      result.parameters = one.parameters;
      errors += std::fabs(error), bias += error;
      result.inside += forecast->contains(one.share());
    }
    if (result.gaps == 0) continue;
    result.factor = std::exp(errors / result.gaps), result.bias = std::exp(bias / result.gaps);
    results.push_back(result);
  }
  return results;
}

}  // namespace precbench
