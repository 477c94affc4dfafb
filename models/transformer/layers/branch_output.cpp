// Factors and norms on the outputs of a block's halves. See branch_output.h.
#include "models/transformer/layers/branch_output.h"

namespace precbench {

void BranchOutput::push_saved(BranchSaved& saved) const {
  if (!normed()) return;
  saved.raw = step_.push(step_.config.width);
  saved.rstd = step_.push(DType::f32, step_.M, 1);
}

const Tensor& BranchOutput::target(const BranchSaved& saved, const Tensor& branch) const {
  return normed() ? saved.raw : branch;
}

void BranchOutput::forward(const BranchSaved& saved, const Tensor& gain, const Tensor& branch) const {
  step_.scale(branch, step_.config.block.residual_scale);
  if (!normed()) return;
  step_.device.add_rmsnorm({make_quantized_tensor(branch, {}, {}),
                            saved.raw,
                            saved.rstd,
                            saved.raw,
                            {},
                            gain,
                            static_cast<float>(step_.config.norm_eps),
                            step_.gain_offset()});
}

QuantizedTensor BranchOutput::parallel_backward(std::int64_t layer, LinearRole role,
                                                const QuantizedTensor& dresidual) const {
  QuantizedTensor dy = step_.operands.push_gradient(dresidual.value, step_.linear(layer, role));
  step_.produce_quantized(dy, [&](QuantizedTensor& d) { step_.device.quantize({d}); });
  step_.observe(layer, role, LinearOperand::dy, dy);
  step_.observe_codes(layer, role, LinearOperand::dy, dy);
  return dy;
}

QuantizedTensor BranchOutput::backward(std::int64_t layer, LinearRole role, const BranchSaved& saved,
                                       const Tensor& gain, const Tensor& dgain,
                                       const QuantizedTensor& dresidual) const {
  if (plain(step_)) return dresidual;
  const Linear linear = step_.linear(layer, role);
  QuantizedTensor dy = step_.operands.push_gradient(step_.push(step_.config.width), linear);
  if (normed()) {
    step_.produce_quantized(dy, [&](QuantizedTensor& d) {
      step_.device.rmsnorm_backward({d,
                                     dgain,
                                     step_.parameters.accumulates(),
                                     {},
                                     dresidual.value,
                                     saved.raw,
                                     saved.rstd,
                                     gain,
                                     step_.gain_offset()});
    });
  } else {
    const Tensor own = step_.own_rows(dy.value);
    step_.device.convert({own, dresidual.value});
    step_.scale(own, step_.config.block.residual_scale);
    dy.keep_value = !linear.dy_rowwise().quantized() || !linear.dy_columnwise().quantized() || step_.observer;
    if (step_.tensor)
      step_.gather_over_tensor(dy, own);
    else
      step_.produce_quantized(dy, [&](QuantizedTensor& d) { step_.device.quantize({d}); });
  }
  step_.observe(layer, role, LinearOperand::dy, dy);
  return dy;
}

}  // namespace precbench
