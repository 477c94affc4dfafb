// The three GEMMs of a linear layer. See linear.h.
#include "models/transformer/linear.h"

#include "kernels/numerics/scale_layout.h"

namespace precbench {

const char* name_of(LinearOperand operand) {
  static constexpr const char* kNames[] = {"x", "dy", "w"};
  return kNames[static_cast<int>(operand)];
}

GemmOperand push_gemm_operand(Arena& arena, Segment segment, const QuantFormat& format, std::int64_t rows,
                              std::int64_t k) {
  GemmOperand form;
  form.format = format;
  form.data = arena.push(segment, format.dtype, rows, k);
  form.scale = arena.push(segment, scale_dtype(format), 1, scale_count(format.granularity, rows, k));
  if (format.scale == ScaleType::e4m3) form.amax = arena.push(segment, DType::f32, 1, 1);
  return form;
}

QuantizedTensor make_quantized_tensor(const Tensor& value, const QuantFormat& row, const QuantFormat& col) {
  QuantizedTensor operand;
  operand.value = value;
  if (!row.quantized()) operand.rowwise = {row, value, {}, false};
  if (!col.quantized()) operand.columnwise = {col, value, {}, true};
  return operand;
}

GemmOperand Linear::quantized(const Weight& weight, const QuantFormat& format, bool columns) const {
  if (!format.quantized()) return {format, weight.value, {}, columns};
  if (columns && !weight.columnwise.empty()) return weight.columnwise;
  if (!columns && !weight.rowwise.empty()) return weight.rowwise;
  const Tensor& shape = weight.rowwise.empty() ? weight.value : weight.rowwise.data;
  const GemmOperand form =
      push_gemm_operand(arena_, Segment::quantized_weights, format, columns ? shape.cols : shape.rows,
                        columns ? shape.rows : shape.cols);
  if (!weight.rowwise.empty()) {
    device_.transpose({form, weight.rowwise});
    return form;
  }
  QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
  w.random = slots_.w.random;
  (columns ? w.columnwise : w.rowwise) = form;
  if (format.delayed() && !slots_.w.known.empty()) {
    w.amax_in = slots_.w.known;
    if (slots_.current) device_.quantize({{.value = weight.value, .amax_out = slots_.w.known}});
    if (!columns) w.amax_out = slots_.w.staged;  // both passes see the same weights
  } else if (format.granularity == Granularity::tensor)
    w.amax_out = arena_.push(Segment::workspace, DType::f32, 1, 1);
  device_.quantize({w});
  return form;
}

void Linear::fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight) const {
  const Scope scope(arena_);
  const GemmOperand w = quantized(weight, recipe_.fprop.b, false);
  device_.matmul({y, x.rowwise, w, {GemmRole::fprop, recipe_.fprop.fast_accum, false, op_class_}});
}

void Linear::dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight) const {
  const Scope scope(arena_);
  const GemmOperand w = quantized(weight, recipe_.dgrad.b, true);
  device_.matmul({dx, dy.rowwise, w, {GemmRole::dgrad, recipe_.dgrad.fast_accum, false, op_class_}});
}

QuantizedTensor Linear::quantized_weight(const Weight& weight, bool columns) const {
  QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
  (columns ? w.columnwise : w.rowwise) =
      quantized(weight, columns ? recipe_.dgrad.b : recipe_.fprop.b, columns);
  return w;
}

void Linear::wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x,
                   bool accumulate) const {
  device_.matmul({dweight,
                  dy.columnwise,
                  x.columnwise,
                  {GemmRole::wgrad, recipe_.wgrad.fast_accum, accumulate, op_class_}});
}

}  // namespace precbench
