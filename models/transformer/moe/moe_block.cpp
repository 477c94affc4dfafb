// Routed experts and the shared expert, forward and backward. See moe_block.h.
#include "models/transformer/moe/moe_block.h"

#include <algorithm>
#include <utility>

#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

/// Uses `known`, unless it is empty, for the scale instead of the rows' own amax.
void use_known_amax(QuantizedTensor& rows, const Tensor& known) {
  if (known.empty()) return;
  rows.amax_in = known;
  rows.amax_out = {};
}

Weight with_columns(const Weight& weight, const GemmOperand& columns) {
  return {weight.value, weight.rowwise, columns};
}

}  // namespace

MoeBlock::MoeBlock(const StepContext& step)
    : step_(step),
      exchange_(make_expert_exchange(step)),
      shared_(step, LinearRole::shared_gate_up, LinearRole::shared_down, step.config.moe.shared_ffn) {}

ExpertLinear MoeBlock::experts(std::int64_t layer, LinearRole role) const {
  LinearSlots slots = step_.linear(layer, role).slots();
  const std::int64_t E = exchange_->own_experts();
  for (Tensor* amaxes : {&slots.w.known, &slots.w.staged})
    if (!amaxes->empty()) *amaxes = amaxes->elements(exchange_->first_expert(), E);
  return {step_.device, step_.arena, step_.recipe(layer, role), E, slots};
}

Tensor MoeBlock::own_part(const Tensor& biases) const {
  const std::int64_t each = biases.size() / step_.config.moe.rule.experts;
  return biases.elements(exchange_->first_expert() * each, exchange_->own_experts() * each);
}

std::int64_t MoeBlock::max_expert_rows() const {
  return exchange_->ranks() *
         std::min(exchange_->rows_per_rank(),
                  most_rows_of_expert(step_.config.moe.rule, step_.M, step_.options.capacity));
}

std::int64_t MoeBlock::max_rows() const {
  const std::int64_t E = exchange_->own_experts();
  return std::min(exchange_->max_rows() * std::min(step_.config.moe.rule.top_k, E), max_expert_rows() * E);
}

// ---- memory

void MoeBlock::push_saved(std::int64_t layer, MoeSaved& saved) const {
  if (has_amax_of_x(step_.linear(layer, LinearRole::down))) saved.swiglu_amax = step_.push(DType::f32, 1, 1);
  push_routing(layer, saved.routing);
  if (has_shared()) shared_.push_saved(layer, saved.shared);
  if (!step_.config.moe.shared_gate) return;
  saved.shared_raw = step_.push(step_.config.width);
  saved.shared_gate = step_.push(DType::f32, step_.M, 1);
}

void MoeBlock::push_inner(std::int64_t layer, MoeSaved& saved) const {
  const std::int64_t C = step_.config.width, F = step_.config.moe.expert_ffn;
  saved.gate_up = push_rows(saved.routing.groups, 2 * F);
  saved.routing.x = exchange_->push_received(step_.recipe(layer, LinearRole::gate_up).fprop.a);
  if (shares_amaxes() && has_amax_of_x(step_.linear(layer, LinearRole::gate_up)))
    saved.routing.x_amax = step_.push(DType::f32, 1, 1);
  if (has_shared()) shared_.push_inner(saved.shared);
  leave_weight_columns(saved);
  // Weights gathered for one pass must leave memory after it, quantized copies included.
  if (!step_.parameters.keeps_experts(layer)) return;
  const std::int64_t E = exchange_->own_experts();
  saved.gate_up_columns = experts(layer, LinearRole::gate_up).weight_columns(E * 2 * F, C);
  saved.down_columns = experts(layer, LinearRole::down).weight_columns(E * C, F);
}

void MoeBlock::prepare_input(const MoeSaved& saved, QuantizedTensor& h) const {
  h.keep_value = true;  // the router reads it
  const Tensor& x_amax = saved.routing.x_amax;
  if (!x_amax.empty() && !weights_input()) h.amax_out = x_amax;
}

void MoeBlock::push_routing(std::int64_t layer, SavedRouting& saved) const {
  const RoutingRule& rule = step_.config.moe.rule;
  const std::int64_t E = exchange_->own_experts(), K = rule.top_k, M = step_.M, rows = max_rows();
  const std::int64_t pad =
      std::max({step_.options.group_rows, group_padding(step_.recipe(layer, LinearRole::gate_up)),
                group_padding(step_.recipe(layer, LinearRole::down))});
  saved.z = step_.push(DType::f32, M, rule.experts);
  saved.index = step_.push(DType::i32, M, K);
  saved.weights = step_.push(DType::f32, M, K);
  saved.report = step_.push(DType::f32, 1, step_.parameters.routers()->report_size());
  saved.group_weights =
      exchange_->ranks() > 1 ? step_.push(DType::f32, exchange_->max_rows(), K) : saved.weights;
  saved.groups = {.offsets = step_.push(DType::i32, 1, E + 1),
                  .counts = step_.push(DType::i32, 1, E),
                  .row_of = step_.push(DType::i32, exchange_->max_rows(), K),
                  .source = step_.push(DType::i32, 1, rows_capacity(rows, E, pad)),
                  .pad = pad,
                  .rows_expected = rows_at_even_load(rule, M, step_.options.capacity, exchange_->ranks(),
                                                     step_.options.exchange.slots)};
  exchange_->push_destinations(saved);
}

// ---- routing

Tensor MoeBlock::drop_beyond_capacity(const Tensor& index, const Tensor& report) const {
  const RoutingRule& rule = step_.config.moe.rule;
  const std::int64_t E = rule.experts, K = rule.top_k, M = step_.M,
                     most = most_rows_of_expert(rule, M, step_.options.capacity);
  const Tensor kept = step_.push(DType::i32, M, K);
  const Scope scope(step_.arena);
  step_.device.group({.groups = {.offsets = step_.push(DType::i32, 1, E + 1),
                                 .counts = step_.push(DType::i32, 1, E),
                                 .row_of = step_.push(DType::i32, M, K),
                                 .source = step_.push(DType::i32, 1, std::min(M * K, most * E))},
                      .report = report,
                      .index = index,
                      .most = most,
                      .kept = kept});
  return kept;
}

void MoeBlock::route(std::int64_t layer, SavedRouting& saved, const BlockWeights& w, const Tensor& h) const {
  const RoutingRule& rule = step_.config.moe.rule;
  Routers& routers = *step_.parameters.routers();
  const int micro_step = static_cast<int>(step_.micro_step);
  step_.device.route({.z = saved.z,
                      .index = saved.index,
                      .weights = saved.weights,
                      .report = saved.report.elements(0, rule.experts + 2),
                      .bad = routers.bad(layer, micro_step),
                      .x = h,
                      .router = router_of(w[LinearRole::router].value),
                      .bias = routers.bias(layer),
                      .forced = routers.forced(),
                      .rule = rule,
                      .logit_bias = w.router_bias});
  const Scope scope(step_.arena);
  const Tensor report = saved.report.elements(rule.experts + 2, 3);
  const bool drops_first = exchange_->ranks() > 1 && step_.options.capacity > 0;
  const Tensor own_report = drops_first ? step_.push(DType::f32, 1, 3) : Tensor{};
  // Routing of all tokens that this rank receives, which forms its groups from them.
  const Tensor index = exchange_->gather_routing(
      saved, drops_first ? drop_beyond_capacity(saved.index, own_report) : saved.index);
  step_.device.group({saved.groups, report, index, max_expert_rows(), exchange_->first_expert()});
  // With --capacity each rank counts its own dropped slots. Of the received ones none is dropped.
  if (drops_first) step_.device.convert({report.elements(2, 1), own_report.elements(2, 1)});
  routers.note(layer, micro_step, saved.report);
  routers.note_choices(layer, micro_step, saved.index);
}

void MoeBlock::route_backward(const SavedRouting& routing, const BlockWeights& w, const BlockTensors& g,
                              const Tensor& dx, const Tensor& dw, const Tensor& h,
                              const Tensor& addend) const {
  step_.device.route_backward({.dx = dx,
                               .drouter = router_of(g[LinearRole::router]),
                               .accumulate = step_.parameters.accumulates(),
                               .addend = addend,
                               .dw = dw,
                               .z = routing.z,
                               .index = routing.index,
                               .report = routing.report,
                               .x = h,
                               .router = router_of(w[LinearRole::router].value),
                               .rule = step_.config.moe.rule,
                               .balance = step_.options.balance,
                               .z_loss = step_.options.z_loss,
                               .loss_scale = step_.loss_scale,
                               .dlogit_bias = g.router_bias});
}

// ---- grouped rows

void MoeBlock::produce_grouped(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op) const {
  const bool delayed = !x.amax_in.empty();
  if (x.amax_out.empty() || !(delayed ? step_.parameters.delayed()->current() : shares_amaxes()))
    return op(x);
  QuantizedTensor first = x, scaled = x;
  if (delayed) {
    first.amax_out = std::exchange(first.amax_in, {});
  } else {
    // A rank without rows contributes an amax of 0 and takes part in the collective.
    if (first.rowwise.format.quantized()) first.rowwise = {};
    if (first.columnwise.format.quantized()) first.columnwise = {};
    first.keep_value = false;
    scaled.amax_in = std::exchange(scaled.amax_out, {});
  }
  op(first);
  step_.share_amax(first.amax_out, delayed ? ScaleSource::delayed : ScaleSource::current);
  op(scaled);
}

QuantizedTensor MoeBlock::with_shared_amax(QuantizedTensor x) const {
  if (shares_amaxes() && x.amax_in.empty()) x.amax_in = std::exchange(x.amax_out, {});
  return x;
}

void MoeBlock::permute_rows(QuantizedTensor& x, const QuantizedTensor& tokens, const Tensor& weights,
                            const Groups& groups) const {
  if (weights.empty()) use_known_amax(x, tokens.amax_in);
  produce_grouped(x, [&](QuantizedTensor& rows) {
    QuantizedTensor permuted = rows;
    if (tokens.value.empty()) permuted.value = {};
    step_.device.permute({permuted, tokens, weights, groups});
  });
}

QuantizedTensor MoeBlock::permute_quantized(std::int64_t layer, LinearRole role, LinearOperand operand,
                                            const QuantizedTensor& tokens, const Tensor& weights,
                                            const Groups& groups) const {
  QuantizedTensor rows;
  rows.rowwise = experts(layer, role).codes(groups.rows_capacity(), step_.config.width);
  rows.keep_value = step_.observer != nullptr;
  if (rows.keep_value || !weights.empty()) rows.value = push_rows(groups, step_.config.width);
  // The observer reads all rows, also those behind the last group, which no kernel writes.
  if (step_.observer) {
    for (const Tensor& t : {rows.value, rows.rowwise.data, rows.rowwise.scale}) step_.device.zero({t});
  }
  step_.device.permute({rows, tokens, weights, groups});
  QuantizedTensor observed = rows;
  // The value was dequantized from FP8 data, so it is not the one that was cast.
  if (exchange_->sends_quantized(rows.rowwise.format)) observed.value = {};
  step_.observe_codes(layer, role, operand, observed, groups);
  return rows;
}

// ---- forward

void MoeBlock::forward(std::int64_t layer, MoeSaved& saved, const BlockWeights& w, const QuantizedTensor& h,
                       const Tensor& out, ForwardKind kind) const {
  if (kind == ForwardKind::full) route(layer, saved.routing, w, h.value);
  forward_up(layer, saved, w, h);
  if (kind == ForwardKind::full) forward_down(layer, saved, w, h.value, out);
}

void MoeBlock::forward_up(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                          const QuantizedTensor& h) const {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const Scope scope(step_.arena);
  const ExpertLinear linear = experts(layer, LinearRole::gate_up);
  const QuantFormat format = step_.recipe(layer, LinearRole::gate_up).fprop.a;
  const bool value = weights_input() || !format.quantized();
  const QuantizedTensor tokens = exchange_->dispatch(
      routing, with_shared_amax(h), value && !exchange_->sends_quantized(format) ? QuantFormat{} : format,
      routing.x, keep_value_if(value), [&] {
        if (has_shared()) shared_.forward_up(layer, saved.shared, w, h);
      });
  QuantizedTensor x = linear.input(push_rows(groups, step_.config.width), true, false);
  if (weights_input() && !routing.x_amax.empty()) x.amax_out = routing.x_amax;
  permute_rows(x, tokens, weights_input() ? routing.group_weights : Tensor{}, groups);
  linear.fprop(saved.gate_up, x, with_columns(w[LinearRole::gate_up], saved.gate_up_columns), groups);
  if (!w.expert_up_bias.empty())
    step_.device.add_expert_bias({saved.gate_up, own_part(w.expert_up_bias), groups});
}

Tensor MoeBlock::shared_output(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                               const Tensor& h) const {
  const Tensor out = step_.push(step_.config.width);
  if (!step_.config.moe.shared_gate) {
    shared_.forward_down(layer, saved.shared, w, out);
  } else {
    shared_.forward_down(layer, saved.shared, w, saved.shared_raw);
    step_.device.gate_rows(
        {out, saved.shared_gate, saved.shared_raw, h, gate_of(w[LinearRole::router].value)});
  }
  return out;
}

void MoeBlock::forward_down(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w, const Tensor& h,
                            const Tensor& out) const {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const Scope scope(step_.arena);
  const ExpertLinear linear = experts(layer, LinearRole::down);
  QuantizedTensor s = linear.input(push_rows(groups, step_.config.moe.expert_ffn), true, false);
  if (!saved.swiglu_amax.empty()) s.amax_out = saved.swiglu_amax;
  produce_grouped(s, [&](QuantizedTensor& x) {
    step_.device.grouped_swiglu(
        {x, saved.gate_up, weights_input() ? Tensor{} : routing.group_weights, groups, swiglu_limit()});
  });
  const Tensor y = push_rows(groups, step_.config.width);
  linear.fprop(y, s, with_columns(w[LinearRole::down], saved.down_columns), groups);
  exchange_->combine(routing, {.out = out, .rows = y, .addend = {}, .groups = groups},
                     [&] { return has_shared() ? shared_output(layer, saved, w, h) : Tensor{}; });
  // Every rank has the biases of all experts, so those of its own tokens need no exchange.
  if (!w.expert_down_bias.empty())
    step_.device.add_routed_bias({out, w.expert_down_bias, routing.index, routing.weights});
}

// ---- backward

void MoeBlock::expert_wgrad(std::int64_t layer, LinearRole role, const BlockTensors& g,
                            const QuantizedTensor& dy, const QuantizedTensor& x, const Groups& groups) const {
  Parameters& parameters = step_.parameters;
  if (!parameters.trains_model()) return;
  parameters.commit(g[role]);
  experts(layer, role).wgrad(g[role], dy, x, groups, parameters.accumulates_experts(layer));
  if (parameters.layout().experts_apart(layer))
    parameters.reduce(parameters.layout().expert_unit(layer, role));
}

void MoeBlock::down_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                             const BlockTensors& g, const QuantizedTensor& dy, QuantizedTensor& dgate_up,
                             const Tensor& dw) const {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const Scope scope(step_.arena);
  const ExpertLinear linear = experts(layer, LinearRole::down);
  const Recipe& recipe = step_.recipe(layer, LinearRole::down);
  const QuantFormat format = recipe.dgrad.a;
  const QuantizedTensor tokens =
      exchange_->dispatch(routing, with_shared_amax(dy), format, exchange_->push_received(format),
                          keep_value_if(!recipe.flow || step_.observer));
  QuantizedTensor drows;
  if (recipe.flow) {
    drows = permute_quantized(layer, LinearRole::down, LinearOperand::dy, tokens, {}, groups);
  } else {
    drows = linear.gradient(push_rows(groups, step_.config.width));
    permute_rows(drows, tokens, {}, groups);
  }
  const Tensor ds = push_rows(groups, step_.config.moe.expert_ffn);
  linear.dgrad(ds, drows, with_columns(w[LinearRole::down], saved.down_columns), groups);
  QuantizedTensor s = linear.input(push_rows(groups, step_.config.moe.expert_ffn), false, true);
  use_known_amax(s, saved.swiglu_amax);
  produce_grouped(dgate_up, [&](QuantizedTensor& d) {
    step_.device.grouped_swiglu_backward({d, s, weights_input() ? Tensor{} : dw, ds, saved.gate_up,
                                          weights_input() ? Tensor{} : routing.group_weights, groups,
                                          swiglu_limit()});
  });
  expert_wgrad(layer, LinearRole::down, g, drows, s, groups);
}

void MoeBlock::gate_up_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                                const BlockTensors& g, const QuantizedTensor& dgate_up, const NormOutput& h,
                                const Tensor& drows) const {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const ExpertLinear linear = experts(layer, LinearRole::gate_up);
  const Recipe& recipe = step_.recipe(layer, LinearRole::gate_up);
  linear.dgrad(drows, dgate_up, with_columns(w[LinearRole::gate_up], saved.gate_up_columns), groups);
  if (!step_.parameters.trains_model()) return;
  const Tensor weights = weights_input() ? routing.group_weights : Tensor{};
  QuantizedTensor tokens{.value = h.saved.value, .rowwise = recipe.flow ? h.saved.copy : GemmOperand{}};
  if (step_.parameters.layout().experts_apart(layer))
    tokens = exchange_->received(routing, routing.x, recipe.flow ? recipe.fprop.a : QuantFormat{},
                                 keep_value_if(!recipe.flow || weights_input() || step_.observer));
  QuantizedTensor x;
  if (recipe.flow) {
    x = permute_quantized(layer, LinearRole::gate_up, LinearOperand::x, tokens, weights, groups);
  } else {
    x = linear.input(push_rows(groups, step_.config.width), false, true);
    // Received data with scales per row or block stands for values with a different amax.
    if (weights_input() || routing.x.copy.empty()) use_known_amax(x, routing.x_amax);
    permute_rows(x, tokens, weights, groups);
  }
  expert_wgrad(layer, LinearRole::gate_up, g, dgate_up, x, groups);
}

void MoeBlock::experts_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                                const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& h,
                                const Tensor& dw, const Tensor& drows) const {
  const SavedRouting& routing = saved.routing;
  const bool returns_dw = step_.parameters.layout().experts_apart(layer) && !weights_input();
  const Scope scope(step_.arena);
  const Tensor received_dw = returns_dw ? exchange_->push_received_weights(routing) : dw;
  QuantizedTensor dgate_up = experts(layer, LinearRole::gate_up)
                                 .gradient(push_rows(routing.groups, 2 * step_.config.moe.expert_ffn));
  const Tensor& up_bias = g.expert_up_bias;
  dgate_up.keep_value = dgate_up.keep_value || !up_bias.empty();
  down_backward(layer, saved, w, g, dy, dgate_up, received_dw);
  if (returns_dw) exchange_->return_rows(routing, dw, received_dw);
  gate_up_backward(layer, saved, w, g, dgate_up, h, drows);
  if (up_bias.empty()) return;
  step_.parameters.commit(up_bias);
  const bool accumulates = step_.parameters.accumulates();
  // Other ranks compute the gradients of their experts' biases, which are added up with those of the block.
  if (exchange_->ranks() > 1 && !accumulates) step_.device.zero({up_bias});
  step_.device.expert_bias_backward({own_part(up_bias), accumulates, dgate_up.value, routing.groups});
  step_.device.routed_bias_backward(
      {g.expert_down_bias, accumulates, dw, dy.value, w.expert_down_bias, routing.index, routing.weights});
}

QuantizedTensor MoeBlock::gate_backward(std::int64_t layer, const MoeSaved& saved, const BlockTensors& g,
                                        const QuantizedTensor& dy, const Tensor& h, const Tensor& dz) const {
  QuantizedTensor draw = step_.operands.push_gradient(step_.push(step_.config.width),
                                                      step_.linear(layer, LinearRole::shared_down));
  step_.device.gate_rows_backward({draw.value, dz, dy.value, saved.shared_raw, saved.shared_gate});
  step_.device.bias_backward({gate_of(g[LinearRole::router]), step_.parameters.accumulates(), h, dz});
  step_.produce_quantized(draw, [&](QuantizedTensor& d) { step_.device.quantize({d}); });
  return draw;
}

Tensor MoeBlock::shared_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                                 const BlockTensors& g, const QuantizedTensor& dy,
                                 const NormOutput& norm) const {
  const Linear consumer = step_.linear(layer, LinearRole::shared_gate_up);
  NormOutput input = norm;
  if (consumer.recipe().flow) {
    step_.observe_codes(layer, LinearRole::shared_gate_up, LinearOperand::x,
                        {.value = norm.saved.value, .rowwise = norm.saved.copy});
  } else if (consumer.x_columnwise().quantized()) {
    QuantizedTensor columns = make_quantized_tensor(norm.saved.value, {}, consumer.x_columnwise());
    columns.amax_in = step_.linear(layer, norm_role()).slots().x.known;
    if (!weights_input()) use_known_amax(columns, saved.routing.x_amax);
    step_.operands.push_columnwise(columns, consumer.x_columnwise());
    step_.produce_quantized(columns, [&](QuantizedTensor& x) { step_.device.quantize({x}); });
    input.saved.copy = columns.columnwise;
  }
  if (!step_.config.moe.shared_gate) return shared_.backward(layer, saved.shared, w, g, dy, input);
  const Tensor dz = step_.push(DType::f32, step_.M, 1);
  const QuantizedTensor draw = gate_backward(layer, saved, g, dy, norm.saved.value, dz);
  const Tensor dh = shared_.backward(layer, saved.shared, w, g, draw, input);
  step_.device.add_bias({dh, gate_of(w[LinearRole::router].value), dz});
  return dh;
}

Tensor MoeBlock::backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& norm) const {
  const SavedRouting& routing = saved.routing;
  const Groups& groups = routing.groups;
  const std::int64_t M = step_.M, C = step_.config.width;
  const Tensor dh = step_.push(C);
  NormOutput known = norm;
  if (const Linear consumer = step_.linear(layer, norm_role());
      consumer.recipe().flow && known.saved.copy.empty()) {
    const QuantizedTensor again =
        recompute_norm_output(step_, consumer, norm, [](QuantizedTensor& x) { x.keep_value = true; });
    known.saved.value = again.value;
    known.saved.copy = again.rowwise;
  }
  if (known.saved.value.empty()) known.saved.value = recompute_norm(step_, norm);
  const Tensor& h = known.saved.value;
  const Tensor dw = step_.push(DType::f32, M, step_.config.moe.rule.top_k);
  const Tensor drows = push_rows(groups, C);
  experts_backward(layer, saved, w, g, dy, known, dw, drows);
  const auto of_shared = [&] {
    return has_shared() ? shared_backward(layer, saved, w, g, dy, known) : Tensor{};
  };
  const Tensor sum = step_.push(DType::f32, M, C);
  step_.parameters.commit(g[LinearRole::router]);
  if (weights_input()) {  // dw is computed from the rows' gradients
    const Tensor rows_sum = step_.push(DType::f32, M, C);
    exchange_->combine(routing, {rows_sum, drows, {}, routing.weights, dw, h, groups}, of_shared);
    route_backward(routing, w, g, sum, dw, h, rows_sum);
    step_.device.convert({dh, sum});
  } else {
    exchange_->combine(routing, {.out = dh, .rows = drows, .addend = {}, .groups = groups}, [&] {
      const Tensor addend = of_shared();
      route_backward(routing, w, g, sum, dw, h, addend);
      return sum;
    });
  }
  return dh;
}

}  // namespace precbench
