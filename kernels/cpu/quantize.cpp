// Quantization as numerics defines it: an amax over a scope (tensor, row or block), a scale from it, and
// every element multiplied by the scale and cast with saturation. The rowwise copy keeps the matrix's order;
// the columnwise copy is the transposed matrix's rowwise copy. Both come from the high-precision value, never
// from each other. Also dequantization.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantize_rows.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/fp4.h"

namespace precbench {

using namespace cpu;

namespace {

bool is_fp4(const QuantFormat& format) { return format.dtype == DType::e2m1; }

}  // namespace

void CpuDevice::do_amax(const ops::Amax& op) {
  *op.out.as<float>() = amax_of(widen(0, {{}, op.x, {}, false}), op.x.size());
}

void CpuDevice::do_quantize_with_amax(const ops::QuantizeWithAmax& op) {
  const Scale scale = scale_of(*op.amax.as<float>(), op.operand.format);
  store_scale(op.operand.scale, 0, scale);
  if (op.value.empty()) return;
  cast(op.operand.data, 0, widen(0, {{}, op.value, {}, false}), op.value.size(), scale.multiply,
       op.operand.format);
}

void CpuDevice::do_update_history(const ops::UpdateHistory& op) {
  const std::int64_t length = op.history.empty() ? 0 : op.history.cols;
  for (std::int64_t slot = 0; slot < op.known.size(); ++slot) {
    const float amax = std::exchange(op.staged.as<float>()[slot], 0.0f);
    if (!(amax > 0) || !std::isfinite(amax)) continue;
    float* history = op.history.as<float>() + slot * length;
    const float largest = std::max(amax, length ? *std::max_element(history, history + length) : 0.0f);
    op.known.as<float>()[slot] = op.most_recent ? amax : largest;
    if (length == 0) continue;
    std::copy(history + 1, history + length, history);
    history[length - 1] = amax;
  }
}

void CpuDevice::do_transpose(const ops::Transpose& op) {
  const std::int64_t rows = op.src.data.rows, k = op.src.data.cols;
  transpose_matrix(threads_, op.dst.data.as<std::uint8_t>(), op.src.data.as<std::uint8_t>(), rows, k);
  std::memset(op.dst.scale.data, 0, op.dst.scale.bytes());
  const Granularity g = op.src.format.granularity;
  const std::int64_t block = block_length(g) ? block_length(g) : std::max(rows, k);
  for (std::int64_t r = 0; r < rows; r += block)
    for (std::int64_t c = 0; c < k; c += block)
      op.dst.scale.as<float>()[scale_index(g, k, rows, c, r / block)] =
          op.src.scale.as<float>()[scale_index(g, rows, k, r, c / block)];
}

void CpuDevice::do_copy_columns(const ops::CopyColumns& op) {
  const bool into = op.dst.cols >= op.src.cols;
  const std::int64_t cols = std::min(op.dst.cols, op.src.cols);
  for (std::int64_t r = 0; r < op.src.rows; ++r)
    std::memcpy(op.dst.elements(r * op.dst.cols + (into ? op.first : 0), cols).data,
                op.src.elements(r * op.src.cols + (into ? 0 : op.first), cols).data,
                static_cast<std::size_t>(bytes_of(op.src.dtype, cols)));
}

void CpuDevice::do_place_rows(const ops::PlaceRows& op) {
  const std::int64_t rows = op.src.rows / op.parts;
  for (int rank = 0; rank < op.parts; ++rank) {
    const RowMap map = SequencePart{op.T, op.parts, rank}.rows(op.sequences());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t by_rank = rank * rows + row, by_position = map.of(row);
      const Tensor source = op.src.slice_rows(op.to_ranks ? by_position : by_rank, 1);
      std::memcpy(op.dst.slice_rows(op.to_ranks ? by_rank : by_position, 1).data, source.data,
                  static_cast<std::size_t>(source.bytes()));
    }
  }
}

void CpuDevice::do_quantize(const ops::Quantize& op) {
  const QuantizedTensor& x = op.x;
  const std::int64_t rows = x.value.rows, cols = x.value.cols;
  const bool want_row = !x.rowwise.empty() && x.rowwise.format.quantized();
  const bool want_col = !x.columnwise.empty() && x.columnwise.format.quantized();
  if (!want_row && !want_col && x.amax_out.empty()) return;

  const float* source = widen(0, {{}, x.value, {}, false});
  if (!x.amax_out.empty()) {
    std::vector<float> by_row(rows);
    cpu::for_rows(threads_, rows, 0,
                  [&](std::int64_t r, float*) { by_row[r] = amax_of(source + r * cols, cols); });
    float& amax = *x.amax_out.as<float>();
    amax = amax_of(by_row.data(), rows, x.amax_in.empty() ? 0.0f : amax);
  }
  const Tensor& scaled_by = x.amax_in.empty() ? x.amax_out : x.amax_in;
  const float amax = scaled_by.empty() ? 0.0f : *scaled_by.as<float>();
  if (want_row && is_fp4(x.rowwise.format))
    quantize_fp4(x.rowwise, source, x.random, false);
  else if (want_row && is_custom(x.rowwise.format))
    quantize_custom(x.rowwise, source, amax, x.random, false);
  else if (want_row)
    quantize_rows(threads_, x.rowwise, {source, rows, cols}, amax);
  if (want_col) {
    float* transposed = scratch(1, rows * cols);
    transpose_matrix(threads_, transposed, source, rows, cols);
    if (is_fp4(x.columnwise.format)) return quantize_fp4(x.columnwise, transposed, x.random, true);
    if (is_custom(x.columnwise.format))
      return quantize_custom(x.columnwise, transposed, amax, x.random, true);
    quantize_rows(threads_, x.columnwise, {transposed, cols, rows}, amax);
  }
}

const float* CpuDevice::widen(int slot, const GemmOperand& operand) {
  const Tensor& data = operand.data;
  if (data.dtype == DType::f32) return data.as<float>();
  float* out = scratch(slot, data.size());
  if (!operand.format.quantized()) {
    cpu::for_rows(threads_, data.rows, 0, [&](std::int64_t r, float*) {
      cpu::load(data, r * data.cols, data.cols, out + r * data.cols);
    });
    return out;
  }
  if (is_fp4(operand.format))
    widen_fp4(out, operand);
  else if (is_custom(operand.format))
    widen_custom(out, operand);
  else
    widen_fp8(out, operand);
  return out;
}

Tensor CpuDevice::dequantized(const GemmOperand& kept) {
  return {const_cast<float*>(widen(2, kept)), DType::f32, kept.data.rows, kept.data.cols};
}

void CpuDevice::widen_fp8(float* out, const GemmOperand& operand) {
  const Tensor& data = operand.data;
  const Granularity g = operand.format.granularity;
  const std::int64_t block = block_length(g) ? block_length(g) : data.cols;
  cpu::for_rows(threads_, data.rows, 0, [&](std::int64_t r, float*) {
    for (std::int64_t k0 = 0, kb = 0; k0 < data.cols; k0 += block, ++kb) {
      const std::int64_t n = std::min(block, data.cols - k0);
      const std::int64_t index = scale_index(g, data.rows, data.cols, r, kb);
      const float scale = operand.scale.dtype == DType::ue8m0
                              ? ue8m0_decode(operand.scale.as<std::uint8_t>()[index])
                              : operand.scale.as<float>()[index];
      const std::uint8_t* q = data.as<std::uint8_t>() + r * data.cols + k0;
      float* target = out + r * data.cols + k0;
      const std::uint16_t* wide = data.as<std::uint16_t>() + r * data.cols + k0;
      if (held_in_bf16(operand.format.dtype))
        for (std::int64_t i = 0; i < n; ++i) target[i] = bf16_decode(wide[i]) * scale;
      else if (operand.format.dtype == DType::e4m3)
        for (std::int64_t i = 0; i < n; ++i) target[i] = e4m3_decode(q[i]) * scale;
      else
        for (std::int64_t i = 0; i < n; ++i) target[i] = e5m2_decode(q[i]) * scale;
    }
  });
}

void CpuDevice::do_quantization_error(const ops::QuantizationError& op) {
  const float* source = widen(0, {{}, op.value, {}, false});
  const float* quantized = widen(1, op.operand);
  std::int64_t rows = op.value.rows, cols = op.value.cols;
  bool columns = op.columns;
  const QuantFormat& format = op.operand.format;
  float factor = 1.0f;  // factor still missing in `quantized`
  if (is_fp4(format)) {
    factor = fp4_tensor_factor(format, op.operand.amax.empty() ? 0.0f : *op.operand.amax.as<float>());
    if (columns) {
      float* transposed = scratch(2, rows * cols);
      transpose_matrix(threads_, transposed, source, rows, cols);
      std::swap(rows, cols);
      source = transposed;
      columns = false;
    }
    source = transformed(2, format, source, rows, cols, op.random, op.columns);
  }
  const float max = scale_rule(format).max;
  const float half_steps = half_steps_at_end(format);
  double signal = 0, noise = 0, nonzero = 0, underflow = 0, saturated = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t at = columns ? c * rows + r : r * cols + c;
      const float v = source[r * cols + c], q = quantized[at] * factor;
      const double error = static_cast<double>(v) - q;
      signal += static_cast<double>(v) * v;  // exact products
      noise = multiply_add(error, error, noise);
      nonzero += v != 0;
      underflow += v != 0 && q == 0;
      // Saturated: the cast hit the format's end and lost more than rounding would. Exact with a power-of-two
      // scale, for which the division q is exact.
      const float magnitude = std::fabs(q);
      saturated += std::fabs(value_of_code(format, op.operand.data.data, at)) >= max &&
                   std::fabs(v) > magnitude + magnitude / half_steps;
    }
  const double values[] = {signal, noise, nonzero, underflow, saturated};
  for (int i = 0; i < 5; ++i) op.out.as<float>()[i] = static_cast<float>(values[i]);
}

}  // namespace precbench
