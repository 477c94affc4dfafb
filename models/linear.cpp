// The three GEMMs of a linear layer. See linear.h.
#include "models/linear.h"

#include "kernels/scale_layout.h"

namespace precbench {

Form push_form(Arena& arena, Segment segment, const OperandFormat& format, std::int64_t rows,
               std::int64_t k) {
  Form form;
  form.format = format;
  form.data = arena.push(segment, format.dtype, rows, k);
  const DType scale = format.scale == ScaleType::ue8m0 ? DType::ue8m0 : DType::f32;
  form.scale = arena.push(segment, scale, 1, scale_count(format.granularity, rows, k));
  return form;
}

Operand make_operand(const Tensor& value, const OperandFormat& row, const OperandFormat& col) {
  Operand operand;
  operand.value = value;
  if (!row.quantized()) operand.row = {row, value, {}, false};
  if (!col.quantized()) operand.col = {col, value, {}, true};
  return operand;
}

void Linear::fprop(const Tensor& y, const Operand& x, const Tensor& weight) const {
  const Scope scope(arena_);
  const OperandFormat& format = recipe_.fprop.b;
  Operand w = make_operand(weight, format, {});
  if (format.quantized()) {
    w.row = push_form(arena_, Segment::quantized_weights, format, weight.rows, weight.cols);
    if (format.granularity == Granularity::tensor) w.amax = arena_.push(Segment::workspace, DType::f32, 1, 1);
    device_.quantize(w);
  }
  device_.matmul(y, x.row, w.row, {GemmRole::fprop, recipe_.fprop.fast_accum, false, op_class_});
}

void Linear::dgrad(const Tensor& dx, const Operand& dy, const Tensor& weight) const {
  const Scope scope(arena_);
  const OperandFormat& format = recipe_.dgrad.b;
  Operand w = make_operand(weight, {}, format);
  if (format.quantized()) {
    w.col = push_form(arena_, Segment::quantized_weights, format, weight.cols, weight.rows);
    if (format.granularity == Granularity::tensor) w.amax = arena_.push(Segment::workspace, DType::f32, 1, 1);
    device_.quantize(w);
  }
  device_.matmul(dx, dy.row, w.col, {GemmRole::dgrad, recipe_.dgrad.fast_accum, false, op_class_});
}

void Linear::wgrad(const Tensor& dweight, const Operand& dy, const Operand& x, bool accumulate) const {
  device_.matmul(dweight, dy.col, x.col, {GemmRole::wgrad, recipe_.wgrad.fast_accum, accumulate, op_class_});
}

}  // namespace precbench
