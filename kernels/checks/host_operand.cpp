// Random operands and their exact values. See host_operand.h.
#include "kernels/checks/host_operand.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/devices.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/fp4.h"
#include "kernels/numerics/random.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::checks {

double dequantized(const GemmOperand& operand, std::int64_t rows, std::int64_t k, std::int64_t r,
                   std::int64_t c) {
  const QuantFormat& format = operand.format;
  if (!format.quantized())
    return bf16_decode(operand.data.as<std::uint16_t>()[operand.transposed ? c * rows + r : r * k + c]);
  const std::int64_t block = block_length(format.granularity);
  const std::int64_t at = scale_index(format.granularity, rows, k, r, block ? c / block : 0);
  const auto byte = [&] { return operand.scale.as<std::uint8_t>()[at]; };
  const double scale = format.scale == ScaleType::ue8m0  ? ue8m0_decode(byte())
                       : format.scale == ScaleType::e4m3 ? e4m3_decode(byte())
                                                         : operand.scale.as<float>()[at];
  if (format.dtype == DType::e2m1) {
    const std::int64_t i = r * k + c;
    const std::uint8_t code = code_of_two(operand.data.as<std::uint8_t>()[i / 2], i);
    return e2m1_decode(code) * scale *
           fp4_tensor_factor(format, operand.amax.empty() ? 0.0f : *operand.amax.as<float>());
  }
  if (held_in_bf16(format.dtype)) return scale * bf16_decode(operand.data.as<std::uint16_t>()[r * k + c]);
  const std::uint8_t code = operand.data.as<std::uint8_t>()[r * k + c];
  return scale * (format.dtype == DType::e4m3 ? e4m3_decode(code) : e5m2_decode(code));
}

const double* HostOperand::row(std::int64_t r, std::vector<double>& buffer) const {
  if (!values.empty()) return &values[static_cast<std::size_t>(r * k)];
  buffer.resize(static_cast<std::size_t>(k));
  for (std::int64_t c = 0; c < k; ++c) buffer[static_cast<std::size_t>(c)] = dequantized(view, rows, k, r, c);
  return buffer.data();
}

void fill_operand(std::uint16_t* bf16, std::int64_t rows, std::int64_t k, bool transposed, unsigned seed) {
  // Exponents in [-4, 4], from streams of their own.
  const auto exponent = [&](std::uint64_t stream, std::int64_t i) {
    return static_cast<int>(random_bits(seed + (stream << 32), static_cast<std::uint64_t>(i)) % 9) - 4;
  };
  const std::int64_t blocks = (k + 127) / 128;
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const int size = exponent(1, r) + exponent(2, r * blocks + block);
      for (std::int64_t c = block * 128; c < std::min(k, block * 128 + 128); ++c)
        bf16[transposed ? c * rows + r : r * k + c] =
            bf16_encode(std::ldexp(irwin_hall_normal(seed, static_cast<std::uint64_t>(r * k + c)), size));
    }
}

HostOperand make_quantized_tensor(const QuantFormat& format, std::int64_t rows, std::int64_t k,
                                  bool transposed, unsigned seed) {
  HostOperand operand;
  operand.rows = rows;
  operand.k = k;
  operand.bf16.resize(static_cast<std::size_t>(rows * k));
  fill_operand(operand.bf16.data(), rows, k, transposed, seed);
  const Tensor value{operand.bf16.data(), DType::bf16, transposed ? k : rows, transposed ? rows : k};
  operand.view = {format, value, {}, transposed};
  if (format.quantized()) {
    const std::int64_t scales = scale_count(format.granularity, rows, k);
    operand.data.resize(static_cast<std::size_t>(bytes_of(format.dtype, rows * k)));
    operand.scales.resize(static_cast<std::size_t>(bytes_of(scale_dtype(format), scales)));
    operand.view.data = {operand.data.data(), format.dtype, rows, k};
    operand.view.scale = {operand.scales.data(), scale_dtype(format), 1, scales};
    operand.view.transposed = false;
    if (format.scale == ScaleType::e4m3) operand.view.amax = {operand.amax.data(), DType::f32, 1, 1};
    float amax = 0;
    make_cpu_device(1)->quantize(
        {{.value = value, .rowwise = operand.view, .amax_out = {&amax, DType::f32, 1, 1}}});
  }
  std::vector<double> values(static_cast<std::size_t>(rows * k));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c)
      values[static_cast<std::size_t>(r * k + c)] = dequantized(operand.view, rows, k, r, c);
  operand.values = std::move(values);
  return operand;
}

}  // namespace precbench::checks
