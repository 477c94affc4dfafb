// The three GEMMs of a linear layer. See linear.h.
#include "models/transformer/linear.h"

#include "kernels/numerics/scale_layout.h"

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

Form Linear::quantized(const Weight& weight, const OperandFormat& format, bool columns) const {
  if (!format.quantized()) return {format, weight.value, {}, columns};
  if (columns && !weight.col.empty()) return weight.col;
  if (!columns && !weight.row.empty()) return weight.row;
  const Tensor& shape = weight.row.empty() ? weight.value : weight.row.data;
  const Form form = push_form(arena_, Segment::quantized_weights, format, columns ? shape.cols : shape.rows,
                              columns ? shape.rows : shape.cols);
  if (!weight.row.empty()) {
    device_.transpose(form, weight.row);
    return form;
  }
  Operand w = make_operand(weight.value, {}, {});
  (columns ? w.col : w.row) = form;
  if (format.granularity == Granularity::tensor) w.amax = arena_.push(Segment::workspace, DType::f32, 1, 1);
  device_.quantize(w);
  return form;
}

void Linear::fprop(const Tensor& y, const Operand& x, const Weight& weight) const {
  const Scope scope(arena_);
  const Form w = quantized(weight, recipe_.fprop.b, false);
  device_.matmul(y, x.row, w, {GemmRole::fprop, recipe_.fprop.fast_accum, false, op_class_});
}

void Linear::dgrad(const Tensor& dx, const Operand& dy, const Weight& weight) const {
  const Scope scope(arena_);
  const Form w = quantized(weight, recipe_.dgrad.b, true);
  device_.matmul(dx, dy.row, w, {GemmRole::dgrad, recipe_.dgrad.fast_accum, false, op_class_});
}

Operand Linear::quantized_weight(const Weight& weight, bool columns) const {
  Operand w = make_operand(weight.value, {}, {});
  (columns ? w.col : w.row) = quantized(weight, columns ? recipe_.dgrad.b : recipe_.fprop.b, columns);
  return w;
}

void Linear::wgrad(const Tensor& dweight, const Operand& dy, const Operand& x, bool accumulate) const {
  device_.matmul(dweight, dy.col, x.col, {GemmRole::wgrad, recipe_.wgrad.fast_accum, accumulate, op_class_});
}

}  // namespace precbench
