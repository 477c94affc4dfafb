// Building blocks of op costs; internal to kernels/device.
#pragma once

#include <utility>

#include "kernels/device/ops.h"

namespace precbench::ops {

inline double bytes(const Tensor& t) { return t.empty() ? 0.0 : static_cast<double>(t.bytes()); }

inline double quantized_bytes(const GemmOperand& operand) {
  return operand.format.quantized() ? bytes(operand.data) + bytes(operand.scale) + bytes(operand.amax) : 0.0;
}

inline double copy_bytes(const QuantizedTensor& x) {
  return quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
}

/// Returns the bytes that a producer writes: the value, if it is kept, and the quantized copies.
inline double written_bytes(const QuantizedTensor& x) {
  return (x.keep_value ? bytes(x.value) : 0.0) + quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
}

/// Returns the dtype whose peak rate applies to a GEMM of these formats.
inline DType math_of(const QuantFormat& a, const QuantFormat& b) {
  if (!a.quantized() || !b.quantized()) return DType::bf16;
  return a.dtype == DType::e2m1 && b.dtype == DType::e2m1 ? DType::e2m1 : DType::e4m3;
}

inline OpFormat format_of(const GemmOperand& x) {
  const QuantFormat& format = x.format;
  return {format.dtype, format.granularity, format.scale};
}

/// Adds the casts of an op that makes `x` from a value: one per quantized copy, and one for what it keeps of its input.
inline OpCost casting(OpCost cost, const QuantizedTensor& x, const GemmOperand& kept = {}) {
  cost.casts += kept.empty() ? 0 : 1;
  for (const auto& [operand, i] : {std::pair(&x.rowwise, 0), std::pair(&x.columnwise, 1)})
    if (quantized_bytes(*operand) > 0) {
      ++cost.casts;
      cost.formats[i] = format_of(*operand);
    }
  return cost;
}

inline OpCost shaped(OpCost cost, const std::array<std::int64_t, 7>& shape) {
  cost.shape = shape;
  return cost;
}

inline OpCost shaped_as(OpCost cost, const Tensor& rows) { return shaped(cost, {rows.rows, rows.cols}); }

inline OpCost shaped_as(OpCost cost, const AttentionShape& s) {
  return shaped(cost, {s.B, s.T, s.keys(), s.offset, s.heads, s.kv_heads, s.head_dim});
}

/// Returns the cost with a GEMM's operands.
inline OpCost multiplying(OpCost cost, const GemmOperand& a, const GemmOperand& b) {
  cost.math = math_of(a.format, b.format);
  cost.formats = {format_of(a), format_of(b)};
  return cost;
}

/// Returns the bytes of a destination; with accumulation it is read as well.
inline double updated_bytes(const Tensor& t, bool accumulate) { return bytes(t) * (accumulate ? 2 : 1); }

inline OpCost of(const char* name, OpClass op_class, double byte_count, double flops = 0) {
  return {.name = name, .op_class = op_class, .flops = flops, .bytes = byte_count};
}

}  // namespace precbench::ops
