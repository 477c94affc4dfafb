// Bias, QK-norm and RoPE between the qkv GEMM and attention, forward and backward, each in one op.
#include "models/transformer/transformer.h"

namespace precbench {

RopeOptions Transformer::rope_options(const BlockWeights& w) const {
  return {.shape = attention_shape_,
          .theta = static_cast<float>(config_.rope_theta),
          .norm_eps = static_cast<float>(config_.norm_eps),
          .q_norm = w.q_norm,
          .k_norm = w.k_norm,
          .bias = w.qkv_bias,
          .scaling = config_.rope_scaling};
}

void Transformer::turn(const Tensor& qkv, const Saved& saved, const BlockWeights& w) {
  device_.rope({qkv, saved.raw_qkv, rope_options(w)});
}

void Transformer::turn_backward(QuantizedTensor& dqkv, const Tensor& dturned, const Saved& saved,
                                const BlockWeights& w, const BlockTensors& g) {
  produce(dqkv, [&](QuantizedTensor& d) {
    device_.rope_backward({.dqkv = d,
                           .dq_norm = g.q_norm,
                           .dk_norm = g.k_norm,
                           .accumulate = parameters_.accumulates(),
                           .dout = dturned,
                           .qkv = saved.raw_qkv,
                           .options = rope_options(w)});
  });
}

}  // namespace precbench
