// Decides when warm-up is over and when there are enough samples. A sample is the time of one optimizer step.
//
// Warm-up ends when the running median settles: at least 6 steps, and the median of the last 3 within 2% of
// the median of the 3 before; at the latest after 20 steps. On a GPU it also lasts at least a second,
// whatever the number of steps. Sampling then ends at the first of
//   target        at least 10 samples, 0.5 s of them (GPU: 2 s), and a relative noise below 0.5%: IQR / 1.349
//                 (a normal distribution's standard deviation) over the median
//   stable_noise  the noise estimate has settled: its last 32 values vary by less than 5%
//   time_limit    the case's seconds are used up
// With a fixed number of steps only warm-up follows these rules and takes at most half of the steps;
// otherwise it ends at the latest at half of the time limit.
//
// GPUs take longer because at its power limit an H200 lets the clock rise and fall about once a second:
// medians of successive half seconds of results/h200/single.jsonl.xz differ by up to 2%. Cases that end after
// different fractions of such a period are not comparable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/record/record.h"
#include "results/record/statistics.h"

namespace precbench {

struct SamplerOptions {
  std::int64_t steps = 0;    ///< fixed number, including warm-up; 0: until a rule ends sampling
  double time_limit_s = 60;  ///< of all steps, including warm-up; ignored with fixed steps
  double min_warmup_s = 0;
  std::int64_t min_samples = 10;
  double min_time_s = 0.5;  ///< total time of samples
  double target_noise = kTargetNoise;
};

/// Returns the default options for a device.
SamplerOptions sampler_options(const std::string& device);

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  /// Takes one step's time. Returns true if no more are needed; later ones are still samples.
  bool add(double milliseconds);

  bool warmed_up() const { return warmed_up_; }

  /// Returns samples, warm-up, reason and statistics so far.
  Timing timing() const;

 private:
  bool warm() const;
  bool finished();

  SamplerOptions options_;
  std::vector<double> warmup_, samples_, noise_;
  bool warmed_up_ = false, done_ = false;
  double elapsed_ms_ = 0, sampled_ms_ = 0;
  StopReason reason_ = StopReason::fixed_steps;
};

}  // namespace precbench
