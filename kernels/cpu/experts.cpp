// Expert GEMMs, each a dense GEMM of one expert's rows, and the quantization of their operands.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/quantize_rows.h"

namespace precbench {
namespace {

bool wanted(const GemmOperand& operand) { return !operand.empty() && operand.format.quantized(); }

/// Returns true if a stacked copy is not that of one matrix, for experts of `rows` rows.
bool is_by_expert(const GemmOperand& operand, std::int64_t rows) {
  const Granularity g = operand.format.granularity;
  return operand.format.quantized() && scales_by_expert(g) &&
         (g == Granularity::tensor || rows % block_rows(g) != 0);
}

}  // namespace

void CpuDevice::quantize_groups(const QuantizedTensor& x, const Groups& groups) {
  if (!wanted(x.columnwise) || x.columnwise.format.granularity != Granularity::row) return do_quantize({x});
  QuantizedTensor rest = x;
  rest.columnwise = {};
  do_quantize({rest});
  const std::int64_t rows = x.value.rows, cols = x.value.cols;
  const float* source = widen(0, {{}, x.value, {}});
  float* transposed = scratch(1, rows * cols);
  cpu::transpose_matrix(threads_, transposed, source, rows, cols);
  const std::int32_t* offsets = groups.offsets.as<std::int32_t>();
  cpu::for_rows(threads_, cols, 0, [&](std::int64_t c, float*) {
    std::uint8_t* codes = x.columnwise.data.as<std::uint8_t>() + c * rows;
    const float* column = transposed + c * rows;
    for (std::int64_t e = 0; e < groups.experts(); ++e) {
      const std::int64_t first = offsets[e], n = offsets[e + 1] - first;
      const cpu::Scale scale = cpu::scale_of(cpu::amax_of(column + first, n), x.columnwise.format);
      cpu::store_scale(x.columnwise.scale, e * cols + c, scale);
      cpu::cast(x.columnwise.data, c * rows + first, column + first, n, scale.multiply, x.columnwise.format);
    }
    std::memset(codes + offsets[groups.experts()], 0, rows - offsets[groups.experts()]);
  });
}

void CpuDevice::do_quantize_experts(const ops::QuantizeExperts& op) {
  const Tensor& value = op.w.value;
  const std::int64_t E = op.experts, N = value.rows / E, k = value.cols;
  const float* source = widen(0, {{}, value, {}});
  const bool known = !op.w.amax_in.empty();
  const auto of_tensor = [](const GemmOperand& operand) {
    return wanted(operand) && operand.format.granularity == Granularity::tensor;
  };
  const bool scaled = of_tensor(op.w.rowwise) || of_tensor(op.w.columnwise);
  std::vector<float> amaxes(E);
  if (!op.w.amax_out.empty() || (scaled && !known))
    cpu::for_rows(threads_, E, 0,
                  [&](std::int64_t e, float*) { amaxes[e] = cpu::amax_of(source + e * N * k, N * k); });
  if (!op.w.amax_out.empty())
    for (std::int64_t e = 0; e < E; ++e) {
      float& left = op.w.amax_out.as<float>()[e];
      left = cpu::amax_of(&amaxes[e], 1, known ? left : 0.0f);
    }
  const float* scaled_by = known ? op.w.amax_in.as<float>() : amaxes.data();
  const auto quantize = [&](const GemmOperand& operand, const float* stack, std::int64_t rows,
                            std::int64_t length) {
    if (!is_by_expert(operand, rows))
      return cpu::quantize_rows(threads_, operand, {stack, E * rows, length}, 0.0f);
    for (std::int64_t e = 0; e < E; ++e)
      cpu::quantize_rows(threads_, part_of_expert(operand, e, E), {stack + e * rows * length, rows, length},
                         scaled_by[e]);
  };
  if (wanted(op.w.rowwise)) quantize(op.w.rowwise, source, N, k);
  if (!wanted(op.w.columnwise)) return;
  float* transposed = scratch(1, value.size());
  for (std::int64_t e = 0; e < E; ++e)
    cpu::transpose_matrix(threads_, transposed + e * N * k, source + e * N * k, N, k);
  quantize(op.w.columnwise, transposed, k, N);
}

const float* CpuDevice::widen_experts(int slot, const GemmOperand& operand, std::int64_t experts) {
  if (!is_by_expert(operand, operand.data.rows / experts)) return widen(slot, operand);
  float* out = scratch(slot, operand.data.size());
  for (std::int64_t e = 0; e < experts; ++e)
    widen_fp8(out + e * operand.data.size() / experts, part_of_expert(operand, e, experts));
  return out;
}

const float* CpuDevice::widen_columns(int slot, const GemmOperand& operand, const Groups& groups) {
  if (!operand.format.quantized() || operand.format.granularity != Granularity::row)
    return widen(slot, operand);
  const std::int64_t rows = operand.data.rows, length = operand.data.cols;
  float* out = scratch(slot, operand.data.size());
  const std::int32_t* offsets = groups.offsets.as<std::int32_t>();
  const bool e4m3 = operand.format.dtype == DType::e4m3;
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    const std::uint8_t* codes = operand.data.as<std::uint8_t>() + r * length;
    for (std::int64_t e = 0; e < groups.experts(); ++e) {
      const float scale = operand.scale.as<float>()[e * rows + r];
      for (std::int64_t i = offsets[e]; i < offsets[e + 1]; ++i)
        out[r * length + i] = (e4m3 ? e4m3_decode(codes[i]) : e5m2_decode(codes[i])) * scale;
    }
  });
  return out;
}

void CpuDevice::do_grouped_matmul(const ops::GroupedMatmul& op) {
  const Groups& groups = op.groups;
  const std::int64_t E = groups.experts();
  const bool wgrad = op.options.role == GemmRole::wgrad;
  const float* A = wgrad ? widen_columns(0, op.a, groups) : widen(0, op.a);
  const float* B = wgrad ? widen_columns(1, op.b, groups) : widen_experts(1, op.b, E);
  const std::int64_t A_stride = op.a.data.cols, B_stride = op.b.data.cols;
  for (std::int64_t e = 0; e < E; ++e) {
    const std::int64_t first = groups.offsets.as<std::int32_t>()[e],
                       rows = groups.counts.as<std::int32_t>()[e];
    if (wgrad) {
      const Tensor d = op.d.slice_rows(e * op.d.rows / E, op.d.rows / E);
      if (rows == 0 && !op.options.accumulate) std::memset(d.data, 0, d.bytes());
      if (rows == 0) continue;
      cpu::multiply(threads_, d, {A + first * (op.a.transposed ? A_stride : 1), A_stride, op.a.transposed},
                    {B + first * (op.b.transposed ? B_stride : 1), B_stride, op.b.transposed}, rows, 1.0f,
                    op.options.accumulate);
    } else if (rows > 0) {
      cpu::multiply(threads_, op.d.slice_rows(first, rows), {A + first * A_stride, A_stride, false},
                    {B + e * op.b.data.size() / E, B_stride, op.b.transposed}, op.a.k(), 1.0f,
                    op.options.accumulate);
    }
  }
}

}  // namespace precbench
