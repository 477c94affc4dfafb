// Checks of a record's numbers against each other. See contradiction.h.
#include "results/record/contradiction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "results/record/host_time.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

using Number = std::optional<double>;

/// JSON preserves every digit, so only the order of operations may cause differences.
constexpr double kTolerance = 1e-6;
/// Maximum difference of two clocks, as a fraction of the time.
constexpr double kClocks = 0.005;

class Audit {
 public:
  /// `scale`: the tolerance is relative to it instead of the expected value.
  void number(const char* name, const Number& stated, const char* from, const Number& expected,
              const Number& scale = std::nullopt) {
    if (found || !stated || !expected) return;
    const bool agrees = std::abs(*stated - *expected) <= kTolerance * scale.value_or(*expected);
    if (!agrees || !std::isfinite(*expected))
      found = fmt::format("{} is {:.8g}, but {} gives {:.8g}", name, *stated, from, *expected);
  }
  void count(const char* name, std::size_t stated, const char* from, std::size_t expected) {
    if (!found && stated != expected)
      found = fmt::format("{} has {} entries, but {} says {}", name, stated, from, expected);
  }

  void finite(const char* name, const std::vector<double>& series) {
    const auto bad =
        std::find_if(series.begin(), series.end(), [](double value) { return !std::isfinite(value); });
    if (!found && bad != series.end())
      found = fmt::format("{} is null at step {}, but status is ok", name, bad - series.begin() + 1);
  }

  std::optional<std::string> found;
};

/// Checks the runs of an interleaved case, whose samples are consecutive.
void audit_runs(Audit& audit, const Timing& timing) {
  std::size_t left = timing.samples_ms.size(), medians = 0;
  for (const TimingRun& run : timing.runs) {
    const bool fits = run.samples >= 0 && static_cast<std::size_t>(run.samples) <= left;
    if (!fits) {
      audit.found = fmt::format("a run of timing.runs has {} samples, but timing.samples_ms has {} in all",
                                run.samples, timing.samples_ms.size());
      return;
    }
    left -= static_cast<std::size_t>(run.samples);
  }
  audit.count("timing.samples_ms", timing.samples_ms.size(), "timing.runs", timing.samples_ms.size() - left);
  if (audit.found) return;
  double sum = 0;
  auto begin = timing.samples_ms.begin();
  for (const TimingRun& run : timing.runs) {
    const auto end = begin + run.samples;
    if (const auto statistics = sample_statistics({begin, end})) {
      audit.number("a median_ms of timing.runs", run.median_ms, "its part of samples_ms", statistics->median);
      sum += statistics->median;
      ++medians;
    }
    begin = end;
  }
  if (medians > 0)
    audit.number("timing.median_ms", timing.median_ms, "the mean of its runs' medians",
                 sum / static_cast<double>(medians));
}

void audit_timing(Audit& audit, const Timing& timing) {
  const auto statistics = sample_statistics(timing.samples_ms);
  if (!statistics) {
    if (timing.median_ms || timing.iqr_ms || timing.min_ms)
      audit.found = "timing has a median_ms, iqr_ms or min_ms, but samples_ms is empty";
    return;
  }
  if (timing.runs.empty())
    audit.number("timing.median_ms", timing.median_ms, "samples_ms", statistics->median);
  else
    audit_runs(audit, timing);
  audit.number("timing.min_ms", timing.min_ms, "samples_ms", statistics->min);
  audit.number("timing.iqr_ms", timing.iqr_ms, "samples_ms", statistics->iqr(), statistics->median);
  // The host's clock also runs between samples, so its time cannot be shorter.
  const double mean = *mean_step_ms(timing);
  if (!audit.found && timing.wall_ms && !(*timing.wall_ms >= mean * (1 - kClocks)))
    audit.found =
        fmt::format("timing.wall_ms is {:.8g}, but the mean of samples_ms is {:.8g}", *timing.wall_ms, mean);
}

void audit_speed(Audit& audit, const Record& record) {
  const Metrics& metrics = *record.metrics;
  if (const auto step_ms = step_ms_of_speed(record);
      step_ms && record.training && record.training->tokens_per_step)
    audit.number("metrics.tokens_per_s", metrics.tokens_per_s,
                 metrics.speed_from ? "training.tokens_per_step over the mean of samples_ms"
                                    : "training.tokens_per_step over timing.median_ms",
                 static_cast<double>(*record.training->tokens_per_step) / *step_ms * 1e3);
  if (record.flops && metrics.tokens_per_s_per_gpu)
    audit.number("metrics.tflops_per_gpu", metrics.tflops_per_gpu,
                 "metrics.tokens_per_s_per_gpu times flops.per_token",
                 *metrics.tokens_per_s_per_gpu * record.flops->per_token / 1e12);
  const auto gpus = record.case_fields.find("gpus");
  if (gpus && gpus->is_number() && metrics.tokens_per_s)
    audit.number("metrics.tokens_per_s_per_gpu", metrics.tokens_per_s_per_gpu,
                 "metrics.tokens_per_s over case.gpus", *metrics.tokens_per_s / gpus->get<double>());
}

/// Checks that the timed steps have losses; a shorter curve was cut.
void audit_curve(Audit& audit, const Record& record) {
  const Timing& timing = *record.timing;
  // The curve of an interleaved case is that of its first run.
  const bool pooled = !timing.runs.empty();
  const double warmup = static_cast<double>(pooled ? timing.runs.front().warmup : timing.warmup);
  const double steps = warmup + (pooled ? static_cast<double>(timing.runs.front().samples)
                                        : static_cast<double>(timing.samples_ms.size()));
  if (!audit.found && static_cast<double>(record.training->loss.size()) < steps)
    audit.found = fmt::format("training.loss has {} entries, but timing says that {:.0f} steps were done",
                              record.training->loss.size(), steps);
}

/// Checks an imported record, whose log need not have every series.
void audit_source(Audit& audit, const Record& record) {
  const std::vector<std::int64_t>& steps = record.source->steps;
  if (!audit.found && record.training)
    audit.count("source.steps", steps.size(), "training.loss", record.training->loss.size());
  if (!audit.found && std::adjacent_find(steps.begin(), steps.end(), std::greater_equal<>()) != steps.end())
    audit.found = "source.steps does not ascend";
}

/// Checks losses and gradients. Non-finite ones end a run, whose status is then not ok.
void audit_training(Audit& audit, const Record& record) {
  const Training& training = *record.training;
  if (!audit.found && training.params_changed && training.params_total &&
      *training.params_changed > *training.params_total)
    audit.found = fmt::format("training.params_changed is {}, but training.params_total is {}",
                              *training.params_changed, *training.params_total);
  if (record.status != Status::ok) return;
  audit.finite("training.loss", training.loss);
  audit.finite("training.grad_norm", training.grad_norm);
  if (!audit.found && !record.source && training.grad_norm.size() < training.loss.size())
    audit.found = fmt::format("training.grad_norm has {} entries, but training.loss has {}",
                              training.grad_norm.size(), training.loss.size());
}

}  // namespace

std::optional<std::string> contradiction(const Record& record) {
  Audit audit;
  if (record.schema == 1 && record.definition)
    audit.found = "schema is 1, but there is a definition, which came with schema 2";
  if (record.timing && !audit.found) audit_timing(audit, *record.timing);
  if (record.metrics) audit_speed(audit, record);
  if (record.source)
    audit_source(audit, record);
  else if (record.status == Status::ok && record.timing && record.training)
    audit_curve(audit, record);
  // An ok run did all its steps. A shorter curve would be compared at a wrong step.
  const auto steps = record.case_fields.find("steps");
  if (!audit.found && record.status == Status::ok && record.training && steps && steps->is_number_integer() &&
      *steps != record.training->loss.size())
    audit.found = fmt::format("training.loss has {} entries, but case.steps says {}",
                              record.training->loss.size(), steps->dump());
  if (record.training) audit_training(audit, record);
  return audit.found;
}

}  // namespace precbench
