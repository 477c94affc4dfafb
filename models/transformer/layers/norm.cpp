// Saved outputs of norms and the backward GEMMs that read them. See norm.h.
#include "models/transformer/layers/norm.h"

#include <utility>

namespace precbench {

void push_norm_statistics(const StepContext& step, NormSaved& saved) {
  saved.rstd = step.push(DType::f32, step.stream_rows, 1);
  if (step.config.block.norm == NormKind::layer) saved.mean = step.push(DType::f32, step.stream_rows, 1);
}

void push_norm_saved(const StepContext& step, const Linear& layer, NormConsumer consumer, NormSaved& saved) {
  const std::int64_t C = step.config.width;
  if (step.tensor) return;  // backward repeats it and gathers it again
  if (layer.recipe().flow)
    saved.copy = step.operands.push(layer.x_rowwise(), step.M, C);
  else if (step.options.kept.norm == KeptAs::value)
    saved.value = step.push(C);
  else if (layer.x_columnwise().quantized() && consumer == NormConsumer::dense)
    saved.copy = step.operands.push(layer.x_columnwise(), C, step.M);
  else if (!layer.x_columnwise().quantized() && !step.options.recompute_norms)
    saved.value = step.push(C);
}

namespace {

/// Runs op(x), which writes the norm of this rank's rows of the residual stream, as the value and the quantized copies
/// of `h`, which tensor ranks gather.
void produce_norm(const StepContext& step, QuantizedTensor& h,
                  const std::function<void(QuantizedTensor&)>& op) {
  if (!step.tensor) return step.produce_quantized(h, op);
  QuantizedTensor own = make_quantized_tensor(step.own_rows(h.value), {}, {});
  op(own);
  step.gather_over_tensor(h, own.value);
}

/// h = the residual stream, for a block without a norm here.
void copy_stream(const StepContext& step, QuantizedTensor& h, const Tensor& stream) {
  step.device.convert({h.value, stream});
  step.produce_quantized(h, [&](QuantizedTensor& x) { step.device.quantize({x}); });
}

}  // namespace

void add_norm(const StepContext& step, QuantizedTensor& h, const NormOutput& norm, const Tensor& x,
              const Tensor& branch) {
  if (norm.weights.gain.empty()) {
    if (!branch.empty()) step.device.combine({norm.sum, 1.0f, x, 1.0f, branch, OpClass::norm_elementwise});
    return copy_stream(step, h, norm.sum);
  }
  const auto eps = static_cast<float>(step.config.norm_eps);
  const bool layernorm = step.config.block.norm == NormKind::layer;
  produce_norm(step, h, [&](QuantizedTensor& out) {
    if (layernorm)
      return step.device.add_layernorm({.h = out,
                                        .sum = norm.sum,
                                        .mean = norm.saved.mean,
                                        .rstd = norm.saved.rstd,
                                        .x = x,
                                        .branch = branch,
                                        .weight = norm.weights.gain,
                                        .bias = norm.weights.bias,
                                        .eps = eps,
                                        .gain_offset = step.gain_offset()});
    step.device.add_rmsnorm({.h = out,
                             .sum = norm.sum,
                             .rstd = norm.saved.rstd,
                             .x = x,
                             .branch = branch,
                             .weight = norm.weights.gain,
                             .eps = eps,
                             .gain_offset = step.gain_offset(),
                             .kept = norm.kept});
  });
}

void repeat_norm(const StepContext& step, QuantizedTensor& h, const NormOutput& norm) {
  if (!norm.kept.empty()) {
    const Scope scope(step.arena);
    NormOutput read = norm;
    read.sum = step.push(step.config.width);
    step.read_back(read.sum, std::exchange(read.kept, {}));
    return repeat_norm(step, h, read);
  }
  const auto &gain = norm.weights.gain, &bias = norm.weights.bias;
  if (gain.empty()) return copy_stream(step, h, norm.sum);
  const bool layernorm = step.config.block.norm == NormKind::layer;
  produce_norm(step, h, [&](QuantizedTensor& x) {
    if (layernorm)
      return step.device.recompute_layernorm(
          {x, norm.sum, norm.saved.mean, norm.saved.rstd, gain, bias, step.gain_offset()});
    step.device.recompute_rmsnorm({x, norm.sum, norm.saved.rstd, gain, step.gain_offset()});
  });
}

void norm_backward(const StepContext& step, QuantizedTensor& dx, const NormWeights& dweights,
                   const Tensor& dresidual, const Tensor& dh, const NormOutput& norm) {
  const Tensor& gain = norm.weights.gain;
  if (gain.empty())
    return step.device.combine({dx.value, 1.0f, dresidual, 1.0f, dh, OpClass::norm_elementwise});
  const bool layernorm = step.config.block.norm == NormKind::layer;
  step.produce_quantized(dx, [&](QuantizedTensor& d) {
    if (layernorm)
      return step.device.layernorm_backward({.dx = d,
                                             .dweight = dweights.gain,
                                             .dbias = dweights.bias,
                                             .accumulate = step.parameters.accumulates(),
                                             .dresidual = dresidual,
                                             .dh = dh,
                                             .x = norm.sum,
                                             .mean = norm.saved.mean,
                                             .rstd = norm.saved.rstd,
                                             .weight = gain,
                                             .gain_offset = step.gain_offset()});
    step.device.rmsnorm_backward({.dx = d,
                                  .dweight = dweights.gain,
                                  .accumulate = step.parameters.accumulates(),
                                  .dresidual = dresidual,
                                  .dh = dh,
                                  .x = norm.kept.empty() ? norm.sum : Tensor{},
                                  .rstd = norm.saved.rstd,
                                  .weight = gain,
                                  .gain_offset = step.gain_offset(),
                                  .kept = norm.kept});
  });
}

namespace {

/// Repeats a norm into transient memory: its BF16 value, or the quantized copy that wgrad reads.
QuantizedTensor recompute_for_wgrad(const StepContext& step, std::int64_t layer, LinearRole role,
                                    const NormOutput& norm) {
  const Linear linear = step.linear(layer, role);
  const QuantFormat& format = linear.x_columnwise();
  if (!format.quantized()) return make_quantized_tensor(recompute_norm(step, norm), {}, {});
  QuantizedTensor h = make_quantized_tensor(step.push(step.config.width), {}, {});
  use_slot(h, linear.slots().x);
  if (linear.recipe().flow) {
    step.operands.push_rowwise(h, linear.x_rowwise());
    h.columnwise = {};  // wgrad transposes the rowwise data instead of reading the value
  } else {
    step.operands.push_columnwise(h, format);
  }
  h.keep_value = step.observer;
  repeat_norm(step, h, norm);
  if (!linear.recipe().flow) step.observe(layer, role, LinearOperand::x, h);
  return h;
}

}  // namespace

QuantizedTensor push_norm_output(const StepContext& step, const Linear& layer, const NormSaved& saved) {
  QuantizedTensor h = make_quantized_tensor(saved.value.empty() ? step.push(step.config.width) : saved.value,
                                            layer.x_rowwise(), layer.x_columnwise());
  use_slot(h, layer.slots().x);
  if (layer.recipe().flow && !saved.copy.empty()) {
    h.rowwise = saved.copy;
  } else {
    step.operands.push_rowwise(h, layer.x_rowwise());
    if (layer.x_columnwise().quantized()) h.columnwise = saved.copy;
    step.operands.push_amax(h, layer.x_columnwise());
  }
  h.keep_value = !layer.x_rowwise().quantized() || !saved.value.empty() || step.reads_values();
  return h;
}

QuantizedTensor recompute_norm_output(const StepContext& step, const Linear& layer, const NormOutput& norm,
                                      const std::function<void(QuantizedTensor&)>& prepare) {
  QuantizedTensor h = push_norm_output(step, layer, {});
  prepare(h);
  repeat_norm(step, h, norm);
  return h;
}

Tensor recompute_norm(const StepContext& step, const NormOutput& norm) {
  QuantizedTensor h = make_quantized_tensor(step.push(step.config.width), {}, {});
  repeat_norm(step, h, norm);
  return h.value;
}

void norm_dgrad(const StepContext& step, std::int64_t layer, LinearRole role, const Tensor& dx,
                const QuantizedTensor& dy, const BlockWeights& w, const NormOutput& norm) {
  const Scope scope(step.arena);
  const Tensor& value = norm.saved.value;
  Tensor x;
  if (step.linear(layer, role).recipe().mask_clipped) x = value.empty() ? recompute_norm(step, norm) : value;
  step.sum_over_tensor(dx, [&](const Tensor& partial) { step.dgrad(layer, role, partial, dy, w, x); });
}

void norm_wgrad(const StepContext& step, std::int64_t layer, LinearRole role, const BlockTensors& g,
                const QuantizedTensor& dy, const BlockWeights& w, const NormOutput& norm) {
  const Scope scope(step.arena);
  const Tensor& value = norm.saved.value;
  const GemmOperand& copy = norm.saved.copy;
  if (value.empty() && copy.empty())
    return step.wgrad(layer, role, g, dy, recompute_for_wgrad(step, layer, role, norm), w);
  const Linear linear = step.linear(layer, role);
  if (copy.empty() && linear.x_columnwise().quantized())
    return step.wgrad(layer, role, g, dy, step.quantized_for(GemmRole::wgrad, layer, role, value), w);
  QuantizedTensor h = make_quantized_tensor(value, {}, {});
  const bool transposes = linear.recipe().flow;
  if (!copy.empty()) h.columnwise = transposes ? GemmOperand{} : copy;
  if (transposes) h.rowwise = copy;
  step.wgrad(layer, role, g, dy, h, w);
}

}  // namespace precbench
