// Priors, spread of repeats and the probability of a change. See gate_noise.h.
#include "tools/gate/gate_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

/// Weight of the prior in the blend, as a number of observations.
constexpr double kPriorFreedom = 4;
/// Probability beyond the interval that a pass needs.
constexpr double kBeyondPass = 0.05;

// Standard deviations and limits by noise_priors.py, which checks these lines.
constexpr NoisePrior kGpuStepTime{"GPU step time", 0.0074, 0.022};
constexpr NoisePrior kCpuStepTime{"CPU step time", 0.138, 0.413};
constexpr NoisePrior kGpuLoss{"GPU loss, learning rate of at least 1e-4", 0.00466, 0.014};
constexpr NoisePrior kGpuLossSlow{"GPU loss, lower learning rate", 0.000107, 0.00055};
constexpr NoisePrior kDeterministicLoss{"deterministic loss", 0, 0};

/// Returns the probability of a standard normal variable above z.
double normal_tail(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

/// Returns change / spread, the limit of it for no spread.
double over(double change, double spread) {
  if (spread > 0) return change / spread;
  return change > 0   ? std::numeric_limits<double>::infinity()
         : change < 0 ? -std::numeric_limits<double>::infinity()
                      : 0;
}

double t_tail(double t, double freedom) {
  if (!std::isfinite(t)) return t > 0 ? 0 : 1;
  return 1 - student_t_cdf(t, freedom);
}

/// Returns the standard deviation of a difference between one run and the mean of `records`, over that of one
/// run.
double difference_factor(std::size_t records) { return std::sqrt(1 + 1 / static_cast<double>(records)); }

/// Spread over repeats with its degrees of freedom.
struct RepeatSpread {
  double variance = 0, freedom = 0;
};

/// Returns the spread of all cases' repeats, pooled. `residuals`: for each case with repeats its logarithms
/// minus their mean.
RepeatSpread pooled_spread(const std::vector<std::vector<double>>& residuals) {
  std::size_t runs = 0, values = 0;
  double all = 0;
  for (const std::vector<double>& one : residuals) {
    runs = std::max(runs, one.size());
    values += one.size();
    all = std::accumulate(one.begin(), one.end(), all, [](double sum, double r) { return sum + r * r; });
  }
  if (runs < 2) return {};
  double between = 0;  // sum of squares of the runs' means
  for (std::size_t run = 0; run < runs; ++run) {
    double sum = 0, count = 0;
    for (const std::vector<double>& one : residuals)
      if (run < one.size()) sum += one[run], ++count;
    between += sum * sum / count;
  }
  const double cases = static_cast<double>(residuals.size());
  const double run_freedom = static_cast<double>(runs) - 1;
  const double rest_freedom = static_cast<double>(values) - cases - run_freedom;
  const double of_runs = between / run_freedom / cases;
  if (!(rest_freedom > 0)) return {of_runs * cases, run_freedom};
  const double of_rest = std::max(0.0, all - between) / rest_freedom * (1 - 1 / cases);
  const double variance = of_runs + of_rest;
  const double uncertainty = of_runs * of_runs / run_freedom + of_rest * of_rest / rest_freedom;
  return {variance, uncertainty > 0 ? variance * variance / uncertainty : run_freedom};
}

}  // namespace

const NoisePrior& prior_of(NoiseKind kind) {
  switch (kind) {
    case NoiseKind::gpu_step_time:
      return kGpuStepTime;
    case NoiseKind::cpu_step_time:
      return kCpuStepTime;
    case NoiseKind::gpu_loss:
      return kGpuLoss;
    case NoiseKind::gpu_loss_slow:
      return kGpuLossSlow;
    case NoiseKind::deterministic_loss:
      break;
  }
  return kDeterministicLoss;
}

NoiseKind loss_kind_of(const Record& record) {
  const nlohmann::ordered_json none;
  if (record.case_fields.value("device", none) == "cpu" ||
      record.case_fields.value("deterministic", none) == "on")
    return NoiseKind::deterministic_loss;
  double rate = 0;
  if (const auto field = record.case_fields.find("lr"); field && field->is_number())
    rate = field->get<double>();
  if (record.training)
    for (const double step : record.training->lr) rate = std::max(rate, step);
  return rate < kFastLearning ? NoiseKind::gpu_loss_slow : NoiseKind::gpu_loss;
}

double RunNoise::chance_of(double change, double within) const {
  if (std::isnan(change)) return 1;
  const double factor = difference_factor(records);
  if (!sd)
    return prior.limit > 0 || within > 0 ? normal_tail(over(change, std::hypot(factor * prior.limit, within)))
           : change > 0                  ? 0
                                         : 1;
  const double by_repeats = t_tail(over(change, std::hypot(factor * *sd, within)), freedom);
  // Repeats that lie further apart than the limit show that it does not hold here.
  if (*sd > prior.limit) return by_repeats;
  const double by_limit = normal_tail(over(change, std::hypot(factor * prior.limit, within)));
  return std::min(1.0, 2 * std::min(by_repeats, by_limit));
}

double RunNoise::blended_sd() const {
  if (!sd) return prior.sd;
  const double squares = kPriorFreedom * prior.sd * prior.sd + freedom * *sd * *sd;
  return std::sqrt(squares / (kPriorFreedom + freedom));
}

double RunNoise::half_width() const {
  const double freedom_of_blend = sd ? kPriorFreedom + freedom : 1e6;
  return student_t_quantile(1 - kBeyondPass, freedom_of_blend) * difference_factor(records) * blended_sd();
}

/// Returns the number of records from which `settled` holds if the spread stays as it is.
std::optional<std::size_t> RunNoise::records_until(
    const std::function<bool(const RunNoise& later)>& settled) const {
  RunNoise later = *this;
  later.sd = sd.value_or(prior.sd);
  for (later.records = std::max<std::size_t>(records + 1, 3); later.records <= kMostRecords;
       ++later.records) {
    later.freedom = static_cast<double>(later.records - 1);
    if (settled(later)) return later.records;
  }
  return std::nullopt;
}

std::optional<std::size_t> RunNoise::records_to_settle(double change, std::size_t cases) const {
  const double level = kAlarmLevel / static_cast<double>(std::max<std::size_t>(cases, 1));
  return records_until([&](const RunNoise& later) { return later.chance_of(change) <= level; });
}

std::optional<std::size_t> RunNoise::records_to_pass(double half_width) const {
  return records_until([&](const RunNoise& later) { return later.half_width() <= half_width; });
}

std::string RunNoise::text() const {
  if (sd)
    return fmt::format(
        "the baseline's repeats of this case and those like it differ by {:.2g}% (standard deviation)",
        100 * *sd);
  return fmt::format(
      "unchanged runs may differ that much: by {:.2g}% (standard deviation) in committed repeats of {}, and "
      "by up to {:.2g}% elsewhere; the baseline has no repeat of this case",
      100 * prior.sd, prior.name, 100 * prior.limit);
}

std::vector<RunNoise> noise_of(const std::vector<std::vector<double>>& values, const NoisePrior& prior) {
  std::vector<std::vector<double>> residuals;
  std::vector<double> own(values.size(), 0);  // spread of a case's own repeats
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool positive =
        std::all_of(values[i].begin(), values[i].end(), [](double value) { return value > 0; });
    if (values[i].size() < 2 || !positive) continue;
    std::vector<double> logs;
    for (const double value : values[i]) logs.push_back(std::log(value));
    const auto [mean, sd] = mean_and_spread(logs);
    for (double& log : logs) log -= mean;
    own[i] = sd;
    residuals.push_back(std::move(logs));
  }
  const RepeatSpread pooled = pooled_spread(residuals);
  std::vector<RunNoise> noise;
  for (std::size_t i = 0; i < values.size(); ++i) {
    RunNoise one{prior, std::max<std::size_t>(values[i].size(), 1)};
    if (pooled.freedom > 0) one.sd = std::sqrt(pooled.variance), one.freedom = pooled.freedom;
    if (one.sd && own[i] > kOwnSpread * *one.sd)
      one.sd = own[i], one.freedom = static_cast<double>(values[i].size() - 1);
    noise.push_back(one);
  }
  return noise;
}

std::string repeats_remedy(const RunNoise& noise, const std::optional<std::size_t>& records) {
  if (records)
    return fmt::format("; {} of the baseline's commit would tell (check --accept adds them)",
                       plural(*records - noise.records, "more run"));
  return fmt::format("; at this noise no number of repeats up to {} would tell{}", kMostRecords,
                     noise.sd ? "" : ", but they may show less noise here (check --accept adds them)");
}

}  // namespace precbench
