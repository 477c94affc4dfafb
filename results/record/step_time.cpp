// Medians, means and their distance. See step_time.h.
#include "results/record/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/base/plural.h"
#include "results/record/host_time.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

constexpr const char* kAboveSheet =
    "the GPU's clock was above that of its data sheet, or the time is too short";
constexpr const char* kAboveMeasured =
    "the step was faster than the GEMMs and copies that were timed after it";

bool far_apart(double mean, double median) { return std::abs(mean - median) > kFarApart * median; }

/// Returns the sample furthest from the median. `samples` must not be empty.
double furthest_from(double median, const std::vector<double>& samples) {
  return *std::max_element(samples.begin(), samples.end(),
                           [&](double a, double b) { return std::abs(a - median) < std::abs(b - median); });
}

double mean_without(double sample, const std::vector<double>& samples) {
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0) - sample;
  return sum / static_cast<double>(samples.size() - 1);
}

/// Returns true if the mean of all samples is far from the median, for whatever reason.
bool whole_mean_is_far(const Timing& timing) {
  const auto mean = mean_step_ms(timing);
  return mean && timing.median_ms && timing.samples_ms.size() >= kFewestSamples &&
         far_apart(*mean, *timing.median_ms);
}

}  // namespace

bool mean_is_far_from_median(const Timing& timing) {
  if (!whole_mean_is_far(timing)) return false;
  const double median = *timing.median_ms;
  return far_apart(mean_without(furthest_from(median, timing.samples_ms), timing.samples_ms), median);
}

std::optional<double> step_ms_for_speed(const Timing& timing) {
  return mean_is_far_from_median(timing) ? mean_step_ms(timing) : std::optional<double>(timing.median_ms);
}

std::optional<double> step_ms_of_speed(const Record& record) {
  if (!record.timing) return std::nullopt;
  const bool from_mean = record.metrics && record.metrics->speed_from == std::string(kFromMean);
  return from_mean ? mean_step_ms(*record.timing) : std::optional<double>(record.timing->median_ms);
}

std::optional<double> cpus_for_threads(const Environment& env) {
  if (env.gpu || !env.threads || !env.cpus) return std::nullopt;
  const double cpus = static_cast<double>(std::min(*env.threads, *env.cpus));
  return std::min(cpus, env.cpu_quota.value_or(cpus));
}

std::vector<std::string> speed_doubts(const Record& record) {
  std::vector<std::string> doubts;
  if (!record.metrics || !record.metrics->tokens_per_s || !record.timing) return doubts;
  const Timing& timing = *record.timing;
  const auto statistics = sample_statistics(timing.samples_ms);
  if (statistics && timing.samples_ms.size() >= kFewestSamples &&
      !(relative_noise(*statistics) <= kMuchNoise))
    doubts.push_back(fmt::format(
        "step times are noisy: IQR / 1.349 over the median is above {:g}%, so speeds and ratios are uncertain",
        100 * kMuchNoise));
  if (mean_is_far_from_median(timing))
    doubts.push_back(fmt::format(
        "the median step is not typical: the mean step takes {:.4g} ms, the median {:.4g} ms; speeds are made "
        "from the {}",
        *mean_step_ms(timing), *timing.median_ms, record.metrics->speed_from.value_or("median")));
  else if (whole_mean_is_far(timing))
    doubts.push_back(fmt::format(
        "a single step was far from the others: it took {:.4g} ms, the median {:.4g} ms; speeds are made from the median",
        furthest_from(*timing.median_ms, timing.samples_ms), *timing.median_ms));
  const Metrics& metrics = *record.metrics;
  for (const auto& [name, share, why] :
       {std::tuple{"mfu_bf16", metrics.mfu_bf16, kAboveSheet}, std::tuple{"sol", metrics.sol, kAboveSheet},
        std::tuple{"mfu_measured", metrics.mfu_measured, kAboveMeasured}})
    if (share && *share > 1) doubts.push_back(fmt::format("{} is {:.3f}, above 1: {}", name, *share, why));
  if (const auto cpus = cpus_for_threads(record.env);
      cpus && *cpus < static_cast<double>(*record.env.threads))
    doubts.push_back(fmt::format("{} had {:.3g} CPUs, by affinity mask or CPU quota",
                                 plural(static_cast<std::size_t>(*record.env.threads), "CPU thread"), *cpus));
  return doubts;
}

std::vector<std::string> warnings_and_doubts(const Record& record) {
  std::vector<std::string> texts = record.warnings;
  // Two texts of one kind differ in what follows the colon, if the wording has changed since.
  const auto kind_of = [](const std::string& text) { return text.substr(0, text.find(": ")); };
  for (std::string& doubt : speed_doubts(record)) {
    const bool known =
        std::any_of(record.warnings.begin(), record.warnings.end(),
                    [&](const std::string& warning) { return kind_of(warning) == kind_of(doubt); });
    if (!known) texts.push_back(std::move(doubt));
  }
  return texts;
}

std::vector<std::string> doubts_of_all(const std::vector<const Record*>& records) {
  struct Kind {
    std::string word, first;  ///< first word, which tells the kinds apart, and the first text
    std::size_t count = 0;
  };
  std::vector<Kind> kinds;
  for (const Record* record : records)
    for (const std::string& doubt : speed_doubts(*record)) {
      const std::string word = doubt.substr(0, doubt.find(' '));
      auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& one) { return one.word == word; });
      if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {word, doubt});
      ++kind->count;
    }
  std::vector<std::string> lines;
  for (const Kind& kind : kinds)
    lines.push_back(fmt::format("{} of {}: {}", kind.count, plural(records.size(), "record"), kind.first));
  return lines;
}

}  // namespace precbench
