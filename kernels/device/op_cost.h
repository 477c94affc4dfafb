// Building blocks of op costs; internal to kernels/device.
#pragma once

#include "kernels/device/ops.h"

namespace precbench::ops {

inline double bytes(const Tensor& t) { return t.empty() ? 0.0 : static_cast<double>(t.bytes()); }

inline double quantized_bytes(const GemmOperand& operand) {
  return operand.format.quantized() ? bytes(operand.data) + bytes(operand.scale) + bytes(operand.amax) : 0.0;
}

inline double copy_bytes(const QuantizedTensor& x) {
  return quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
}

/// Returns the dtype whose peak rate applies to a GEMM of these formats.
inline DType math_of(const QuantFormat& a, const QuantFormat& b) {
  if (!a.quantized() || !b.quantized()) return DType::bf16;
  return a.dtype == DType::e2m1 && b.dtype == DType::e2m1 ? DType::e2m1 : DType::e4m3;
}

/// Returns the bytes that a producer writes: the value, if it is kept, and the quantized copies.
inline double written_bytes(const QuantizedTensor& x) {
  return (x.keep_value ? bytes(x.value) : 0.0) + quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
}

/// Adds the casts of an op that makes `x` from a value: one per quantized copy.
inline OpCost casting(OpCost cost, const QuantizedTensor& x) {
  cost.casts += (quantized_bytes(x.rowwise) > 0) + (quantized_bytes(x.columnwise) > 0);
  return cost;
}

/// Returns the bytes of a destination; with accumulation it is read as well.
inline double updated_bytes(const Tensor& t, bool accumulate) { return bytes(t) * (accumulate ? 2 : 1); }

inline OpCost of(const char* name, OpClass op_class, double byte_count, double flops = 0,
                 DType math = DType::bf16) {
  return {name, op_class, flops, byte_count, math, 0};
}

}  // namespace precbench::ops
