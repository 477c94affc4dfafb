// Custom formats on the CPU: grids, and elements under scales with a mantissa. The arithmetic is that of
// numerics/custom_format.h.
#include "kernels/numerics/custom_format.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantize_rows.h"

namespace precbench {

using namespace cpu;

void CpuDevice::quantize_custom(const GemmOperand& operand, const float* matrix, float tensor_amax,
                                const RandomStream& random, bool columns) {
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const QuantFormat& format = operand.format;
  check_whole_bytes(format, k);
  const ScaleRule rule = scale_rule(format);
  if (!operand.amax.empty()) {
    std::vector<float> by_row(static_cast<std::size_t>(rows));
    for_rows(threads_, rows, 0, [&](std::int64_t r, float*) { by_row[r] = amax_of(matrix + r * k, k); });
    *operand.amax.as<float>() = tensor_amax = amax_of(by_row.data(), rows);
  }
  const bool stochastic = format.element_rounding == ElementRounding::stochastic;
  const std::uint64_t seed = stream_seed(word_of(random), random.stream + (columns ? 1u : 0u));
  const auto make_scale = [&](float amax) {
    const CustomScale scale = custom_scale(rule, amax, tensor_amax);
    return Scale{scale.multiply, scale.dequantize, scale.byte};
  };
  const auto cast_run = [&](std::int64_t r, std::int64_t k0, std::int64_t n, const Scale& scale) {
    const float* x = matrix + r * k + k0;
    if (!format.grid) return cast(operand.data, r * k + k0, x, n, scale.multiply, format);
    const auto code = [&](std::int64_t i) {
      const float scaled = x[i] * scale.multiply;
      return stochastic
                 ? grid_encode_stochastic(*format.grid, scaled,
                                          random_bits(seed, place_of_element(random.rows, columns ? rows : k,
                                                                             columns, r, k0 + i)))
                 : grid_encode(*format.grid, scaled);
    };
    auto* codes = operand.data.as<std::uint8_t>();
    const std::int64_t first = r * k + k0;
    if (format.dtype == DType::grid4)
      for (std::int64_t i = 0; i < n; i += 2)
        codes[(first + i) / 2] = static_cast<std::uint8_t>(code(i) | code(i + 1) << 4);
    else
      for (std::int64_t i = 0; i < n; ++i) codes[first + i] = code(i);
  };
  quantize_scopes(threads_, operand, {matrix, rows, k}, tensor_amax, make_scale, cast_run);
}

void CpuDevice::widen_custom(float* out, const GemmOperand& operand) {
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const QuantFormat& format = operand.format;
  const Granularity g = format.granularity;
  const std::int64_t block = block_length(g) ? block_length(g) : k;
  const float factor =
      custom_tensor_factor(scale_rule(format), operand.amax.empty() ? 0.0f : *operand.amax.as<float>());
  for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    for (std::int64_t k0 = 0, kb = 0; k0 < k; k0 += block, ++kb) {
      const float scale = stored_scale(format.scale, operand.scale.data, scale_index(g, rows, k, r, kb));
      for (std::int64_t at = r * k + k0; at < r * k + std::min(k, k0 + block); ++at)
        out[at] = value_of_code(format, operand.data.data, at) * scale * factor;
    }
  });
}

}  // namespace precbench
