// From the product of qkv to what attention takes, and back: biases, the norms of queries and keys, RoPE. With a norm of each
// head that is one op; a norm over all heads takes q and k as matrices of their own, copied out of qkv and into it.
#include "models/transformer/qkv_part.h"
#include "models/transformer/transformer.h"

namespace precbench {

RopeOptions Transformer::rope_options(const BlockWeights& w) const {
  const bool each = config_.norms_each_head();
  return {.shape = attention_shape_,
          .theta = static_cast<float>(config_.rope_theta),
          .norm_eps = static_cast<float>(config_.norm_eps),
          .q_norm = each ? w.q_norm : Tensor{},
          .k_norm = each ? w.k_norm : Tensor{},
          .bias = w.qkv_bias,
          .scaling = config_.rope_scaling};
}

void Transformer::turn(const Tensor& qkv, const Saved& saved, const BlockWeights& w) {
  if (!config_.norms_all_heads()) return device_.rope({qkv, saved.raw_qkv, rope_options(w)});
  const auto copy = [&](Role role, const Tensor& gain, const Tensor& rstd) {
    const Scope scope(arena_);
    const QkvPart part = part_of(attention_shape_, role);
    const Tensor raw = push(part.count), normed = gain.empty() ? raw : push(part.count);
    device_.copy_columns({raw, part.first, saved.raw_qkv});
    if (!gain.empty())
      device_.add_rmsnorm({.h = make_quantized_tensor(normed, {}, {}),
                           .sum = raw,
                           .rstd = rstd,
                           .x = raw,
                           .branch = {},
                           .weight = gain,
                           .eps = static_cast<float>(config_.norm_eps)});
    device_.copy_columns({qkv, part.first, normed});
  };
  copy(Role::q, w.q_norm, saved.q_rstd);
  copy(Role::k, w.k_norm, saved.k_rstd);
  copy(Role::v, {}, {});
  device_.rope({qkv, qkv, rope_options(w)});
}

void Transformer::turn_backward(QuantizedTensor& dqkv, const Tensor& dturned, const Saved& saved,
                                const BlockWeights& w, const BlockTensors& g) {
  const bool accumulate = parameters_.accumulates(), each = config_.norms_each_head();
  const auto turn_back = [&](QuantizedTensor& d) {
    device_.rope_backward({.dqkv = d,
                           .dq_norm = each ? g.q_norm : Tensor{},
                           .dk_norm = each ? g.k_norm : Tensor{},
                           .accumulate = accumulate,
                           .dout = dturned,
                           .qkv = saved.raw_qkv,
                           .options = rope_options(w)});
  };
  if (!config_.norms_all_heads()) return produce(dqkv, turn_back);
  QuantizedTensor plain = make_quantized_tensor(dqkv.value, {}, {});
  turn_back(plain);
  const auto through_norm = [&](Role role, const Tensor& gain, const Tensor& dgain, const Tensor& rstd) {
    const Scope scope(arena_);
    const QkvPart part = part_of(attention_shape_, role);
    const Tensor dnormed = push(part.count), raw = push(part.count), draw = push(part.count);
    device_.copy_columns({dnormed, part.first, dqkv.value});
    device_.copy_columns({raw, part.first, saved.raw_qkv});
    device_.rmsnorm_backward({.dx = make_quantized_tensor(draw, {}, {}),
                              .dweight = dgain,
                              .accumulate = accumulate,
                              .dresidual = {},
                              .dh = dnormed,
                              .x = raw,
                              .rstd = rstd,
                              .weight = gain});
    device_.copy_columns({dqkv.value, part.first, draw});
  };
  through_norm(Role::q, w.q_norm, g.q_norm, saved.q_rstd);
  through_norm(Role::k, w.k_norm, g.k_norm, saved.k_rstd);
  produce(dqkv, [&](QuantizedTensor& d) { device_.quantize({d}); });
}

}  // namespace precbench
