// When warm-up is over and when there are enough samples. A sample is the time of one optimizer step.
//
// Warm-up ends when the running median settles: at least 6 steps, and the median of the last 3 within 2% of
// the median of the 3 before; at the latest after 20. On a GPU it also lasts a second, however many steps that
// are. Sampling then ends at the first of
//   target        at least 10 samples and 0.5 s of them (a GPU: 2 s), and a relative noise below 0.5%: IQR /
//                 1.349 (a normal's standard deviation) over the median
//   stable_noise  the noise estimate itself no longer moves: its last 32 values vary by less than 5%
//   time_limit    the case's seconds are used up
// With a fixed number of steps only warm-up follows these rules, and takes at most half of the steps; else it
// ends with half of the time at the latest.
//
// Why a GPU takes longer: at its power limit an H200 lets the clock rise and fall about once a second (the
// medians of successive half seconds of results/h200/single.jsonl differ by up to 2%). Cases that end after
// different fractions of that are not comparable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/record.h"
#include "results/statistics.h"

namespace precbench {

struct SamplerOptions {
  std::int64_t steps = 0;    ///< fixed number, warm-up included; 0: until a rule ends it
  double time_limit_s = 60;  ///< of all steps together, warm-up included; not for fixed steps
  double min_warmup_s = 0;
  std::int64_t min_samples = 10;
  double min_time_s = 0.5;  ///< of samples
  double target_noise = kTargetNoise;
};

/// The rules' defaults for a device of this name.
SamplerOptions sampler_options(const std::string& device);

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  /// Takes one step's time and says whether no more are needed. More may come, and are samples too.
  bool add(double milliseconds);

  bool warmed_up() const { return warmed_up_; }

  /// Samples, warm-up, reason and statistics so far.
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
