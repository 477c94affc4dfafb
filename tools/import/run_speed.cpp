// Settled lines, their speed and their FLOPs per token. See import_run.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/import/import_run.h"

namespace precbench {
namespace {

bool positive(const OptionalNumber& value) { return value && *value > 0 && std::isfinite(*value); }

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

/// Returns the tokens/s of one GPU that a line says or implies; null if it does neither.
std::optional<double> rate_per_gpu(const LogSample& sample, const std::optional<double>& tokens_per_step,
                                   const std::optional<std::int64_t>& gpus) {
  if (positive(sample.tokens_per_s_per_gpu)) return *sample.tokens_per_s_per_gpu;
  if (!gpus) return std::nullopt;
  const double ranks = static_cast<double>(*gpus);
  if (positive(sample.tokens_per_s)) return *sample.tokens_per_s / ranks;
  if (tokens_per_step && positive(sample.step_s)) return *tokens_per_step / *sample.step_s / ranks;
  if (tokens_per_step && positive(sample.samples_per_s) && positive(sample.global_batch))
    return *tokens_per_step / *sample.global_batch * *sample.samples_per_s / ranks;
  return std::nullopt;
}

/// Returns the seconds of a step that a line says or implies; null if it does neither.
std::optional<double> step_seconds(const LogSample& sample, const std::optional<double>& tokens_per_step,
                                   const std::optional<std::int64_t>& gpus) {
  if (positive(sample.step_s)) return *sample.step_s;
  if (!tokens_per_step) return std::nullopt;
  if (positive(sample.tokens_per_s)) return *tokens_per_step / *sample.tokens_per_s;
  if (positive(sample.samples_per_s) && positive(sample.global_batch))
    return *sample.global_batch / *sample.samples_per_s;
  if (positive(sample.tokens_per_s_per_gpu) && gpus)
    return *tokens_per_step / *sample.tokens_per_s_per_gpu / static_cast<double>(*gpus);
  return std::nullopt;
}

/// Returns the lines whose steps all come after the start's compilation and warm-up. An excerpt from the middle of a run has no
/// start.
std::vector<std::size_t> settled_lines(const LogRun& run, const LogFormat& format, std::int64_t window) {
  std::vector<std::size_t> lines;
  if (run.samples.empty()) return lines;
  const std::int64_t first = run.samples.front().step;
  const bool started = run.from_start || first <= window;
  const std::int64_t averaged = format.window_mean ? window : 1;
  // The first step's number is 0 or 1; a resumed run's start is a line before its first.
  const std::int64_t start = first <= window ? std::min<std::int64_t>(first, 1) - 1 : first - window;
  for (std::size_t i = 0; i < run.samples.size(); ++i)
    if (!started || run.samples[i].step - averaged - start >= format.warmup) lines.push_back(i);
  return lines;
}

}  // namespace

std::int64_t window_of(const LogRun& run) {
  std::map<std::int64_t, std::size_t> counts;
  const std::vector<LogSample>& samples = run.samples;
  for (std::size_t i = 1; i < samples.size(); ++i) ++counts[samples[i].step - samples[i - 1].step];
  std::int64_t window = 1;
  std::pair<std::size_t, bool> best{0, false};
  for (const auto& [difference, count] : counts) {
    const bool divides =
        std::all_of(samples.begin() + 1, samples.end(),
                    [d = difference](const LogSample& sample) { return sample.step % d == 0; });
    if (std::pair(count, divides) > best) best = {count, divides}, window = difference;
  }
  return window;
}

RunSpeed speed_of_run(const LogRun& run, const LogFormat& format,
                      const std::optional<double>& tokens_per_step, const std::optional<std::int64_t>& gpus) {
  RunSpeed speed;
  const std::int64_t between = window_of(run);
  speed.window = format.window_mean ? between : 1;
  std::vector<double> tokens;
  for (const LogSample& sample : run.samples)
    if (positive(sample.step_s) && positive(sample.tokens_per_s))
      tokens.push_back(*sample.step_s * *sample.tokens_per_s);
  if (!tokens.empty()) speed.step_tokens = median_of(tokens);
  const std::optional<double> step_tokens = tokens_per_step ? tokens_per_step : speed.step_tokens;
  speed.settled = settled_lines(run, format, between);
  std::erase_if(speed.settled, [&](std::size_t i) {
    // A batch that ramps up is another step.
    if (!(run.samples[i].global_batch == run.samples.back().global_batch)) return true;
    return !step_seconds(run.samples[i], step_tokens, gpus) &&
           !rate_per_gpu(run.samples[i], step_tokens, gpus) && !positive(run.samples[i].samples_per_s);
  });
  for (const std::size_t i : speed.settled) {
    if (const auto seconds = step_seconds(run.samples[i], step_tokens, gpus))
      speed.step_s.push_back(*seconds);
    if (const auto rate = rate_per_gpu(run.samples[i], step_tokens, gpus)) speed.per_gpu.push_back(*rate);
  }
  if (speed.step_s.size() < speed.settled.size()) speed.step_s.clear();
  if (speed.per_gpu.size() < speed.settled.size()) speed.per_gpu.clear();
  if (!speed.settled.empty()) {
    speed.first_step = run.samples[speed.settled.front()].step;
    speed.last_step = run.samples[speed.settled.back()].step;
  }
  if (run.samples.empty() || speed.settled.empty())
    speed.refusal = "the log has no time of a settled step";
  else if (speed.settled.size() < kFewestLines)
    speed.refusal =
        fmt::format("{}, {} are needed", plural(speed.settled.size(), "settled line"), kFewestLines);
  return speed;
}

std::optional<double> logged_flops_per_token(const LogRun& run, const std::optional<double>& tokens_per_step,
                                             const std::optional<std::int64_t>& gpus) {
  std::vector<double> values;
  for (const LogSample& sample : run.samples) {
    const auto rate = rate_per_gpu(sample, tokens_per_step, gpus);
    if (!rate) continue;
    if (positive(sample.tflops))
      values.push_back(*sample.tflops * 1e12 / *rate);
    else if (positive(sample.mfu) && run.facts.peak_flops && *run.facts.peak_flops > 0)
      values.push_back(*sample.mfu * *run.facts.peak_flops / *rate);
  }
  if (values.empty() && run.whole && positive(run.whole->tokens) && positive(run.whole->flops))
    values.push_back(*run.whole->flops / *run.whole->tokens);
  if (values.empty()) return std::nullopt;
  const double median = median_of(values);
  return std::isfinite(median) ? std::optional(median) : std::nullopt;
}

std::optional<std::string> convention_of(double flops_per_token, const ImportModel& model) {
  const auto is = [&](double form) { return std::abs(flops_per_token - form) <= kSameFlops * form; };
  if (is(model.causal)) return "causal";
  if (is(model.full) || is(model.full_with_norms)) return "full";
  if (is(6 * static_cast<double>(model.without_embedding))) return "parameters";
  return std::nullopt;
}

}  // namespace precbench
