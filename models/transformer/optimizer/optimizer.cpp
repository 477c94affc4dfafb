// The optimizer step and the elementwise update rules. See optimizer.h.
#include "models/transformer/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/numerics/random.h"
#include "models/transformer/optimizer/update_rules.h"

namespace precbench {

float learning_rate(const OptimizerOptions& o, std::int64_t step) {
  if (step < o.warmup) return o.lr * static_cast<float>(step + 1) / static_cast<float>(o.warmup);
  if (o.schedule == Schedule::constant || o.total_steps <= o.warmup) return o.lr;
  const double progress =
      std::min(1.0, static_cast<double>(step - o.warmup) / static_cast<double>(o.total_steps - o.warmup));
  if (o.schedule == Schedule::linear) return static_cast<float>(o.lr * (1 - progress));
  return static_cast<float>(o.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * progress)));
}

StepScalars step_scalars(const OptimizerOptions& o, std::int64_t step, std::int64_t before) {
  const double t = static_cast<double>(before + step + 1);
  StepScalars scalars{learning_rate(o, step), static_cast<float>(1 - std::pow(o.beta1, t)),
                      static_cast<float>(1 - std::pow(o.beta2, t)),
                      random_bits(o.seed, static_cast<std::uint64_t>(step))};
  if (o.optimizer->scalars) o.optimizer->scalars(o, t, scalars);
  return scalars;
}

namespace {

/// Adds the squares of this rank's part of a unit's gradient: by run, or by parameter if each has its own
/// scale.
void add_squares(Device& device, const Parameters& parameters, int unit, const Tensor& norm_squared,
                 bool& accumulate) {
  const Parameters::Shard shard = parameters.shard(unit);
  const auto add = [&](std::int64_t first, std::int64_t count, const Tensor& scale) {
    if (count == 0) return;
    device.sum_of_squares({norm_squared, part(shard.gradient, first, count), accumulate, scale});
    accumulate = true;
  };
  if (parameters.gradient_scale(unit, 0).empty()) {
    for (const Run& run : shard.runs)
      if (run.decay() || parameters.counts_vectors()) add(run.first, run.count, {});
    return;
  }
  const std::vector<Piece> pieces = parameters.layout().pieces(unit, parameters.shard_rank());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    add(pieces[i].offset, pieces[i].count, parameters.gradient_scale(unit, i));
}

/// Sums the squares of shards, of tensor ranks' matrices and of divided experts over ranks.
void sum_over_ranks(Device& device, Parameters& parameters, const Tensor& norm_squared) {
  if (parameters.sharded()) parameters.shard_comm().all_reduce(norm_squared);
  if (Comm* tensor = parameters.tensor_comm()) tensor->all_reduce(norm_squared);
  if (Comm* experts = parameters.expert_comm()) {
    experts->all_reduce(parameters.other_norm());
    device.add({norm_squared, parameters.other_norm()});
  }
}

}  // namespace

void optimizer_step(Device& device, Parameters& parameters, const Tensor& scalars, const Tensor& norm_squared,
                    const OptimizerOptions& o) {
  // Without clipping the norm is only reported. The rules sum it up, since they read every gradient anyway,
  // so no unit waits for the gradient of another: the last reductions overlap the first updates.
  const Layout& layout = parameters.layout();
  if (o.max_norm > 0) {
    parameters.complete_all();
    bool accumulate = false, of_experts = false;
    for (int u = 0; u < layout.unit_count(); ++u)
      if (layout.units()[u].parameters.empty())
        continue;
      else if (layout.is_experts(u))
        add_squares(device, parameters, u, parameters.other_norm(), of_experts);
      else
        add_squares(device, parameters, u, norm_squared, accumulate);
    if (!accumulate) device.zero({norm_squared});  // more ranks than elements
    sum_over_ranks(device, parameters, norm_squared);
  } else {
    device.zero({norm_squared});
    if (!parameters.other_norm().empty()) device.zero({parameters.other_norm()});
  }

  if (WeightAmaxes* amaxes = parameters.weight_amaxes()) amaxes->begin_update(device);
  const UpdateContext context{device, parameters, scalars, norm_squared, o};
  UpdateContext experts = context;
  if (o.max_norm <= 0) experts.norm_squared = parameters.other_norm();
  for (const int u : layout.backward_order()) {
    if (layout.units()[u].parameters.empty()) continue;  // an edge of a frozen model
    parameters.complete(u);
    parameters.options().optimizer->update(layout.is_experts(u) ? experts : context, u);
  }
  if (o.max_norm <= 0) sum_over_ranks(device, parameters, norm_squared);
}

UpdateOptions UpdateContext::constants(bool decay, const ElementMap& in_model) const {
  UpdateOptions c{options.beta1, options.beta2, options.eps, decay ? options.weight_decay : 0.0f,
                  options.max_norm};
  c.stochastic_rounding = parameters.options().master == Master::bf16_sr;
  c.index = in_model;
  return c;
}

void UpdateContext::add_to_norm(const Tensor& gradient, bool decay) const {
  if (options.max_norm <= 0 && gradient.size() > 0) device.sum_of_squares({norm_for(decay), gradient, true});
}

const Tensor& UpdateContext::norm_for(bool decay) const {
  return decay || options.max_norm > 0 || parameters.counts_vectors() ? norm_squared
                                                                      : parameters.other_norm();
}

namespace {

/// Returns the op for elements of a shard whose moments have no scales.
ops::Adamw adamw_of(const UpdateContext& context, int unit, std::int64_t first, std::int64_t count,
                    bool decay, const ElementMap& in_model) {
  const Parameters::Shard shard = context.parameters.shard(unit);
  const Moments& moments = context.parameters.moments();
  return {.weights = part(shard.weights, first, count),
          .master = part(shard.master, first, count),
          .m = moments.m(unit, first, count),
          .v = moments.v(unit, first, count),
          .gradient = part(shard.gradient, first, count),
          .scalars = context.scalars,
          .norm_squared = context.norm_for(decay),
          .options = context.constants(decay, in_model)};
}

/// Updates parameter by parameter, since each has its own scales.
void scaled_adamw_update(const UpdateContext& context, int unit) {
  Parameters& parameters = context.parameters;
  const Moments& moments = parameters.moments();
  const ParameterScales* master = parameters.master_scales();
  const std::vector<Piece> pieces = parameters.layout().pieces(unit, parameters.shard_rank());
  const auto pass = [&](bool measure) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (piece.count == 0) continue;
      const bool decay = piece.parameter->kind == ParameterKind::matrix;
      ops::Adamw op = adamw_of(context, unit, piece.offset, piece.count, decay, piece.in_model());
      const auto [weights, leading, leading_scale] = parameters.updated(unit, i, piece);
      op.weights = weights;
      op.master = leading;
      op.master_scale = leading_scale;
      op.m_scale = moments.m_scale(unit, i);
      op.v_scale = moments.v_scale(unit, i);
      op.gradient_scale = parameters.gradient_scale(unit, i);
      op.measure = measure;
      if (measure && !op.measures()) continue;
      context.device.adamw(op);
    }
  };
  const bool moments_measured = moments.formats().tensor_scaled();
  if (moments_measured || master) pass(true);
  if (parameters.sharded()) {
    if (moments_measured) parameters.shard_comm().all_reduce_max(moments.amaxes(unit));
    if (master) parameters.shard_comm().all_reduce_max(master->amaxes(unit));
  }
  pass(false);
  if (moments_measured) moments.commit_scales(context.device, unit);
  if (master) master->commit(context.device, unit);
}

}  // namespace

void adamw_update_run(const UpdateContext& context, int unit, const Run& run) {
  ops::Adamw op = adamw_of(context, unit, run.first, run.count, run.decay(), run.in_model);
  if (const WeightAmaxes* amaxes = context.parameters.weight_amaxes()) op.amaxes = amaxes->of_run(op.weights);
  context.device.adamw(op);
}

void adamw_update(const UpdateContext& context, int unit) {
  const Parameters& parameters = context.parameters;
  if (parameters.moments().formats().scaled() || parameters.master_scales() ||
      !parameters.gradient_scale(unit, 0).empty())
    return scaled_adamw_update(context, unit);
  for (const Run& run : context.parameters.shard(unit).runs) adamw_update_run(context, unit, run);
}

void lion_update(const UpdateContext& context, int unit) {
  const Parameters::Shard shard = context.parameters.shard(unit);
  for (const Run& run : shard.runs) {
    context.add_to_norm(part(shard.gradient, run.first, run.count), run.decay());
    context.device.lion({.weights = part(shard.weights, run.first, run.count),
                         .master = part(shard.master, run.first, run.count),
                         .m = context.parameters.moments().m(unit, run.first, run.count),
                         .gradient = part(shard.gradient, run.first, run.count),
                         .scalars = context.scalars,
                         .norm_squared = context.norm_squared,
                         .options = context.constants(run.decay(), run.in_model)});
  }
}

}  // namespace precbench
