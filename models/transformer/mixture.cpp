// A mixture of experts in the place of a block's SwiGLU, forward and back. See transformer.h.
//
//   route: z = h Wr^T, each token's experts and weights; group: rows by expert
//   permute, gate_up of each expert, SwiGLU times the weight, down of each expert, unpermute: the sum over a token's slots,
//   plus the shared expert's output, which is a SwiGLU of all tokens
//
// Forward keeps the routing and gate_up. X's columns are made again in backward, of the norm's output, or of its codes where
// wgrad takes transposed ones.
#include <algorithm>

#include "models/transformer/transformer.h"

namespace precbench {

ExpertLinear Transformer::experts(std::int64_t layer, Role role) const {
  return {device_, arena_, options_.recipe_of(layer, role), config_.moe.rule.experts};
}

std::int64_t Transformer::most_rows() const {
  return most_rows_of_expert(config_.moe.rule, M_, options_.capacity);
}

void Transformer::push_routing(std::int64_t layer, SavedRouting& saved) {
  const RoutingRule& rule = config_.moe.rule;
  const std::int64_t E = rule.experts, K = rule.top_k, rows = std::min(M_ * K, most_rows() * E);
  const std::int64_t pad = std::max(group_padding(options_.recipe_of(layer, Role::gate_up)),
                                    group_padding(options_.recipe_of(layer, Role::down)));
  saved.z = push(DType::f32, M_, E);
  saved.index = push(DType::i32, M_, K);
  saved.weights = push(DType::f32, M_, K);
  saved.report = push(DType::f32, 1, Routers::report_size(E));
  saved.groups = {.offsets = push(DType::i32, 1, E + 1),
                  .counts = push(DType::i32, 1, E),
                  .row_of = push(DType::i32, M_, K),
                  .source = push(DType::i32, 1, rows_capacity(rows, E, pad)),
                  .pad = pad,
                  .rows_expected = rows};
}

void Transformer::route(std::int64_t layer, const SavedRouting& saved, const BlockWeights& w,
                        const Tensor& h) {
  const RoutingRule& rule = config_.moe.rule;
  Routers& routers = *parameters_.routers();
  const int micro_step = static_cast<int>(micro_step_);
  device_.route({.z = saved.z,
                 .index = saved.index,
                 .weights = saved.weights,
                 .report = saved.report.elements(0, rule.experts + 2),
                 .bad = routers.bad(layer, micro_step),
                 .x = h,
                 .router = w[Role::router].value,
                 .bias = routers.bias(layer),
                 .forced = routers.forced(),
                 .rule = rule});
  device_.group({saved.groups, saved.report.elements(rule.experts + 2, 2), saved.index, most_rows()});
  routers.note(layer, micro_step, saved.report);
}

Transformer::SwigluLayers Transformer::shared_layers(const Saved& saved) const {
  return {Role::shared_gate_up, Role::shared_down, config_.moe.shared_ffn, saved.shared_gate_up,
          saved.shared_swiglu_amax};
}

void Transformer::mixture_forward(std::int64_t layer, Saved& saved, const BlockWeights& w,
                                  const QuantizedTensor& h, bool again) {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const bool at_input = config_.moe.weight_at == WeightAt::input, shared = config_.moe.shared_ffn > 0;
  if (!again) route(layer, routing, w, h.value);
  {
    const Scope scope(arena_);
    const ExpertLinear lin = experts(layer, Role::gate_up);
    const QuantizedTensor x = lin.input(push_rows(groups, config_.width), true, false);
    device_.permute({x, h, at_input ? routing.weights : Tensor{}, groups});
    lin.fprop(saved.gate_up, x, w[Role::gate_up], groups);
  }
  if (shared) fprop(layer, Role::shared_gate_up, saved.shared_gate_up, h, w);
  if (again) return;
  const Scope scope(arena_);
  Tensor addend;
  if (shared) {
    addend = push(config_.width);
    swiglu_forward(layer, shared_layers(saved), w, addend);
  }
  const ExpertLinear lin = experts(layer, Role::down);
  QuantizedTensor s = lin.input(push_rows(groups, config_.moe.expert_ffn), true, false);
  if (!saved.swiglu_amax.empty()) s.amax_out = saved.swiglu_amax;
  device_.grouped_swiglu({s, saved.gate_up, at_input ? Tensor{} : routing.weights, groups});
  const Tensor y = push_rows(groups, config_.width);
  lin.fprop(y, s, w[Role::down], groups);
  device_.unpermute({.out = branch_, .rows = y, .addend = addend, .groups = groups});
}

QuantizedTensor Transformer::push_codes(std::int64_t layer, Role role, LinearOperand operand,
                                        const QuantizedTensor& tokens, const Tensor& weights,
                                        const Groups& groups) {
  QuantizedTensor rows;
  rows.rowwise = experts(layer, role).codes(groups.rows_capacity(), config_.width);
  rows.keep_value = quantization_observer_ != nullptr;
  if (rows.keep_value || !weights.empty()) rows.value = push_rows(groups, config_.width);
  if (quantization_observer_) {  // it sees all rows, and nobody writes those behind the last group
    for (const Tensor& t : {rows.value, rows.rowwise.data, rows.rowwise.scale}) device_.zero({t});
  }
  device_.permute({rows, tokens, weights, groups});
  observe_codes(layer, role, operand, rows, groups);
  return rows;
}

void Transformer::experts_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                                   const BlockTensors& g, const QuantizedTensor& dx, const Tensor& h,
                                   const Tensor& dw, const Tensor& drows) {
  const Groups& groups = saved.routing.groups;
  const bool at_input = config_.moe.weight_at == WeightAt::input;
  const ExpertLinear gate_up = experts(layer, Role::gate_up), down = experts(layer, Role::down);
  const Tensor weights = saved.routing.weights;
  const auto commit = [&](Role role) {
    parameters_.commit(g[role]);
    return g[role];
  };
  const Scope scope(arena_);
  const QuantizedTensor dgate_up = gate_up.gradient(push_rows(groups, 2 * config_.moe.expert_ffn));
  {
    const Scope inner(arena_);
    QuantizedTensor dy;
    if (options_.recipe_of(layer, Role::down).flow) {
      dy = push_codes(layer, Role::down, LinearOperand::dy, dx, {}, groups);
    } else {
      dy = down.gradient(push_rows(groups, config_.width));
      device_.permute({dy, dx, {}, groups});
    }
    const Tensor ds = push_rows(groups, config_.moe.expert_ffn);
    down.dgrad(ds, dy, w[Role::down], groups);
    QuantizedTensor s = down.input(push_rows(groups, config_.moe.expert_ffn), false, true);
    if (!saved.swiglu_amax.empty()) {
      s.amax_in = saved.swiglu_amax;
      s.amax_out = {};
    }
    device_.grouped_swiglu_backward(
        {dgate_up, s, at_input ? Tensor{} : dw, ds, saved.gate_up, at_input ? Tensor{} : weights, groups});
    down.wgrad(commit(Role::down), dy, s, groups, parameters_.accumulates());
  }
  gate_up.dgrad(drows, dgate_up, w[Role::gate_up], groups);
  const Tensor of_rows = at_input ? weights : Tensor{};
  QuantizedTensor x;
  if (options_.recipe_of(layer, Role::gate_up).flow) {
    x = push_codes(layer, Role::gate_up, LinearOperand::x, {.value = h, .rowwise = saved.h2_form}, of_rows,
                   groups);
  } else {
    x = gate_up.input(push_rows(groups, config_.width), false, true);
    device_.permute({x, make_quantized_tensor(h, {}, {}), of_rows, groups});
  }
  gate_up.wgrad(commit(Role::gate_up), dgate_up, x, groups, parameters_.accumulates());
}

Tensor Transformer::shared_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                                    const BlockTensors& g, const QuantizedTensor& dx,
                                    const NormOutput& norm) {
  const Linear consumer = linear(layer, Role::shared_gate_up);
  NormOutput input = norm;
  if (consumer.recipe().flow) {
    observe_codes(layer, Role::shared_gate_up, LinearOperand::x, {.value = norm.value, .rowwise = norm.form});
  } else if (consumer.x_columnwise().quantized()) {
    QuantizedTensor columns = make_quantized_tensor(norm.value, {}, consumer.x_columnwise());
    push_col(columns, consumer.x_columnwise());
    produce(columns, [&](QuantizedTensor& x) { device_.quantize({x}); });
    input.form = columns.columnwise;
  }
  return swiglu_backward(layer, shared_layers(saved), w, g, dx, input);
}

Tensor Transformer::mixture_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                                     const BlockTensors& g, const QuantizedTensor& dx,
                                     const NormOutput& norm) {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const Tensor dh = push(config_.width);
  NormOutput known = norm;
  if (known.value.empty()) known.value = normed_again(norm);
  const Tensor& h = known.value;
  const Tensor dw = push(DType::f32, M_, config_.moe.rule.top_k);
  const Tensor drows = push_rows(groups, config_.width);
  experts_backward(layer, saved, w, g, dx, h, dw, drows);
  Tensor addend;
  if (config_.moe.shared_ffn > 0) addend = shared_backward(layer, saved, w, g, dx, known);
  const Tensor sum = push(DType::f32, M_, config_.width);
  parameters_.commit(g[Role::router]);
  const auto through_router = [&](const Tensor& to, const Tensor& added) {
    device_.route_backward({.dx = to,
                            .drouter = g[Role::router],
                            .accumulate = parameters_.accumulates(),
                            .addend = added,
                            .dw = dw,
                            .z = routing.z,
                            .index = routing.index,
                            .report = routing.report,
                            .x = h,
                            .router = w[Role::router].value,
                            .rule = config_.moe.rule,
                            .balance = options_.balance,
                            .z_loss = options_.z_loss,
                            .loss_scale = loss_scale_});
  };
  if (config_.moe.weight_at == WeightAt::input) {  // the rows' gradients are what dw comes from
    const Tensor rows_sum = push(DType::f32, M_, config_.width);
    device_.unpermute({rows_sum, drows, addend, routing.weights, dw, h, groups});
    through_router(sum, rows_sum);
    device_.convert({dh, sum});
  } else {
    through_router(sum, addend);
    device_.unpermute({.out = dh, .rows = drows, .addend = sum, .groups = groups});
  }
  return dh;
}

}  // namespace precbench
