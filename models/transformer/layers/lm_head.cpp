// Final norm, lm_head and loss. See lm_head.h.
#include "models/transformer/layers/lm_head.h"

#include "models/transformer/layers/branch_output.h"

namespace precbench {

LmHead::Pass LmHead::begin(const Input& input) const {
  const Layout& layout = step_.parameters.model_layout();
  const Tensor unit = step_.parameters.gather(layout.head_unit());
  Pass pass{step_.linear(step_.config.layers, LinearRole::head),
            {layout.lm_head(unit)},
            {{}, step_.push_stream(), {layout.final_norm(unit), layout.final_norm_bias(unit)}},
            {},
            layout.head_bias(unit)};
  push_norm_statistics(step_, pass.norm.saved);
  pass.normed = step_.push(step_.config.width);
  QuantizedTensor h = make_quantized_tensor(pass.normed, {}, {});
  add_norm(step_, h, pass.norm, input.mid, input.branch);
  return pass;
}

QuantizedTensor LmHead::quantize_chunk(const Pass& pass, std::int64_t first, std::int64_t rows) const {
  const Linear& linear = pass.linear;
  QuantizedTensor x =
      make_quantized_tensor(pass.normed.slice_rows(first, rows), linear.x_rowwise(), linear.x_columnwise());
  use_slot(x, linear.slots().x);
  step_.operands.push_rowwise(x, linear.x_rowwise());
  if (!linear.recipe().flow) step_.operands.push_columnwise(x, linear.x_columnwise());
  step_.produce_quantized(x, [&](QuantizedTensor& chunk) { step_.device.quantize({chunk}); });
  return x;
}

QuantizedTensor LmHead::forward_chunk(const Pass& pass, std::int64_t first, const Tensor& losses,
                                      const Targets& targets, float loss_scale, QuantizedTensor& x) const {
  const Linear& linear = pass.linear;
  const std::int64_t rows = std::min(chunk_tokens(pass), step_.M - first);
  x = quantize_chunk(pass, first, rows);
  QuantizedTensor logits =
      make_quantized_tensor(step_.push(step_.options.activations, rows, step_.config.vocab),
                            linear.dy_rowwise(), linear.dy_columnwise());
  linear.fprop(logits.value, x, pass.weight);
  if (!pass.bias.empty()) step_.device.add_bias({logits.value, pass.bias});
  step_.scale(logits.value, step_.config.logit_scale);
  // The gradient of lm_head's output has the factor once more.
  const float gradient_scale = loss_scale * static_cast<float>(step_.config.logit_scale);
  const Targets chunk = targets.slice_rows(first, rows);
  cross_entropy({losses.slice_rows(first, rows), logits.value, chunk.tokens, gradient_scale,
                 static_cast<float>(step_.config.logit_softcap), chunk.weights});
  return logits;
}

void LmHead::cross_entropy(const ops::CrossEntropy& op) const {
  if (!step_.tensor) return step_.device.cross_entropy(op);
  constexpr std::int64_t kStats = 3;
  const Scope scope(step_.arena);
  const std::int64_t rows = op.logits.rows, first = step_.first_token();
  const Tensor own = step_.push(DType::f32, rows, kStats),
               all = step_.push(DType::f32, step_.tensor->size() * rows, kStats);
  step_.device.logit_stats({own, op.logits, op.targets, first, op.softcap});
  step_.tensor->all_gather(all, own);
  step_.device.logit_gradient({op.loss, op.logits, op.targets, all, first, op.scale, op.softcap, op.weights});
}

void LmHead::forward(const Input& input, const Tensor& losses) const {
  const Pass pass = begin(input);
  for (std::int64_t first = 0; first < step_.M; first += chunk_tokens(pass)) {
    const Scope chunk(step_.arena);
    QuantizedTensor x;
    forward_chunk(pass, first, losses, input.targets, 1.0f, x);
  }
}

NormWeights LmHead::discarded_gradients(const NormWeights& weights) const {
  const std::int64_t C = step_.config.width;
  const Tensor both = step_.parameters.discarded_gradients();
  return {both.elements(0, C), weights.bias.empty() ? Tensor{} : both.elements(C, C)};
}

void LmHead::forward_backward(const Input& input, const Tensor& losses, const Tensor& loss_sum,
                              QuantizedTensor dx) const {
  const Scope scope(step_.arena);
  Parameters& parameters = step_.parameters;
  const Layout& layout = parameters.model_layout();
  const Pass pass = begin(input);
  const Linear& linear = pass.linear;
  const Tensor dh = step_.push_stream();

  const bool trained = parameters.trains_model();
  const Tensor gradient = trained ? parameters.gradients(layout.head_unit()) : Tensor{};
  if (trained) parameters.commit(gradient);
  const Tensor dweight = trained ? layout.lm_head(gradient) : Tensor{};
  step_.sum_over_tensor(dh, [&](const Tensor& partial) {
    for (std::int64_t first = 0; first < step_.M; first += chunk_tokens(pass)) {
      const Scope chunk(step_.arena);
      QuantizedTensor x;
      QuantizedTensor dlogits = forward_chunk(pass, first, losses, input.targets, step_.loss_scale, x);
      use_slot(dlogits, linear.slots().dy);
      step_.operands.push_rowwise(dlogits, linear.dy_rowwise());
      if (!linear.recipe().flow && trained) step_.operands.push_columnwise(dlogits, linear.dy_columnwise());
      step_.produce_quantized(dlogits, [&](QuantizedTensor& dy) { step_.device.quantize({dy}); });
      linear.dgrad(partial.slice_rows(first, dlogits.value.rows), dlogits, pass.weight, x.value);
      if (!trained) continue;
      const bool accumulate = parameters.accumulates() || first > 0;
      linear.wgrad(dweight, dlogits, x, pass.weight, accumulate);
      if (!pass.bias.empty())
        step_.device.bias_backward({layout.head_bias(gradient), accumulate, dlogits.value});
    }
  });
  step_.device.sum({loss_sum, step_.own_rows(losses), step_.micro_step > 0});
  NormWeights dnorm;
  if (trained)
    dnorm = {layout.final_norm(gradient), layout.final_norm_bias(gradient)};
  else
    dnorm = discarded_gradients(pass.norm.weights);
  norm_backward(step_, dx, dnorm, {}, dh, pass.norm);
  if (BranchOutput::plain(step_))
    step_.observe(step_.config.layers - 1, LinearRole::down, LinearOperand::dy, dx);
  if (!step_.config.tied && trained) parameters.reduce(layout.head_unit());
}

void LmHead::write_features(const Input& input, const Tensor& features) const {
  step_.device.convert({features, begin(input).normed});
}

void LmHead::compare(const Input& input, const Tensor& features, const Tensor& distances) const {
  const Pass pass = begin(input);
  const std::int64_t V = step_.config.vocab, most = std::min(step_.M, kCompareChunkTokens);
  const std::int64_t chunk_rows = pass.linear.recipe().quantized() ? step_.M : most;
  for (std::int64_t first = 0; first < step_.M; first += chunk_rows) {
    const Scope chunk(step_.arena);
    const std::int64_t rows = std::min(chunk_rows, step_.M - first);
    const QuantizedTensor x = quantize_chunk(pass, first, rows);
    const Tensor logits = step_.push(DType::f32, rows, V), reference = step_.push(DType::f32, most, V);
    pass.linear.fprop(logits, x, pass.weight);
    if (!pass.bias.empty()) step_.device.add_bias({logits, pass.bias});
    step_.scale(logits, step_.config.logit_scale);
    for (std::int64_t at = 0; at < rows; at += most) {
      const std::int64_t count = std::min(most, rows - at);
      const Tensor bf16 = reference.slice_rows(0, count);
      step_.device.matmul({bf16,
                           {{}, features.slice_rows(first + at, count), {}, false},
                           {{}, pass.weight.value, {}, false},
                           {.op_class = OpClass::head_loss}});
      if (!pass.bias.empty()) step_.device.add_bias({bf16, pass.bias});
      step_.scale(bf16, step_.config.logit_scale);
      step_.device.compare_logits({distances.slice_rows(first + at, count), bf16,
                                   logits.slice_rows(at, count),
                                   input.targets.tokens.slice_rows(first + at, count),
                                   static_cast<float>(step_.config.logit_softcap)});
    }
  }
}

}  // namespace precbench
