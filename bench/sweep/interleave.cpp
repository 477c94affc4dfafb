// Groups cases, and pools two records. See interleave.h.
#include "bench/sweep/interleave.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "results/record/statistics.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

using Number = OptionalNumber;

/// Returns f of both values, or the one that is present.
template <class F>
Number merged(const Number& a, const Number& b, F&& f) {
  return a && b ? Number(f(*a, *b)) : a ? a : b;
}
Number mean(const Number& a, const Number& b) {
  return merged(a, b, [](double x, double y) { return (x + y) / 2; });
}
Number lower(const Number& a, const Number& b) {
  return merged(a, b, [](double x, double y) { return std::min(x, y); });
}
Number higher(const Number& a, const Number& b) {
  return merged(a, b, [](double x, double y) { return std::max(x, y); });
}

/// Appends the texts that are not there yet.
void unite(std::vector<std::string>& all, const std::vector<std::string>& more) {
  for (const std::string& text : more)
    if (!std::count(all.begin(), all.end(), text)) all.push_back(text);
}

TimingRun run_of(const Record& record) {
  const Timing& t = *record.timing;
  return {record.created, t.warmup, static_cast<std::int64_t>(t.samples_ms.size()), t.stop_reason,
          t.median_ms};
}

Timing pool(const Record& first, const Record& second) {
  const Timing &a = *first.timing, &b = *second.timing;
  Timing pooled = a;
  for (const double sample : b.samples_ms) pooled.samples_ms.push_back(sample);
  for (const std::int64_t index : b.outliers)
    pooled.outliers.push_back(static_cast<std::int64_t>(a.samples_ms.size()) + index);
  pooled.median_ms = mean(a.median_ms, b.median_ms);
  if (const auto s = sample_statistics(pooled.samples_ms)) pooled.iqr_ms = s->iqr();
  pooled.min_ms = lower(a.min_ms, b.min_ms);
  pooled.wall_ms = mean(a.wall_ms, b.wall_ms);
  pooled.cpu_ms = mean(a.cpu_ms, b.cpu_ms);
  pooled.cpu_wait_ms = mean(a.cpu_wait_ms, b.cpu_wait_ms);
  pooled.runs = {run_of(first), run_of(second)};
  if (a.median_ms && b.median_ms && *pooled.median_ms > 0)
    pooled.between_runs = std::fabs(*a.median_ms - *b.median_ms) / *pooled.median_ms;
  return pooled;
}

Telemetry pool(const Telemetry& a, const Telemetry& b) {
  Telemetry pooled = a;
  pooled.sm_clock_mhz = mean(a.sm_clock_mhz, b.sm_clock_mhz);
  pooled.sm_clock_min_mhz = lower(a.sm_clock_min_mhz, b.sm_clock_min_mhz);
  pooled.sm_clock_max_mhz = higher(a.sm_clock_max_mhz, b.sm_clock_max_mhz);
  pooled.memory_clock_mhz = mean(a.memory_clock_mhz, b.memory_clock_mhz);
  pooled.power_w = mean(a.power_w, b.power_w);
  pooled.power_max_w = higher(a.power_max_w, b.power_max_w);
  pooled.temperature_c = higher(a.temperature_c, b.temperature_c);
  unite(pooled.throttle_reasons, b.throttle_reasons);
  if (a.ecc_errors && b.ecc_errors) pooled.ecc_errors = *a.ecc_errors + *b.ecc_errors;
  return pooled;
}

}  // namespace

std::vector<std::vector<std::size_t>> recipe_groups(const std::vector<Plan>& grid) {
  std::vector<std::vector<std::size_t>> groups;
  std::map<std::string, std::size_t> group_of;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    Case rest = grid[i].fields;
    rest.recipe.clear();
    rest.flow.clear();  // flow amounts to another recipe
    rest.kept.clear();
    const auto [place, added] = group_of.emplace(case_to_json(rest).dump(), groups.size());
    if (added) groups.emplace_back();
    groups[place->second].push_back(i);
  }
  return groups;
}

bool same_environment(const Record& first, const Record& second) {
  const auto env = [](const Record& record) { return nlohmann::ordered_json(record).at("env").dump(); };
  return env(first) == env(second);
}

Record pool_runs(const Record& first, const Record& second) {
  Record pooled = first;
  unite(pooled.warnings, second.warnings);
  if (!first.timing || !second.timing) return pooled;
  pooled.timing = pool(first, second);
  if (first.telemetry && second.telemetry) pooled.telemetry = pool(*first.telemetry, *second.telemetry);
  if (first.memory && second.memory && first.memory->driver && second.memory->driver)
    pooled.memory->driver = std::max(*first.memory->driver, *second.memory->driver);
  const auto first_ms = step_ms_of_speed(first), pooled_ms = step_ms_for_speed(*pooled.timing);
  if (!first.metrics || !first_ms || !(pooled_ms.value_or(0) > 0)) return pooled;
  Metrics& metrics = *pooled.metrics;
  const double faster = *first_ms / *pooled_ms;
  metrics.speed_from.reset();
  if (mean_is_far_from_median(*pooled.timing)) metrics.speed_from = std::string(kFromMean);
  for (Number* speed : {&metrics.tokens_per_s, &metrics.tokens_per_s_per_gpu, &metrics.tflops_per_gpu,
                        &metrics.mfu_bf16, &metrics.sol, &metrics.mfu_measured})
    if (*speed) **speed *= faster;
  if (second.metrics)
    metrics.energy_j_per_token = mean(first.metrics->energy_j_per_token, second.metrics->energy_j_per_token);
  return pooled;
}

}  // namespace precbench
