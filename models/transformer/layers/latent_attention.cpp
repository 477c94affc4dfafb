// Latent attention between the qkv GEMM, whose output is [queries or their latent | latent of keys and values | shared key],
// and attention itself: the latents' norms, the GEMMs that make heads of them, RoPE and concatenation. Forward saves
// the GEMM's output; backward repeats the norms, and their quantization, from it.
#include <cmath>

#include "models/transformer/layers/attention_layer.h"

namespace precbench {

/// A latent's columns in the output of the qkv GEMM, its norm, and the linear layer that reads it.
struct AttentionLayer::Latent {
  LinearRole up;
  std::int64_t first, width;
  Tensor rstd, gain;  // of its norm

  /// Copies the columns into transient memory.
  Tensor columns(const StepContext& step, const Tensor& projected) const {
    const Tensor own = step.push(width);
    step.device.copy_columns({own, first, projected});
    return own;
  }
};

std::int64_t AttentionLayer::projected_width() const {
  const ModelConfig& config = step_.config;
  const LatentAttention& latent = config.latent;
  return (latent.q_rank > 0 ? latent.q_rank : config.q_width()) + latent.kv_rank + latent.rope_dim;
}

AttentionLayer::Latent AttentionLayer::q_latent(const AttentionSaved& saved, const BlockWeights& w) const {
  return {LinearRole::q_up, 0, step_.config.latent.q_rank, saved.q_rstd, w.q_latent_norm};
}

AttentionLayer::Latent AttentionLayer::kv_latent(const AttentionSaved& saved, const BlockWeights& w) const {
  const LatentAttention& latent = step_.config.latent;
  return {LinearRole::kv_up, projected_width() - latent.rope_dim - latent.kv_rank, latent.kv_rank,
          saved.kv_rstd, w.kv_latent_norm};
}

LatentHeadsOptions AttentionLayer::latent_options() const {
  const ModelConfig& config = step_.config;
  const SequencePart& sequence = step_.sequence;
  const double scale = config.block.attention_scale;
  AttentionShape rows = step_.attention_shape;
  rows.B *= sequence.halves();
  return {.shape = rows,
          .rope_dim = config.latent.rope_dim,
          .theta = static_cast<float>(config.rope_theta),
          .scaling = config.rope_scaling,
          .interleaved = config.block.rope_pairs == RopePairs::interleaved,
          .q_scale =
              scale == 0 ? 1.0f : static_cast<float>(scale * std::sqrt(static_cast<double>(config.head_dim))),
          .offset = sequence.start(0),
          .late_offset = sequence.whole() ? std::nullopt : std::optional(sequence.start(1)),
          .positions = step_.positions,
          .position_count = step_.options.T};
}

void AttentionLayer::up_forward(std::int64_t layer, const Tensor& y, const Latent& latent,
                                const Tensor& projected, const BlockWeights& w) const {
  const Scope scope(step_.arena);
  const Linear linear = step_.linear(layer, latent.up);
  const Tensor x = latent.columns(step_, projected);
  QuantizedTensor h = make_quantized_tensor(step_.push(latent.width), linear.x_rowwise(), {});
  use_slot(h, linear.slots().x);
  step_.operands.push_rowwise(h, linear.x_rowwise());
  h.keep_value = !linear.x_rowwise().quantized() || step_.observer;
  step_.produce_quantized(h, [&](QuantizedTensor& out) {
    step_.device.add_rmsnorm({.h = out,
                              .sum = x,
                              .rstd = latent.rstd,
                              .x = x,
                              .branch = {},
                              .weight = latent.gain,
                              .eps = static_cast<float>(kLatentNormEps),
                              .gain_offset = step_.gain_offset()});
  });
  step_.observe(layer, latent.up, LinearOperand::x, h);
  step_.observe_codes(layer, latent.up, LinearOperand::x, h);
  step_.fprop(layer, latent.up, y, h, w);
}

void AttentionLayer::latent_forward(std::int64_t layer, const AttentionSaved& saved,
                                    const BlockWeights& w) const {
  const Scope scope(step_.arena);
  const LatentHeadsOptions options = latent_options();
  const Tensor kv_up = step_.push(options.kv_up_width());
  up_forward(layer, kv_up, kv_latent(saved, w), saved.projected, w);
  Tensor q = saved.projected;
  if (step_.config.latent.q_rank > 0) {
    q = step_.push(options.shape.q_width());
    up_forward(layer, q, q_latent(saved, w), saved.projected, w);
  }
  step_.device.latent_heads({saved.raw_qkv, q, kv_up, saved.projected, options});
}

void AttentionLayer::up_backward(std::int64_t layer, const Tensor& dprojected, QuantizedTensor& dy,
                                 const Latent& latent, const Tensor& dgain, const Tensor& projected,
                                 const BlockWeights& w, const BlockTensors& g) const {
  const Scope scope(step_.arena);
  const Linear linear = step_.linear(layer, latent.up);
  step_.produce_quantized(dy, [&](QuantizedTensor& gradient) { step_.device.quantize({gradient}); });
  step_.observe(layer, latent.up, LinearOperand::dy, dy);
  step_.observe_codes(layer, latent.up, LinearOperand::dy, dy);
  const Tensor x = latent.columns(step_, projected), dh = step_.push(latent.width);
  const auto repeat = [&](QuantizedTensor& h) {
    step_.produce_quantized(h, [&](QuantizedTensor& out) {
      step_.device.recompute_rmsnorm({out, x, latent.rstd, latent.gain, step_.gain_offset()});
    });
  };
  {
    const Scope inner(step_.arena);
    Tensor value;
    if (linear.recipe().mask_clipped) {
      QuantizedTensor h = make_quantized_tensor(value = step_.push(latent.width), {}, {});
      repeat(h);
    }
    step_.dgrad(layer, latent.up, dh, dy, w, value);
  }
  {
    const Scope inner(step_.arena);
    const QuantFormat& format = linear.x_columnwise();
    QuantizedTensor h = make_quantized_tensor(step_.push(latent.width), {}, format);
    if (linear.recipe().flow || format.quantized()) use_slot(h, linear.slots().x);
    if (linear.recipe().flow) {
      step_.operands.push_rowwise(h, linear.x_rowwise());
      h.columnwise = {};  // wgrad transposes the rowwise data instead of reading the value
    } else {
      step_.operands.push_columnwise(h, format);
    }
    h.keep_value = !(linear.recipe().flow || format.quantized()) || step_.observer;
    repeat(h);
    if (!linear.recipe().flow && format.quantized()) step_.observe(layer, latent.up, LinearOperand::x, h);
    step_.wgrad(layer, latent.up, g, dy, h, w);
  }
  QuantizedTensor dx = make_quantized_tensor(step_.push(latent.width), {}, {});
  step_.device.rmsnorm_backward({.dx = dx,
                                 .dweight = dgain,
                                 .accumulate = step_.parameters.accumulates(),
                                 .dresidual = {},
                                 .dh = dh,
                                 .x = x,
                                 .rstd = latent.rstd,
                                 .weight = latent.gain,
                                 .gain_offset = step_.gain_offset()});
  step_.device.copy_columns({dprojected, latent.first, dx.value});
}

void AttentionLayer::latent_backward(std::int64_t layer, QuantizedTensor& dprojected, const Tensor& dqkv,
                                     const AttentionSaved& saved, const BlockWeights& w,
                                     const BlockTensors& g) const {
  const Scope scope(step_.arena);
  const LatentHeadsOptions options = latent_options();
  const bool q_up = step_.config.latent.q_rank > 0;
  QuantizedTensor dkv =
      step_.operands.push_gradient(step_.push(options.kv_up_width()), step_.linear(layer, LinearRole::kv_up));
  QuantizedTensor dq = q_up ? step_.operands.push_gradient(step_.push(options.shape.q_width()),
                                                           step_.linear(layer, LinearRole::q_up))
                            : dprojected;
  step_.device.latent_heads_backward({dq.value, dkv.value, dprojected.value, dqkv, options});
  const Tensor& to = dprojected.value;
  up_backward(layer, to, dkv, kv_latent(saved, w), g.kv_latent_norm, saved.projected, w, g);
  if (q_up) up_backward(layer, to, dq, q_latent(saved, w), g.q_latent_norm, saved.projected, w, g);
  step_.produce_quantized(dprojected, [&](QuantizedTensor& gradient) { step_.device.quantize({gradient}); });
}

}  // namespace precbench
