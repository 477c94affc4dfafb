// The three GEMMs of a linear layer. See linear.h.
#include "models/transformer/linear/linear.h"

#include "kernels/numerics/scale_layout.h"

namespace precbench {

const char* name_of(LinearOperand operand) {
  static constexpr const char* kNames[] = {"x", "dy", "w"};
  return kNames[static_cast<int>(operand)];
}

GemmOperand push_gemm_operand(Arena& arena, Segment segment, const QuantFormat& format, std::int64_t rows,
                              std::int64_t k) {
  GemmOperand copy;
  copy.format = format;
  copy.data = arena.push(segment, format.dtype, rows, k);
  copy.scale = arena.push(segment, scale_dtype(format), 1, scale_count(format.granularity, rows, k));
  if (format.scale == ScaleType::e4m3) copy.amax = arena.push(segment, DType::f32, 1, 1);
  return copy;
}

QuantizedTensor make_quantized_tensor(const Tensor& value, const QuantFormat& row, const QuantFormat& col) {
  QuantizedTensor operand;
  operand.value = value;
  if (!row.quantized()) operand.rowwise = {row, value, {}, false};
  if (!col.quantized()) operand.columnwise = {col, value, {}, true};
  return operand;
}

GemmOperand stored_weight(Device& device, Arena& arena, const QuantFormat& format, const Weight& weight) {
  if (!weight.rowwise.empty()) return weight.rowwise;
  QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
  w.rowwise =
      push_gemm_operand(arena, Segment::quantized_weights, format, weight.value.rows, weight.value.cols);
  if (format.granularity == Granularity::tensor)
    w.amax_out = arena.push(Segment::workspace, DType::f32, 1, 1);
  device.quantize({w, true});
  return w.rowwise;
}

Tensor dequantized_weight(Device& device, Arena& arena, const QuantFormat& format, const Weight& weight) {
  const Tensor& shape = weight.value.empty() ? weight.rowwise.data : weight.value;
  const DType dtype = weight.value.empty() ? DType::bf16 : weight.value.dtype;
  const Tensor value = arena.push(Segment::workspace, dtype, shape.rows, shape.cols);
  const Scope scope(arena);
  device.dequantize({value, stored_weight(device, arena, format, weight)});
  return value;
}

GemmOperand columns_of(Device& device, Arena& arena, const QuantizedTensor& operand, const Groups& groups) {
  if (!operand.columnwise.empty()) return operand.columnwise;
  const GemmOperand& rows = operand.rowwise;
  const GemmOperand columns =
      push_gemm_operand(arena, Segment::activations, rows.format, rows.data.cols, rows.data.rows);
  device.transpose_codes({columns, rows, groups});
  return columns;
}

GemmOperand Linear::quantized(const Weight& weight, const QuantFormat& format, bool columns) const {
  if (recipe_.weight_only.quantized())
    return {{}, dequantized_weight(device_, arena_, recipe_.weight_only, weight), {}, columns};
  if (!format.quantized()) return {format, weight.value, {}, columns};
  if (columns && !weight.columnwise.empty()) return weight.columnwise;
  if (!columns && !weight.rowwise.empty()) return weight.rowwise;
  if (format.from_fprop) return quantized_again(weight.value, recipe_.fprop.b, format, slots_.w.random);
  const Tensor& shape = weight.rowwise.empty() ? weight.value : weight.rowwise.data;
  const GemmOperand copy =
      push_gemm_operand(arena_, Segment::quantized_weights, format, columns ? shape.cols : shape.rows,
                        columns ? shape.rows : shape.cols);
  if (!weight.rowwise.empty()) {
    device_.transpose({copy, weight.rowwise});
    return copy;
  }
  QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
  w.random = slots_.w.random;
  (columns ? w.columnwise : w.rowwise) = copy;
  const auto quantize = [&](const QuantizedTensor& made) { device_.quantize({made, true}); };
  if (!take_amaxes(w, slots_, format, columns, quantize) && format.granularity == Granularity::tensor)
    w.amax_out = arena_.push(Segment::workspace, DType::f32, 1, 1);
  quantize(w);
  return copy;
}

void Linear::fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight) const {
  const Scope scope(arena_);
  const GemmOperand w = quantized(weight, recipe_.fprop.b, false);
  device_.matmul({y, x.rowwise, w, {GemmRole::fprop, recipe_.fprop.fast_accum, false, op_class_}});
}

void Linear::dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight, const Tensor& x,
                   bool accumulate) const {
  const Scope scope(arena_);
  const GemmOperand w = quantized(weight, recipe_.dgrad.b, true);
  const bool turned = recipe_.dgrad.b.from_fprop && recipe_.fprop.a.transform;
  const Tensor out = turned ? arena_.push(Segment::activations, dx.dtype, dx.rows, dx.cols) : dx;
  device_.matmul(
      {out, dy.rowwise, w, {GemmRole::dgrad, recipe_.dgrad.fast_accum, accumulate && !turned, op_class_}});
  if (turned) inverse_hadamard(dx, out, x, recipe_.fprop.a, accumulate);
}

QuantizedTensor Linear::quantized_weight(const Weight& weight, bool columns) const {
  QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
  if (recipe_.weight_only.quantized()) {
    w.columnwise = {};
    w.rowwise = columns ? GemmOperand{} : stored_weight(device_, arena_, recipe_.weight_only, weight);
    return w;
  }
  (columns ? w.columnwise : w.rowwise) =
      quantized(weight, columns ? recipe_.dgrad.b : recipe_.fprop.b, columns);
  return w;
}

void Linear::wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x,
                   const Weight& weight, bool accumulate) const {
  const Scope scope(arena_);
  const QuantFormat& format = recipe_.wgrad.b;
  const GemmOperand columns = format.from_fprop
                                  ? quantized_again(x.value, recipe_.fprop.a, format, slots_.x.random)
                                  : columns_of(device_, arena_, x);
  const bool turned = format.from_fprop && recipe_.fprop.b.transform;
  const Tensor out =
      turned ? arena_.push(Segment::workspace, DType::f32, dweight.rows, dweight.cols) : dweight;
  device_.matmul({out,
                  columns_of(device_, arena_, dy),
                  columns,
                  {GemmRole::wgrad, recipe_.wgrad.fast_accum, accumulate && !turned, op_class_}});
  if (turned) inverse_hadamard(dweight, out, weight.value, recipe_.fprop.b, accumulate);
}

GemmOperand Linear::quantized_again(const Tensor& value, const QuantFormat& fprop_format,
                                    const QuantFormat& format, const RandomStream& random) const {
  const auto amax_of = [&](const QuantFormat& made) {
    return made.granularity == Granularity::tensor ? arena_.push(Segment::workspace, DType::f32, 1, 1) : Tensor{};
  };
  QuantizedTensor again;
  again.columnwise = push_gemm_operand(arena_, Segment::workspace, format, value.cols, value.rows);
  again.random = random;
  again.amax_out = amax_of(format);
  const Scope scope(arena_);
  again.value = arena_.push(Segment::workspace, value.dtype, value.rows, value.cols);
  QuantizedTensor seen{.value = value, .amax_out = amax_of(fprop_format), .random = random};
  seen.rowwise = push_gemm_operand(arena_, Segment::workspace, fprop_format, value.rows, value.cols);
  device_.quantize({seen});
  device_.dequantize({again.value, seen.rowwise});
  device_.quantize({again});
  return again.columnwise;
}

void Linear::inverse_hadamard(const Tensor& gradient, const Tensor& turned, const Tensor& value,
                              const QuantFormat& format, bool accumulate) const {
  const Scope scope(arena_);
  ops::InverseHadamard op{gradient, accumulate, turned, {}, {format, {}, {}}};
  if (recipe_.mask_clipped) {
    op.value = value;
    op.operand = push_gemm_operand(arena_, Segment::workspace, format, value.rows, value.cols);
    device_.quantize({{.value = value, .rowwise = op.operand}});
  }
  device_.inverse_hadamard(op);
}

}  // namespace precbench
