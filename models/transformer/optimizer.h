// One optimizer step over a rank's shard: the global gradient norm, then the optimizer's rule unit by unit. Learning-rate
// schedules.
#pragma once

#include <string>

#include "kernels/device/device.h"
#include "models/transformer/parameters.h"

namespace precbench {

enum class Schedule : std::uint8_t { constant, cosine };

struct OptimizerOptions {
  float lr = 3e-4f;
  std::int64_t warmup = 0;  ///< steps of linear rise from lr / warmup
  Schedule schedule = Schedule::constant;
  std::int64_t total_steps = 0;  ///< of the cosine's fall to a tenth of lr
  const OptimizerSpec* optimizer = &optimizers().front();
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, momentum = 0.95f;  ///< each where the optimizer has it
  float weight_decay = 0.1f;
  float max_norm = 1.0f;  ///< 0: no clipping
  std::uint64_t seed = 0;
};

/// The learning rate of a step, counted from 0.
float learning_rate(const OptimizerOptions& options, std::int64_t step);

/// The device-side scalars of a step, counted from 0; upload before the step runs. `before`: steps that the moments had
/// seen before step 0.
StepScalars step_scalars(const OptimizerOptions& options, std::int64_t step, std::int64_t before = 0);

/// Sums the squares of all gradients (over all ranks) into norm_squared, f32 [1], and updates every run.
void optimizer_step(Device& device, Parameters& parameters, const Tensor& scalars, const Tensor& norm_squared,
                    const OptimizerOptions& options);

}  // namespace precbench
