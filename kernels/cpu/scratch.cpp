// FP32 copies that CPU ops make of their operands: their sizes, which a dry run also needs, and their memory.
// Slots 0 and 1 hold operands, widened or transposed; slot 2 holds intermediate results.
#include <algorithm>
#include <stdexcept>

#include "kernels/cpu/cpu_device.h"

namespace precbench {
namespace {

/// Returns the size of the copy of a matrix that widen() reads.
std::int64_t widened(const Tensor& data) { return data.dtype == DType::f32 ? 0 : data.size(); }

bool is_cast(const GemmOperand& operand) { return !operand.empty() && operand.format.quantized(); }

/// Returns the scratch for the quantized copies of a value in do_quantize() and quantize_groups().
ScratchSizes casting(const QuantizedTensor& x) {
  if (!is_cast(x.rowwise) && !is_cast(x.columnwise) && x.amax_out.empty()) return {};
  const bool copied = is_cast(x.columnwise) || (is_cast(x.rowwise) && x.rowwise.format.transform);
  return {widened(x.value), copied ? x.value.size() : 0};
}

ScratchSizes most(ScratchSizes a, const ScratchSizes& b) {
  for (int i = 0; i < kScratchSlots; ++i) a[i] = std::max(a[i], b[i]);
  return a;
}

/// Returns the scratch for reading a kept input, and for making it from `value` if there is one.
ScratchSizes keeping(const GemmOperand& kept, const Tensor& value = {}) {
  if (kept.empty()) return {};
  return {widened(value), 0, kept.data.size()};
}

}  // namespace

float* CpuDevice::scratch(int slot, std::int64_t size) {
  Scratch& buffer = scratch_[slot];
  const std::int64_t known = scratch_sizes()[slot];
  if (size > known) throw std::logic_error("an op takes more scratch than it has told of");
  if (buffer.size < known) {
    buffer = {};  // frees the old one first
    buffer = {std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(known)), known};
  }
  return buffer.data.get();
}

ScratchSizes CpuDevice::scratch_of(const ops::Quantize& op) const { return casting(op.x); }
ScratchSizes CpuDevice::scratch_of(const ops::Dequantize& op) const { return {widened(op.operand.data)}; }
ScratchSizes CpuDevice::scratch_of(const ops::InverseHadamard& op) const {
  return {widened(op.src), op.value.size()};
}
ScratchSizes CpuDevice::scratch_of(const ops::Matmul& op) const {
  return {widened(op.a.data), widened(op.b.data)};
}
ScratchSizes CpuDevice::scratch_of(const ops::Amax& op) const { return {widened(op.x)}; }
ScratchSizes CpuDevice::scratch_of(const ops::QuantizeWithAmax& op) const { return {widened(op.value)}; }
ScratchSizes CpuDevice::scratch_of(const ops::QuantizationError& op) const {
  const bool copied = op.operand.format.dtype == DType::e2m1 && (op.columns || op.operand.format.transform);
  return {widened(op.value), widened(op.operand.data), copied ? op.value.size() : 0};
}
ScratchSizes CpuDevice::scratch_of(const ops::AddRmsnorm& op) const {
  return most(casting(op.h), keeping(op.kept, op.x));
}
ScratchSizes CpuDevice::scratch_of(const ops::RecomputeRmsnorm& op) const { return casting(op.h); }
ScratchSizes CpuDevice::scratch_of(const ops::RmsnormBackward& op) const {
  return most(casting(op.dx), keeping(op.kept));
}
ScratchSizes CpuDevice::scratch_of(const ops::AddLayernorm& op) const { return casting(op.h); }
ScratchSizes CpuDevice::scratch_of(const ops::RecomputeLayernorm& op) const { return casting(op.h); }
ScratchSizes CpuDevice::scratch_of(const ops::LayernormBackward& op) const { return casting(op.dx); }
ScratchSizes CpuDevice::scratch_of(const ops::Activate& op) const { return casting(op.s); }
ScratchSizes CpuDevice::scratch_of(const ops::ActivateBackward& op) const {
  return most(casting(op.dz), casting(op.s));
}
ScratchSizes CpuDevice::scratch_of(const ops::RopeBackward& op) const { return casting(op.dqkv); }
ScratchSizes CpuDevice::scratch_of(const ops::Attention& op) const { return casting(op.out); }
ScratchSizes CpuDevice::scratch_of(const ops::Swiglu& op) const {
  return most(casting(op.s), keeping(op.kept, op.gate_up));
}
ScratchSizes CpuDevice::scratch_of(const ops::SwigluBackward& op) const {
  return most(most(casting(op.dgate_up), casting(op.s)), keeping(op.kept));
}
ScratchSizes CpuDevice::scratch_of(const ops::Route& op) const { return {widened(op.x), widened(op.router)}; }
ScratchSizes CpuDevice::scratch_of(const ops::RouteBackward& op) const {
  return {widened(op.x), widened(op.router), op.z.size()};
}
ScratchSizes CpuDevice::scratch_of(const ops::QuantizeExperts& op) const {
  return {widened(op.w.value), is_cast(op.w.columnwise) ? op.w.value.size() : 0};
}
ScratchSizes CpuDevice::scratch_of(const ops::GroupedMatmul& op) const {
  return {widened(op.a.data), widened(op.b.data)};
}
ScratchSizes CpuDevice::scratch_of(const ops::GroupedSwiglu& op) const { return casting(op.s); }
ScratchSizes CpuDevice::scratch_of(const ops::GroupedSwigluBackward& op) const {
  return most(casting(op.dgate_up), casting(op.s));
}

/// Token codes are gathered if present, with the tokens' amax.
ScratchSizes CpuDevice::scratch_of(const ops::Permute& op) const {
  const bool weighted = !op.weights.empty();
  QuantizedTensor x = op.x;
  if (!weighted) {
    x.rowwise = {};
    x.amax_out = {};
  }
  const bool amax = !weighted && !op.x.amax_out.empty();
  return most(op.src.value.empty() ? ScratchSizes{} : casting(x),
              amax ? ScratchSizes{widened(op.src.value)} : ScratchSizes{});
}

}  // namespace precbench
