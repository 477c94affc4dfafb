// AdamW over the flat buffers. See optimizer.h.
#include "models/transformer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/numerics/formats.h"

namespace precbench {
namespace {

/// The run's elements of a flat tensor, or none of one that is not kept.
Tensor part(const Tensor& t, const Run& run) {
  if (t.empty()) return {};
  return t.elements(run.first, run.count);
}

}  // namespace

float learning_rate(const OptimizerOptions& o, std::int64_t step) {
  if (step < o.warmup) return o.lr * static_cast<float>(step + 1) / static_cast<float>(o.warmup);
  if (o.schedule == Schedule::constant || o.total_steps <= o.warmup) return o.lr;
  const double progress =
      std::min(1.0, static_cast<double>(step - o.warmup) / static_cast<double>(o.total_steps - o.warmup));
  return static_cast<float>(o.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * progress)));
}

StepScalars step_scalars(const OptimizerOptions& o, std::int64_t step, std::int64_t before) {
  const double t = static_cast<double>(before + step + 1);
  return {learning_rate(o, step), static_cast<float>(1 - std::pow(o.beta1, t)),
          static_cast<float>(1 - std::pow(o.beta2, t)),
          random_bits(o.seed, static_cast<std::uint64_t>(step))};
}

void optimizer_step(Device& device, Parameters& parameters, const Tensor& scalars, const Tensor& norm_squared,
                    const OptimizerOptions& o) {
  // Without clipping the norm is only reported, and AdamW, which reads every gradient anyway, sums it up.
  // Then no unit waits for another's gradient: the last ones are still on their way when the first are
  // updated.
  if (o.max_norm > 0) {
    parameters.complete_all();
    bool accumulate = false;
    for (int u = 0; u < parameters.layout().unit_count(); ++u) {
      const Parameters::Shard shard = parameters.shard(u);
      for (const Run& run : shard.runs) {
        device.sum_of_squares({norm_squared, part(shard.gradient, run), accumulate});
        accumulate = true;
      }
    }
    if (!accumulate) device.zero({norm_squared});  // more ranks than elements
    if (parameters.sharded()) parameters.shard_comm().all_reduce(norm_squared);
  } else {
    device.zero({norm_squared});
  }

  for (const int u : parameters.layout().backward_order()) {
    parameters.complete(u);
    const Parameters::Shard shard = parameters.shard(u);
    for (const Run& run : shard.runs) {
      AdamwOptions options{o.beta1, o.beta2, o.eps, run.decay() ? o.weight_decay : 0.0f, o.max_norm};
      options.stochastic_rounding = parameters.options().master == Master::bf16_sr;
      options.first_index = shard.model_offset + run.first;
      device.adamw({.weights = part(shard.weights, run),
                    .master = part(shard.master, run),
                    .m = part(shard.m, run),
                    .v = part(shard.v, run),
                    .gradient = part(shard.gradient, run),
                    .scalars = scalars,
                    .norm_squared = norm_squared,
                    .options = options});
    }
  }
  if (o.max_norm <= 0 && parameters.sharded()) parameters.shard_comm().all_reduce(norm_squared);
}

}  // namespace precbench
