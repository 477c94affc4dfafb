// Mixture of experts in place of a block's SwiGLU, forward and backward. See transformer.h.
//
//   route      z = h Wr^T; each token's experts and routing weights
//   group      assigns rows to experts
//   experts    permute, gate_up, SwiGLU times the routing weight, down
//   unpermute  sums a token's slots and adds the shared expert's output (a SwiGLU over all tokens)
//
// Forward saves the routing and gate_up. Backward makes X's columnwise copy again, from the norm's output or
// from its rowwise data if wgrad transposes it.
//
// With expert parallelism rows come from all ranks of a group and return to them (mixture_exchange.cpp).
#include <algorithm>
#include <utility>

#include "models/transformer/transformer.h"

namespace precbench {
namespace {

/// Uses `known`, unless it is empty, for the scale instead of the rows' own amax.
void take_amax(QuantizedTensor& rows, const Tensor& known) {
  if (known.empty()) return;
  rows.amax_in = known;
  rows.amax_out = {};
}

Weight with_columns(const Weight& weight, const GemmOperand& columns) {
  return {weight.value, weight.rowwise, columns};
}

}  // namespace

ExpertLinear Transformer::experts(std::int64_t layer, Role role) const {
  LinearSlots slots = linear(layer, role).slots();
  for (Tensor* amaxes : {&slots.w.known, &slots.w.staged})
    if (!amaxes->empty()) *amaxes = amaxes->elements(first_expert(), own_experts());
  return {device_, arena_, options_.recipe_of(layer, role), own_experts(), slots};
}

void Transformer::produce_grouped(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op) {
  const bool delayed = !x.amax_in.empty();
  if (x.amax_out.empty() || !(delayed ? parameters_.delayed()->current() : options_.reduce_amax))
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
  share_amax(first.amax_out, delayed);
  op(scaled);
}

QuantizedTensor Transformer::with_shared_amax(QuantizedTensor x) const {
  if (options_.reduce_amax && x.amax_in.empty()) x.amax_in = std::exchange(x.amax_out, {});
  return x;
}

void Transformer::permute_rows(QuantizedTensor& x, const QuantizedTensor& tokens, const Tensor& weights,
                               const Groups& groups) {
  if (weights.empty()) take_amax(x, tokens.amax_in);
  produce_grouped(x, [&](QuantizedTensor& rows) {
    QuantizedTensor made = rows;
    if (tokens.value.empty()) made.value = {};
    device_.permute({made, tokens, weights, groups});
  });
}

std::int64_t Transformer::most_rows() const {
  return expert_ranks() * std::min(peer_rows(), most_rows_of_expert(config_.moe.rule, M_, options_.capacity));
}

std::int64_t Transformer::most_rows_of_all() const {
  const std::int64_t E = own_experts();
  return std::min(group_tokens() * std::min(config_.moe.rule.top_k, E), most_rows() * E);
}

void Transformer::push_routing(std::int64_t layer, SavedRouting& saved) {
  const RoutingRule& rule = config_.moe.rule;
  const std::int64_t E = own_experts(), K = rule.top_k, rows = most_rows_of_all();
  const std::int64_t pad =
      std::max({options_.group_rows, group_padding(options_.recipe_of(layer, Role::gate_up)),
                group_padding(options_.recipe_of(layer, Role::down))});
  saved.z = push(DType::f32, M_, rule.experts);
  saved.index = push(DType::i32, M_, K);
  saved.weights = push(DType::f32, M_, K);
  saved.report = push(DType::f32, 1, parameters_.routers()->report_size());
  saved.group_weights = expert_ranks() > 1 ? push(DType::f32, group_tokens(), K) : saved.weights;
  saved.groups = {.offsets = push(DType::i32, 1, E + 1),
                  .counts = push(DType::i32, 1, E),
                  .row_of = push(DType::i32, group_tokens(), K),
                  .source = push(DType::i32, 1, rows_capacity(rows, E, pad)),
                  .pad = pad,
                  .rows_expected = rows_at_even_load(rule, M_, options_.capacity, expert_ranks(),
                                                     options_.exchange.slots)};
  if (expert_ranks() > 1 && !gathers()) push_peers(saved);
}

Tensor Transformer::keep_slots(const Tensor& index, const Tensor& report) {
  const RoutingRule& rule = config_.moe.rule;
  const std::int64_t E = rule.experts, K = rule.top_k,
                     most = most_rows_of_expert(rule, M_, options_.capacity);
  const Tensor kept = push(DType::i32, M_, K);
  const Scope scope(arena_);
  device_.group({.groups = {.offsets = push(DType::i32, 1, E + 1),
                            .counts = push(DType::i32, 1, E),
                            .row_of = push(DType::i32, M_, K),
                            .source = push(DType::i32, 1, std::min(M_ * K, most * E))},
                 .report = report,
                 .index = index,
                 .most = most,
                 .kept = kept});
  return kept;
}

void Transformer::route(std::int64_t layer, SavedRouting& saved, const BlockWeights& w, const Tensor& h) {
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
  const Scope scope(arena_);
  const Tensor report = saved.report.elements(rule.experts + 2, 3);
  const bool ahead = expert_ranks() > 1 && options_.capacity > 0;
  const Tensor own_report = ahead ? push(DType::f32, 1, 3) : Tensor{};
  // Routing of all tokens that arrive at this rank, which forms its groups from them.
  const Tensor index = gather_routing(saved, ahead ? keep_slots(saved.index, own_report) : saved.index);
  device_.group({saved.groups, report, index, most_rows(), first_expert()});
  // With --capacity each rank counts its own dropped slots. Of the received ones none is dropped.
  if (ahead) device_.convert({report.elements(2, 1), own_report.elements(2, 1)});
  routers.note(layer, micro_step, saved.report);
  routers.note_choices(layer, micro_step, saved.index);
}

Transformer::SwigluLayers Transformer::shared_layers(const Saved& saved) const {
  return {Role::shared_gate_up, Role::shared_down, config_.moe.shared_ffn, saved.shared_gate_up,
          saved.shared_swiglu_amax};
}

void Transformer::mixture_forward(std::int64_t layer, Saved& saved, const BlockWeights& w,
                                  const QuantizedTensor& h, bool again) {
  SavedRouting& routing = saved.routing;
  const bool at_input = config_.moe.weight_at == WeightAt::input, shared = config_.moe.shared_ffn > 0;
  if (!again) route(layer, routing, w, h.value);
  const Groups& groups = routing.groups;
  {
    const Scope scope(arena_);
    const ExpertLinear lin = experts(layer, Role::gate_up);
    const QuantFormat format = options_.recipe_of(layer, Role::gate_up).fprop.a;
    const bool value = at_input || !format.quantized();
    const QuantizedTensor tokens =
        dispatch(routing, with_shared_amax(h), value && !as_codes(format) ? QuantFormat{} : format, routing.x,
                 value, [&] {
                   if (shared) fprop(layer, Role::shared_gate_up, saved.shared_gate_up, h, w);
                 });
    QuantizedTensor x = lin.input(push_rows(groups, config_.width), true, false);
    if (at_input && !routing.x_amax.empty()) x.amax_out = routing.x_amax;
    permute_rows(x, tokens, at_input ? routing.group_weights : Tensor{}, groups);
    lin.fprop(saved.gate_up, x, with_columns(w[Role::gate_up], saved.gate_up_columns), groups);
  }
  if (again) return;
  const Scope scope(arena_);
  const ExpertLinear lin = experts(layer, Role::down);
  QuantizedTensor s = lin.input(push_rows(groups, config_.moe.expert_ffn), true, false);
  if (!saved.swiglu_amax.empty()) s.amax_out = saved.swiglu_amax;
  produce_grouped(s, [&](QuantizedTensor& made) {
    device_.grouped_swiglu({made, saved.gate_up, at_input ? Tensor{} : routing.group_weights, groups});
  });
  const Tensor y = push_rows(groups, config_.width);
  lin.fprop(y, s, with_columns(w[Role::down], saved.down_columns), groups);
  combine(routing, {.out = branch_, .rows = y, .addend = {}, .groups = groups}, [&] {
    if (!shared) return Tensor{};
    const Tensor out = push(config_.width);
    swiglu_forward(layer, shared_layers(saved), w, out);
    return out;
  });
}

QuantizedTensor Transformer::push_codes(std::int64_t layer, Role role, LinearOperand operand,
                                        const QuantizedTensor& tokens, const Tensor& weights,
                                        const Groups& groups) {
  QuantizedTensor rows;
  rows.rowwise = experts(layer, role).codes(groups.rows_capacity(), config_.width);
  rows.keep_value = quantization_observer_ != nullptr;
  if (rows.keep_value || !weights.empty()) rows.value = push_rows(groups, config_.width);
  // The observer reads all rows, also those behind the last group, which no kernel writes.
  if (quantization_observer_) {
    for (const Tensor& t : {rows.value, rows.rowwise.data, rows.rowwise.scale}) device_.zero({t});
  }
  device_.permute({rows, tokens, weights, groups});
  QuantizedTensor seen = rows;
  // The value is decoded from FP8 data, so it is not the one that was cast.
  if (expert_ranks() > 1 && as_codes(rows.rowwise.format)) seen.value = {};
  observe_codes(layer, role, operand, seen, groups);
  return rows;
}

void Transformer::experts_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                                   const BlockTensors& g, const QuantizedTensor& dx, const Tensor& h,
                                   const Tensor& dw, const Tensor& drows) {
  const Groups& groups = saved.routing.groups;
  const bool at_input = config_.moe.weight_at == WeightAt::input;
  const ExpertLinear gate_up = experts(layer, Role::gate_up), down = experts(layer, Role::down);
  const Tensor weights = saved.routing.group_weights;
  const bool apart = parameters_.layout().experts_apart(layer),
             accumulate = parameters_.accumulates_experts(layer);
  const auto wgrad = [&](const ExpertLinear& lin, Role role, const QuantizedTensor& dy,
                         const QuantizedTensor& x) {
    parameters_.commit(g[role]);
    lin.wgrad(g[role], dy, x, groups, accumulate);
    if (apart) parameters_.reduce(parameters_.layout().expert_unit(layer, role));
  };
  const Scope scope(arena_);
  const Tensor slots_dw = apart && !at_input ? push_arrived_weights(saved.routing) : dw;
  QuantizedTensor dgate_up = gate_up.gradient(push_rows(groups, 2 * config_.moe.expert_ffn));
  {
    const Scope inner(arena_);
    const bool flow = options_.recipe_of(layer, Role::down).flow;
    const QuantFormat format = options_.recipe_of(layer, Role::down).dgrad.a;
    const QuantizedTensor tokens = dispatch(saved.routing, with_shared_amax(dx), format, push_arrived(format),
                                            !flow || quantization_observer_);
    QuantizedTensor dy;
    if (flow) {
      dy = push_codes(layer, Role::down, LinearOperand::dy, tokens, {}, groups);
    } else {
      dy = down.gradient(push_rows(groups, config_.width));
      permute_rows(dy, tokens, {}, groups);
    }
    const Tensor ds = push_rows(groups, config_.moe.expert_ffn);
    down.dgrad(ds, dy, with_columns(w[Role::down], saved.down_columns), groups);
    QuantizedTensor s = down.input(push_rows(groups, config_.moe.expert_ffn), false, true);
    take_amax(s, saved.swiglu_amax);
    produce_grouped(dgate_up, [&](QuantizedTensor& d) {
      device_.grouped_swiglu_backward(
          {d, s, at_input ? Tensor{} : slots_dw, ds, saved.gate_up, at_input ? Tensor{} : weights, groups});
    });
    wgrad(down, Role::down, dy, s);
  }
  if (apart && !at_input) bring_back(saved.routing, dw, slots_dw);
  gate_up.dgrad(drows, dgate_up, with_columns(w[Role::gate_up], saved.gate_up_columns), groups);
  const Tensor of_rows = at_input ? weights : Tensor{};
  const Recipe& recipe = options_.recipe_of(layer, Role::gate_up);
  QuantizedTensor tokens{.value = h, .rowwise = recipe.flow ? saved.h2_form : GemmOperand{}};
  if (apart)
    tokens = arrived(saved.routing, saved.routing.x, recipe.flow ? recipe.fprop.a : QuantFormat{},
                     !recipe.flow || at_input || quantization_observer_);
  QuantizedTensor x;
  if (recipe.flow) {
    x = push_codes(layer, Role::gate_up, LinearOperand::x, tokens, of_rows, groups);
  } else {
    x = gate_up.input(push_rows(groups, config_.width), false, true);
    // Received data with scales per row or block stands for values with a different amax.
    if (at_input || saved.routing.x.codes.empty()) take_amax(x, saved.routing.x_amax);
    permute_rows(x, tokens, of_rows, groups);
  }
  wgrad(gate_up, Role::gate_up, dgate_up, x);
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
    columns.amax_in = linear(layer, normed_role(layer)).slots().x.known;
    if (config_.moe.weight_at != WeightAt::input) take_amax(columns, saved.routing.x_amax);
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
  const auto of_shared = [&] {
    return config_.moe.shared_ffn > 0 ? shared_backward(layer, saved, w, g, dx, known) : Tensor{};
  };
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
  if (config_.moe.weight_at == WeightAt::input) {  // dw is computed from the rows' gradients
    const Tensor rows_sum = push(DType::f32, M_, config_.width);
    combine(routing, {rows_sum, drows, {}, routing.weights, dw, h, groups}, of_shared);
    through_router(sum, rows_sum);
    device_.convert({dh, sum});
  } else {
    combine(routing, {.out = dh, .rows = drows, .addend = {}, .groups = groups}, [&] {
      through_router(sum, of_shared());
      return sum;
    });
  }
  return dh;
}

}  // namespace precbench
