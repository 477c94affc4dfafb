// Memory of a training step: gradients between blocks, a block's saved tensors, and the quantized copies of
// both.
#include "models/transformer/transformer.h"

namespace precbench {
namespace {

bool one_scale(const QuantFormat& format) { return format.granularity == Granularity::tensor; }

/// Returns true if a copy of X is scaled by the tensor's own amax.
bool has_amax_of_x(const Linear& linear) {
  return linear.slots().x.known.empty() &&
         (one_scale(linear.x_rowwise()) || one_scale(linear.x_columnwise()));
}

}  // namespace

void Transformer::push_shared(const Tensor& dx0) {
  losses_ = push(DType::f32, M_, 1);
  x0_ = push(config_.width);
  branch_ = push(config_.width);
  mid_ = options_.recompute ? push(config_.width) : Tensor{};
  // The slots' gradients feed the down layers, so any quantized down layer determines the copies they need.
  std::int64_t layer = 0;
  while (layer + 1 < config_.layers && !options_.recipe_of(layer, Role::down).quantized()) ++layer;
  const Linear consumer = linear(layer, Role::down);
  slot_ = 0;
  const bool columns = takes_columns(0) || takes_columns(config_.layers - 1);
  slots_[config_.layers % 2] = push_gradient(dx0, consumer, columns);
  slots_[1 - config_.layers % 2] = push_gradient(push(config_.width), consumer, columns);
}

void Transformer::push_row(QuantizedTensor& operand, const QuantFormat& format) {
  if (!format.quantized()) return;
  operand.rowwise =
      push_gemm_operand(arena_, Segment::activations, format, operand.value.rows, operand.value.cols);
  push_amax(operand, format);
}

void Transformer::push_col(QuantizedTensor& operand, const QuantFormat& format) {
  if (!format.quantized()) return;
  operand.columnwise =
      push_gemm_operand(arena_, Segment::activations, format, operand.value.cols, operand.value.rows);
  push_amax(operand, format);
}

void Transformer::push_amax(QuantizedTensor& operand, const QuantFormat& format) {
  if (one_scale(format) && operand.amax_out.empty() && operand.amax_in.empty())
    operand.amax_out = push(DType::f32, 1, 1);
}

void Transformer::use_slot(QuantizedTensor& operand, const OperandSlot& slot) {
  operand.random = slot.random;
  if (slot.known.empty()) return;
  operand.amax_in = slot.known;
  operand.amax_out = slot.staged;
}

QuantizedTensor Transformer::push_gradient(const Tensor& value, const Linear& consumer, bool columns) {
  QuantizedTensor operand = make_quantized_tensor(value, consumer.dy_rowwise(), consumer.dy_columnwise());
  use_slot(operand, consumer.slots().dy);
  push_row(operand, consumer.dy_rowwise());
  if (columns && !consumer.recipe().flow) push_col(operand, consumer.dy_columnwise());
  return operand;
}

bool Transformer::takes_columns(std::int64_t layer) const {
  return !config_.has_experts(layer) || config_.moe.shared_ffn > 0;
}

QuantizedTensor Transformer::gradient_in(int slot, std::int64_t consumer_layer) const {
  const QuantizedTensor& memory = slots_[slot];
  if (consumer_layer < 0) return make_quantized_tensor(memory.value, {}, {});
  const Linear consumer = linear(consumer_layer, Role::down);
  if (!consumer.recipe().quantized()) return make_quantized_tensor(memory.value, {}, {});
  QuantizedTensor gradient = memory;
  use_slot(gradient, consumer.slots().dy);
  if (!takes_columns(consumer_layer) && consumer.dy_columnwise().quantized()) gradient.columnwise = {};
  return gradient;
}

/// Allocates what every block saves from forward to backward, also with recomputation.
void Transformer::push_saved(std::int64_t layer, Saved& saved) {
  const Linear consumer = linear(layer, Role::down);
  saved = {};  // the recipe may have changed since the previous step
  saved.x = layer == 0 ? x0_ : push(config_.width);
  saved.rstd1 = push(DType::f32, M_, 1);
  // Recomputation stops before SwiGLU's forward. Backward reads this amax, so it must be saved.
  if (has_amax_of_x(consumer)) saved.swiglu_amax = push(DType::f32, 1, 1);
  if (!config_.has_experts(layer)) return;
  push_routing(layer, saved.routing);
  if (config_.moe.shared_ffn > 0 && !saved.swiglu_amax.empty())
    saved.shared_swiglu_amax = push(DType::f32, 1, 1);
}

void Transformer::push_inner(std::int64_t layer, Saved& saved) {
  const std::int64_t C = config_.width;
  const auto keep_normed = [&](Role role, Tensor& value, GemmOperand& form) {
    const Linear consumer = linear(layer, role);
    // Experts make the columnwise copy of their own rows in backward.
    const bool experts = role == Role::gate_up && config_.has_experts(layer);
    if (consumer.recipe().flow)
      form = push_gemm_operand(arena_, Segment::activations, consumer.x_rowwise(), M_, C);
    else if (consumer.x_columnwise().quantized() && !experts)
      form = push_gemm_operand(arena_, Segment::activations, consumer.x_columnwise(), C, M_);
    else if (!consumer.x_columnwise().quantized() && !options_.recompute_norms)
      value = push(C);
  };
  saved.raw_qkv = push(attention_shape_.qkv_width());
  saved.attention = push(attention_shape_.q_width());
  const Linear o = linear(layer, Role::o);
  if (o.recipe().flow)
    saved.attention_codes =
        push_gemm_operand(arena_, Segment::activations, o.x_rowwise(), M_, attention_shape_.q_width());
  else if (o.slots().x.known.empty() && one_scale(o.x_rowwise()) && one_scale(o.x_columnwise()))
    saved.attention_amax = push(DType::f32, 1, 1);
  saved.lse = push(DType::f32, config_.heads, M_);
  saved.mid = mid_.empty() ? push(C) : mid_;
  saved.rstd2 = push(DType::f32, M_, 1);
  saved.gate_up = config_.has_experts(layer) ? push_rows(saved.routing.groups, 2 * config_.moe.expert_ffn)
                                             : push(2 * config_.ffn);
  if (config_.has_experts(layer) && expert_ranks() > 1)
    saved.routing.x = push_arrived(options_.recipe_of(layer, Role::gate_up).fprop.a);
  if (config_.has_experts(layer) && options_.reduce_amax && has_amax_of_x(linear(layer, Role::gate_up)))
    saved.routing.x_amax = push(DType::f32, 1, 1);
  if (config_.has_experts(layer) && config_.moe.shared_ffn > 0)
    saved.shared_gate_up = push(2 * config_.moe.shared_ffn);
  leave_weight_columns(saved);
  // Weights gathered for one pass must leave memory after it, quantized copies included.
  if (config_.has_experts(layer) && parameters_.keeps_experts(layer)) {
    const std::int64_t E = own_experts(), F = config_.moe.expert_ffn;
    saved.gate_up_columns = experts(layer, Role::gate_up).weight_columns(E * 2 * F, C);
    saved.down_columns = experts(layer, Role::down).weight_columns(E * C, F);
  }
  keep_normed(Role::qkv, saved.h1, saved.h1_form);
  keep_normed(Role::gate_up, saved.h2, saved.h2_form);
}

QuantizedTensor Transformer::normed(const Linear& consumer, const Tensor& value, const GemmOperand& form) {
  QuantizedTensor h = make_quantized_tensor(value.empty() ? push(config_.width) : value, consumer.x_rowwise(),
                                            consumer.x_columnwise());
  use_slot(h, consumer.slots().x);
  if (consumer.recipe().flow) {
    h.rowwise = form;
  } else {
    push_row(h, consumer.x_rowwise());
    if (consumer.x_columnwise().quantized()) h.columnwise = form;
    push_amax(h, consumer.x_columnwise());
  }
  h.keep_value = !consumer.x_rowwise().quantized() || !value.empty() || quantization_observer_;
  return h;
}

}  // namespace precbench
