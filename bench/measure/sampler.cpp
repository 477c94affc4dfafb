// Implements the stop rules. See sampler.h.
#include "bench/measure/sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

constexpr std::size_t kMinWarmup = 6, kMaxWarmup = 20;
constexpr double kSettled = 0.02;
constexpr std::size_t kNoiseWindow = 32;
constexpr double kNoiseSpread = 0.05;

double median(std::vector<double> values) { return sample_statistics(std::move(values))->median; }

}  // namespace

SamplerOptions sampler_options(const std::string& device) {
  SamplerOptions options;
  if (is_gpu(device)) options.min_warmup_s = 1, options.min_time_s = 2;
  return options;
}

bool Sampler::warm() const {
  const std::size_t n = warmup_.size();
  if (options_.steps > 0 && static_cast<std::int64_t>(2 * n) >= options_.steps) return true;
  if (options_.steps == 0 && elapsed_ms_ >= options_.time_limit_s * 1e3 / 2) return true;
  if (n < kMinWarmup || elapsed_ms_ < options_.min_warmup_s * 1e3) return false;
  if (n >= kMaxWarmup) return true;
  const double last = median({warmup_.end() - 3, warmup_.end()});
  const double before = median({warmup_.end() - 6, warmup_.end() - 3});
  return std::fabs(last - before) <= kSettled * before;
}

bool Sampler::finished() {
  if (options_.steps > 0) {
    reason_ = StopReason::fixed_steps;
    return static_cast<std::int64_t>(warmup_.size() + samples_.size()) >= options_.steps;
  }
  const SampleStatistics s = *sample_statistics(samples_);
  const double noise = relative_noise(s);
  noise_.push_back(noise);
  if (static_cast<std::int64_t>(samples_.size()) >= options_.min_samples &&
      sampled_ms_ >= options_.min_time_s * 1e3) {
    if (noise < options_.target_noise) {
      reason_ = StopReason::target;
      return true;
    }
    if (noise_.size() >= kNoiseWindow) {
      const auto [low, high] = std::minmax_element(noise_.end() - kNoiseWindow, noise_.end());
      if (*high - *low <= kNoiseSpread * *high) {
        reason_ = StopReason::stable_noise;
        return true;
      }
    }
  }
  reason_ = StopReason::time_limit;
  return elapsed_ms_ >= options_.time_limit_s * 1e3;
}

bool Sampler::add(double milliseconds) {
  elapsed_ms_ += milliseconds;
  if (!warmed_up_) {
    warmup_.push_back(milliseconds);
    warmed_up_ = warm();
    const std::int64_t taken = static_cast<std::int64_t>(warmup_.size());
    return options_.steps > 0 && taken >= options_.steps;
  }
  samples_.push_back(milliseconds);
  sampled_ms_ += milliseconds;
  // Ranks learn one step late that sampling ends; that step is a sample too, but does not change the reason.
  if (!done_) done_ = finished();
  return done_;
}

Timing Sampler::timing() const {
  Timing timing;
  timing.samples_ms = samples_;
  timing.outliers = outliers(samples_);
  timing.warmup = static_cast<std::int64_t>(warmup_.size());
  timing.stop_reason = reason_;
  if (const auto s = sample_statistics(samples_)) {
    timing.median_ms = s->median;
    timing.iqr_ms = s->iqr();
    timing.min_ms = s->min;
  }
  return timing;
}

}  // namespace precbench
