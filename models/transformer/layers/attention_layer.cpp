// Attention with its linear layers, forward and backward. See attention_layer.h.
#include "models/transformer/layers/attention_layer.h"

#include <cmath>
#include <limits>
#include <optional>

namespace precbench {

void AttentionLayer::push_saved(std::int64_t layer, AttentionSaved& saved) const {
  const AttentionShape& shape = step_.attention_shape;
  saved.attention = step_.push(shape.out_width());
  const Linear o = step_.linear(layer, LinearRole::o);
  if (o.recipe().flow)
    saved.copy = step_.operands.push(o.x_rowwise(), step_.M, shape.out_width());
  else if (step_.options.kept.attention == KeptAs::quantized && o.x_columnwise().quantized() &&
           !step_.options.recompute.selective)
    saved.copy = step_.operands.push(o.x_columnwise(), shape.out_width(), step_.M);
  else if (o.slots().x.known.empty() && has_tensor_scale(o.x_rowwise()) && has_tensor_scale(o.x_columnwise()))
    saved.attention_amax = step_.push(DType::f32, 1, 1);
  saved.lse = step_.push(DType::f32, step_.config.heads, step_.M);
}

void AttentionLayer::push_qkv(AttentionSaved& saved) const {
  saved.raw_qkv = step_.push(step_.attention_shape.qkv_width());
  if (!latent()) return;
  saved.projected = step_.push(projected_width());
  saved.kv_rstd = step_.push(DType::f32, step_.M, 1);
  if (step_.config.latent.q_rank > 0) saved.q_rstd = step_.push(DType::f32, step_.M, 1);
}

void AttentionLayer::push_selected(std::int64_t layer, AttentionSaved& saved) const {
  push_saved(layer, saved);
  if (!step_.keeps_output(layer, LinearRole::qkv)) return;
  saved.q = step_.push(step_.attention_shape.q_width());
  saved.v = step_.push(step_.attention_shape.kv_width() / 2);
}

void AttentionLayer::forward_qkv(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                 const QuantizedTensor& h, ForwardKind kind) const {
  const Tensor &q = saved.q, &v = saved.v, &qkv = saved.raw_qkv;
  if (kind == ForwardKind::recompute && !q.empty()) {
    step_.device.copy_columns({qkv, 0, q});
    step_.device.copy_columns({qkv, q.cols + v.cols, v});
    return step_.fprop_columns(layer, LinearRole::qkv, qkv, q.cols, v.cols, h, w);
  }
  if (splits_qkv(layer))
    split_qkv_forward(layer, qkv, h, w);
  else
    step_.fprop(layer, LinearRole::qkv, latent() ? saved.projected : qkv, h, w);
  if (q.empty()) return;
  step_.device.copy_columns({q, 0, qkv});
  step_.device.copy_columns({v, q.cols + v.cols, qkv});
}

void AttentionLayer::recompute_qkv(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                   const QuantizedTensor& h) const {
  forward_qkv(layer, saved, w, h);
  finish_qkv(layer, saved, w);
}

void AttentionLayer::finish_qkv(std::int64_t layer, const AttentionSaved& saved,
                                const BlockWeights& w) const {
  if (latent())
    latent_forward(layer, saved, w);
  else if (norms_after_rope())
    rotate_only(saved.raw_qkv, layer, w);
  else if (!step_.config.norms_queries_and_keys(layer))
    apply_rope(layer, saved.raw_qkv, saved.raw_qkv, w);
}

void AttentionLayer::forward_output(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                    const Tensor& out) const {
  const Scope scope(step_.arena);
  // Without QK-norm, RoPE is undone by its inverse, so it runs in place.
  const Tensor qkv = step_.config.norms_queries_and_keys(layer)
                         ? step_.push(step_.attention_shape.qkv_width())
                         : saved.raw_qkv;
  if (norms_after_rope()) rotate_only(saved.raw_qkv, layer, w);
  if (latent())
    latent_forward(layer, saved, w);
  else
    apply_rope(layer, qkv, saved.raw_qkv, w);
  const Linear o = step_.linear(layer, LinearRole::o);
  QuantizedTensor x = make_quantized_tensor(saved.attention, o.x_rowwise(), {});
  x.amax_out = saved.attention_amax;
  use_slot(x, o.slots().x);
  if (o.recipe().flow) {
    x.rowwise = saved.copy;
  } else {
    x.columnwise = saved.copy;
    step_.operands.push_rowwise(x, o.x_rowwise());
    if (!saved.copy.empty()) step_.operands.push_amax(x, o.x_columnwise());
  }
  step_.produce_quantized(x, [&](QuantizedTensor& a) { attend(layer, a, saved.lse, qkv, w); });
  step_.observe(layer, LinearRole::o, LinearOperand::x, x);
  step_.observe_codes(layer, LinearRole::o, LinearOperand::x, x);
  project(layer, x, w, out);
}

void AttentionLayer::repeat_output(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                   const Tensor& out) const {
  finish_qkv(layer, saved, w);
  const Scope scope(step_.arena);
  project(layer,
          step_.quantized_for(GemmRole::fprop, layer, LinearRole::o, saved.attention, saved.attention_amax),
          w, out);
}

void AttentionLayer::project(std::int64_t layer, const QuantizedTensor& x, const BlockWeights& w,
                             const Tensor& out) const {
  step_.sum_over_tensor(out, [&](const Tensor& y) { step_.fprop(layer, LinearRole::o, y, x, w); });
  if (!w.o_bias.empty()) step_.device.add_bias({out, w.o_bias});
}

void AttentionLayer::output_wgrad(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                  const BlockTensors& g, const QuantizedTensor& dy) const {
  const Scope scope(step_.arena);
  const Linear o = step_.linear(layer, LinearRole::o);
  if (saved.copy.empty())
    return step_.wgrad(
        layer, LinearRole::o, g, dy,
        step_.quantized_for(GemmRole::wgrad, layer, LinearRole::o, saved.attention, saved.attention_amax), w);
  QuantizedTensor x = make_quantized_tensor(saved.attention, {}, o.x_columnwise());
  (o.recipe().flow ? x.rowwise : x.columnwise) = saved.copy;
  step_.wgrad(layer, LinearRole::o, g, dy, x, w);
}

Tensor AttentionLayer::backward(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                                const BlockTensors& g, const QuantizedTensor& dy,
                                const NormOutput& norm) const {
  const AttentionShape& shape = step_.attention_shape;
  const Linear lin = step_.linear(layer, LinearRole::qkv);
  QuantizedTensor dqkv =
      step_.operands.push_gradient(step_.push(latent() ? projected_width() : shape.qkv_width()), lin);
  dqkv.keep_value = !lin.dy_rowwise().quantized() || !lin.dy_columnwise().quantized() ||
                    step_.config.qkv_bias || step_.observer;
  {
    const Scope inner(step_.arena);
    output_wgrad(layer, saved, w, g, dy);
    if (!w.o_bias.empty()) step_.device.bias_backward({g.o_bias, step_.parameters.accumulates(), dy.value});
    const Tensor dout = step_.push(shape.out_width());
    step_.dgrad(layer, LinearRole::o, dout, dy, w, saved.attention);
    Tensor qkv = saved.raw_qkv;
    if (step_.config.norms_queries_and_keys(layer)) {
      qkv = step_.push(shape.qkv_width());
      apply_rope(layer, qkv, saved.raw_qkv, w);
    }
    const Tensor drope = step_.push(shape.qkv_width());
    attend_backward(layer, drope, dout, saved, qkv, w, g);
    if (latent())
      latent_backward(layer, dqkv, drope, saved, w, g);
    else
      rope_backward(layer, dqkv, drope, saved.raw_qkv, w, g);
    if (step_.config.qkv_bias)
      step_.device.bias_backward({g.qkv_bias, step_.parameters.accumulates(), dqkv.value});
    step_.observe(layer, LinearRole::qkv, LinearOperand::dy, dqkv);
    step_.observe_codes(layer, LinearRole::qkv, LinearOperand::dy, dqkv);
  }
  const Tensor dh = step_.push_stream();
  if (splits_qkv(layer)) {
    const Scope parts(step_.arena);
    const Tensor& value = norm.saved.value;
    const Tensor x = value.empty() ? recompute_norm(step_, norm) : value;
    step_.sum_over_tensor(
        dh, [&](const Tensor& partial) { split_qkv_backward(layer, partial, dqkv.value, w, g, x); });
  } else {
    norm_dgrad(step_, layer, LinearRole::qkv, dh, dqkv, w, norm);
    norm_wgrad(step_, layer, LinearRole::qkv, g, dqkv, w, norm);
  }
  return dh;
}

namespace {

/// Returns true if a layer's queries and keys have a norm without trained gains.
bool has_unit_gains(const ModelConfig& config, std::int64_t layer) {
  return config.norms_queries_and_keys(layer) && !config.qk_norm;
}

bool has_local_rope(const ModelConfig& config, std::int64_t layer) {
  return config.block.local_rope_theta != 0 && config.window(layer) != 0;
}

/// Scaling that makes all angles 0.
const RopeScaling kNoRotation = {.kind = RopeScaling::Kind::linear,
                                 .factor = std::numeric_limits<double>::infinity()};

/// Returns the angles of a layer.
RopeScaling scaling_of(const ModelConfig& config, std::int64_t layer) {
  if (!config.has_rope(layer)) return kNoRotation;
  return has_local_rope(config, layer) ? RopeScaling{} : config.rope_scaling;
}

/// Returns the options of the first of the two ops that compute a QK-norm after RoPE: bias and RoPE.
RopeOptions without_norm(RopeOptions options) {
  options.q_norm = options.k_norm = {};
  options.scale = 1;
  return options;
}

/// Returns the options of the second: the norm, and the scale of attention.
RopeOptions norm_alone(RopeOptions options) {
  options.bias = {};
  options.scaling = kNoRotation;
  return options;
}

/// Returns the factor on queries and keys that makes attention's scale of scores, 1 / sqrt(head_dim), the model's.
double query_and_key_scale(const ModelConfig& config) {
  const double scale = config.block.attention_scale;
  return scale == 0 ? 1 : std::sqrt(scale * std::sqrt(static_cast<double>(config.head_dim)));
}

}  // namespace

// A norm without gains is one with gains of 1. RoPE without an attention_factor does not change the root mean square of a head, so the
// norm may come first.
RopeOptions AttentionLayer::rope_options(std::int64_t layer, const BlockWeights& w) const {
  const ModelConfig& config = step_.config;
  const SequencePart& sequence = step_.sequence;
  AttentionShape rows = step_.attention_shape;
  rows.B *= sequence.halves();
  RopeOptions options{.shape = rows,
                      .theta = static_cast<float>(
                          has_local_rope(config, layer) ? config.block.local_rope_theta : config.rope_theta),
                      .norm_eps = static_cast<float>(config.norm_eps),
                      .q_norm = w.q_norm,
                      .k_norm = w.k_norm,
                      .gain_offset = step_.gain_offset(),
                      .bias = w.qkv_bias,
                      .scaling = scaling_of(config, layer),
                      .rotated = config.block.rotary_dim,
                      .scale = query_and_key_scale(config),
                      .offset = sequence.start(0),
                      .late_offset = sequence.whole() ? std::nullopt : std::optional(sequence.start(1)),
                      .positions = step_.positions,
                      .position_count = step_.options.T};
  if (has_unit_gains(config, layer)) {
    const Tensor zeros = step_.push(step_.options.activations, 1, config.head_dim);
    step_.device.zero({zeros});
    options.q_norm = options.k_norm = zeros;
    options.gain_offset = 1;
  }
  return options;
}

void AttentionLayer::scale_last_queries(std::int64_t layer, const Tensor& qkv) const {
  const BlockForm& block = step_.config.block;
  const std::int64_t T = step_.options.T;
  if (T != block.temperature_positions || step_.config.has_rope(layer)) return;
  for (std::int64_t row = T - 1; row < step_.M; row += T)
    step_.scale(qkv.slice_rows(row, 1).elements(0, step_.config.q_width()),
                1 + block.temperature * std::log(2.0));
}

void AttentionLayer::rotate_only(const Tensor& qkv, std::int64_t layer, const BlockWeights& w) const {
  const Scope scope(step_.arena);
  step_.device.rope({qkv, qkv, without_norm(rope_options(layer, w))});
}

void AttentionLayer::apply_rope(std::int64_t layer, const Tensor& qkv, const Tensor& raw_qkv,
                                const BlockWeights& w) const {
  const Scope scope(step_.arena);
  const RopeOptions options = rope_options(layer, w);
  step_.device.rope({qkv, raw_qkv, norms_after_rope() ? norm_alone(options) : options});
  scale_last_queries(layer, qkv);
}

void AttentionLayer::rope_backward(std::int64_t layer, QuantizedTensor& dqkv, const Tensor& dout,
                                   const Tensor& raw_qkv, const BlockWeights& w,
                                   const BlockTensors& g) const {
  const Scope scope(step_.arena);
  scale_last_queries(layer, dout);
  const RopeOptions options = rope_options(layer, w);
  if (norms_after_rope()) {
    const Tensor drotated = step_.push(step_.attention_shape.qkv_width());
    step_.device.rope_backward({.dqkv = make_quantized_tensor(drotated, {}, {}),
                                .dq_norm = g.q_norm,
                                .dk_norm = g.k_norm,
                                .accumulate = step_.parameters.accumulates(),
                                .dout = dout,
                                .qkv = raw_qkv,
                                .options = norm_alone(options)});
    step_.produce_quantized(dqkv, [&](QuantizedTensor& d) {
      step_.device.rope_backward({.dqkv = d,
                                  .dq_norm = {},
                                  .dk_norm = {},
                                  .accumulate = false,
                                  .dout = drotated,
                                  .qkv = {},
                                  .options = without_norm(options)});
    });
    return;
  }
  Tensor dq_norm = g.q_norm, dk_norm = g.k_norm;
  const bool unit_gains = has_unit_gains(step_.config, layer);
  if (unit_gains)  // nobody reads their gradients
    for (Tensor* gradient : {&dq_norm, &dk_norm})
      *gradient = step_.push(DType::f32, 1, step_.config.head_dim);
  step_.produce_quantized(dqkv, [&](QuantizedTensor& d) {
    step_.device.rope_backward({.dqkv = d,
                                .dq_norm = dq_norm,
                                .dk_norm = dk_norm,
                                .accumulate = !unit_gains && step_.parameters.accumulates(),
                                .dout = dout,
                                .qkv = raw_qkv,
                                .options = options});
  });
}

}  // namespace precbench
