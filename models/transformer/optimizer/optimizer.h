// One optimizer step over a rank's shard: global gradient norm, then the update rule unit by unit.
// Learning-rate schedules.
#pragma once

#include <string>

#include "kernels/device/device.h"
#include "models/transformer/optimizer/optimizers.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

/// Course of the learning rate after warmup. cosine: decays to a tenth of lr at the last step; linear: to zero.
enum class Schedule : std::uint8_t { constant, cosine, linear };

struct OptimizerOptions {
  float lr = 3e-4f;
  std::int64_t warmup = 0;  ///< steps of linear warmup, starting at lr / warmup
  Schedule schedule = Schedule::constant;
  std::int64_t total_steps = 0;  ///< end of the decay; unused if the schedule is constant
  const OptimizerSpec* optimizer = &optimizers().front();
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, momentum = 0.95f;  ///< used if the optimizer has them
  float weight_decay = 0.1f;
  float max_norm = 1.0f;  ///< 0: no clipping
  std::uint64_t seed = 0;
};

/// Returns the learning rate of a step, counted from 0.
float learning_rate(const OptimizerOptions& options, std::int64_t step);

/// Returns the device-side scalars of a step, counted from 0; upload before the step runs. `before`: steps
/// that the moments have seen before step 0.
StepScalars step_scalars(const OptimizerOptions& options, std::int64_t step, std::int64_t before = 0);

/// Computes the squared norm of all gradients (over all ranks) in norm_squared, f32 [1], and updates all
/// weights.
void optimizer_step(Device& device, Parameters& parameters, const Tensor& scalars, const Tensor& norm_squared,
                    const OptimizerOptions& options);

}  // namespace precbench
