// Custom formats through a device's ops: against a reference in FP64, against the built-in formats that a grid
// can describe, and any device against the CPU device.
#include "kernels/numerics/custom_format.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"
#include "kernels/numerics/grid_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kFormatRows = 64, kFormatCols = 160;

/// Values of many sizes, BF16, with a row and a block of zeros.
std::vector<float> test_values() {
  std::vector<float> x = normal(11, kFormatRows * kFormatCols);
  for (std::int64_t i = 0; i < kFormatRows * kFormatCols; ++i)
    x[i] *= std::ldexp(1.0f, static_cast<int>(i / kFormatCols % 7) - 3);
  std::fill_n(x.begin() + 5 * kFormatCols, kFormatCols, 0.0f);
  return rounded(x);
}

/// A quantized copy with its own memory.
struct Copy {
  Owned data, scale, amax, tensor_amax;
  GemmOperand operand;

  Copy(const QuantFormat& format, std::int64_t rows, std::int64_t k)
      : data(format.dtype, rows, k),
        scale(scale_dtype(format), 1, scale_count(format.granularity, rows, k)),
        amax(DType::f32, 1, 1),
        tensor_amax(DType::f32, 1, 1),
        operand{format, data, scale, false, format.scale == ScaleType::e4m3 ? amax.tensor() : Tensor{}} {}
};

Copy quantized_copy(Device& device, const Owned& value, const QuantFormat& format, bool columns = false,
                    const RandomStream& random = {}) {
  const std::int64_t rows = value.tensor().rows, cols = value.tensor().cols;
  Copy copy(format, columns ? cols : rows, columns ? rows : cols);
  QuantizedTensor x{.value = value, .random = random};
  if (format.granularity == Granularity::tensor) x.amax_out = copy.tensor_amax;
  (columns ? x.columnwise : x.rowwise) = copy.operand;
  device.quantize({x});
  return copy;
}

std::vector<float> dequantized(Device& device, const Copy& copy) {
  const Owned out(DType::f32, copy.operand.data.rows, copy.operand.data.cols);
  device.dequantize({out, copy.operand});
  return out.floats();
}

/// Returns the elements of a format in its own units, ascending.
std::vector<double> values_of(const QuantFormat& format) {
  std::vector<double> values;
  if (format.grid) {
    values.assign(format.grid->values, format.grid->values + format.grid->count);
    return values;
  }
  const std::string name = element_name(format);
  const int exponent_bits = name[1] - '0', mantissa_bits = name[3] - '0',
            bias = (1 << (exponent_bits - 1)) - 1;
  for (const float value :
       minifloats(mantissa_bits, 1 - bias, bias + (exponent_bits < 5 ? 1 : 0), exponent_bits < 5 ? 1 : 0)) {
    values.push_back(value);
    if (value != 0) values.insert(values.begin(), -static_cast<double>(value));
  }
  return values;
}

/// Returns the nearest of ascending `values`; of two, the one an even number of places from 0.
double nearest(const std::vector<double>& values, double x) {
  const auto above = std::lower_bound(values.begin(), values.end(), x);
  if (above == values.begin()) return values.front();
  if (above == values.end()) return values.back();
  const double up = *above - x, down = x - *(above - 1);
  if (up != down) return up < down ? *above : *(above - 1);
  const auto zero = std::lower_bound(values.begin(), values.end(), 0.0);
  return (above - zero) % 2 == 0 ? *above : *(above - 1);
}

/// Returns the scale of a block in FP64 from its definition, and as it multiplies elements.
double reference_scale(const QuantFormat& format, double amax, double tensor_amax, double max) {
  std::vector<double> bytes;
  const int least = format.scale == ScaleType::e4m3 ? -6 : -14,
            largest = format.scale == ScaleType::e4m3 ? 8 : 16;
  for (const float value : minifloats(3, least, largest, 1)) bytes.push_back(value);
  if (format.scale == ScaleType::ue5m3)
    return nearest(bytes, static_cast<float>(amax) * (1.0f / static_cast<float>(max)));
  const float tensor_scale = 448.0f * static_cast<float>(max) / static_cast<float>(tensor_amax);
  return nearest(bytes, static_cast<float>(amax) * (tensor_scale * (1.0f / static_cast<float>(max))));
}

std::vector<float> transposed(const std::vector<float>& x) {
  std::vector<float> turned(x.size());
  for (std::int64_t r = 0; r < kFormatRows; ++r)
    for (std::int64_t c = 0; c < kFormatCols; ++c) turned[c * kFormatRows + r] = x[r * kFormatCols + c];
  return turned;
}

}  // namespace

TEST_CASE("custom formats: scales with a mantissa and their elements equal an FP64 reference", "[cpu][op]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> x = test_values();
  const Owned value(DType::bf16, kFormatRows, kFormatCols, x);
  double tensor_amax = 0;
  for (const float v : x) tensor_amax = std::max(tensor_amax, std::fabs(static_cast<double>(v)));
  for (const QuantFormat& format : custom_formats()) {
    const bool byte = format.scale == ScaleType::e4m3 || format.scale == ScaleType::ue5m3;
    if (!byte || format.element_rounding == ElementRounding::stochastic) continue;
    const std::vector<double> values = values_of(format);
    const double max = std::min(-values.front(), values.back());
    const std::int64_t wide = block_length(format.granularity), tall = block_rows(format.granularity);
    for (const bool columns : {false, true}) {
      INFO(describe(format) << (columns ? " columns" : " rows"));
      const std::int64_t rows = columns ? kFormatCols : kFormatRows, k = columns ? kFormatRows : kFormatCols;
      const std::vector<float> source = columns ? transposed(x) : x;
      const std::vector<float> got = dequantized(*device, quantized_copy(*device, value, format, columns));
      int wrong = 0;
      for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
        for (std::int64_t k0 = 0; k0 < k; k0 += wide) {
          double amax = 0;
          for (std::int64_t r = r0; r < r0 + tall; ++r)
            for (std::int64_t i = k0; i < k0 + wide; ++i)
              amax = std::max(amax, std::fabs(static_cast<double>(source[r * k + i])));
          const double scale = reference_scale(format, amax, tensor_amax, max);
          const double factor = format.scale == ScaleType::e4m3 ? tensor_amax / (448 * max) : 1;
          for (std::int64_t r = r0; r < r0 + tall; ++r)
            for (std::int64_t i = k0; i < k0 + wide; ++i) {
              const double v = source[r * k + i], step = scale * factor;
              const double expected = step == 0 ? 0 : nearest(values, v / step) * step;
              // An element within FP32's rounding of a midpoint may take either neighbour.
              const bool same = std::fabs(got[r * k + i] - expected) <= 1e-6 * std::fabs(expected);
              const double low = step == 0 ? 0 : nearest(values, v / step * (1 - 1e-6)) * step,
                           high = step == 0 ? 0 : nearest(values, v / step * (1 + 1e-6)) * step;
              wrong += !same && low == high;
            }
        }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("custom formats: grids of e2m1 and e4m3 equal the built-in formats bit for bit", "[cpu][op]") {
  const auto device = make_cpu_device(3);
  const Owned value(DType::bf16, kFormatRows, kFormatCols, test_values());
  const auto check = [&](const QuantFormat& builtin, const std::vector<float>& values) {
    QuantFormat grid = builtin;
    grid.grid = make_grid(values), grid.dtype = code_type(*grid.grid);
    for (const bool columns : {false, true}) {
      INFO(describe(builtin) << (columns ? " columns" : " rows"));
      const Copy a = quantized_copy(*device, value, builtin, columns),
                 b = quantized_copy(*device, value, grid, columns);
      CHECK(a.scale.bytes() == b.scale.bytes());
      CHECK(dequantized(*device, a) == dequantized(*device, b));
    }
  };
  check(nvfp4_format(Granularity::block_1x16), e2m1_values());
  check(nvfp4_format(Granularity::block_16x16), e2m1_values());
  check(mxfp4_format(), e2m1_values());
  for (const QuantFormat& format : quantized_formats())
    if (format.dtype == DType::e4m3 && format.dropped_bits == 0) check(format, e4m3_values());
}

TEST_CASE("custom formats: up to 16 values take half a byte a code and more take a byte", "[cpu][op]") {
  const auto device = make_cpu_device(2);
  // The amax is 7, the smaller end of both grids, so that the scale is 1 and codes are the numbers' places: x + 8 and x + 9.
  const Owned value(DType::bf16, 2, 4, {-7, 7, 0, 1, 2, -3, 7, -7});
  const auto codes_of = [&](const std::vector<float>& values, std::size_t bytes) {
    const Copy copy =
        quantized_copy(*device, value, grid_format(values, Granularity::tensor, ScaleType::f32_pow2));
    const auto* codes = copy.operand.data.as<std::uint8_t>();
    CHECK(copy.operand.data.bytes() == static_cast<std::int64_t>(bytes));
    return std::vector<std::uint8_t>(codes, codes + bytes);
  };
  CHECK(codes_of(integers(-8, 7), 4) == std::vector<std::uint8_t>{0xF1, 0x98, 0x5A, 0x1F});
  Copy odd(grid_format(integers(-8, 7), Granularity::tensor, ScaleType::f32), 2, 3);
  const Owned three(DType::bf16, 2, 3, {1, 2, 3, 4, 5, 6});
  QuantizedTensor x{.value = three};
  x.amax_out = odd.tensor_amax, x.rowwise = odd.operand;
  CHECK_THROWS_AS(device->quantize({x}), Unsupported);
  CHECK(codes_of(integers(-9, 7), 8) == std::vector<std::uint8_t>{2, 16, 9, 10, 11, 6, 16, 2});
}

TEST_CASE("custom formats: one NaN or infinity makes the scope of its scale non-finite", "[cpu][op]") {
  const auto device = make_cpu_device(2);
  for (const QuantFormat& format : custom_formats())
    for (const float poison : {std::nanf(""), INFINITY}) {
      INFO(describe(format) << " " << poison);
      std::vector<float> x = test_values();
      x[70] = poison;
      const Owned value(DType::bf16, kFormatRows, kFormatCols, x);
      const std::vector<float> got = dequantized(*device, quantized_copy(*device, value, format));
      const std::int64_t wide =
          block_length(format.granularity) ? block_length(format.granularity) : kFormatCols;
      for (std::int64_t k = 70 / wide * wide; k < std::min(kFormatCols, (70 / wide + 1) * wide); ++k)
        CHECK_FALSE(std::isfinite(got[k]));
    }
}

TEST_CASE("custom formats: stochastic rounding is unbiased and independent of the row split", "[cpu][op]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> x = test_values();
  const Owned value(DType::bf16, kFormatRows, kFormatCols, x);
  const QuantFormat format = grid_format(integers(-7, 7), Granularity::block_1x32, ScaleType::ue8m0,
                                         ScaleRounding::rceil, ElementRounding::stochastic);
  constexpr int kDraws = 400;
  std::vector<double> mean(x.size());
  for (std::int32_t draw = 0; draw < kDraws; ++draw) {
    const Owned word(std::vector<std::int32_t>{draw});
    const std::vector<float> once =
        dequantized(*device, quantized_copy(*device, value, format, false, {.word = word}));
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(once[i]) / kDraws;
  }
  const std::vector<double> truth(x.begin(), x.end());
  QuantFormat to_nearest = format;
  to_nearest.element_rounding = ElementRounding::rne;
  const double nearest_error =
      relative_error(dequantized(*device, quantized_copy(*device, value, to_nearest)), truth);
  // One draw has 1.4 times that error, and the mean of 400 draws a twentieth of a draw's.
  CHECK(relative_error(mean, truth) < nearest_error / 8);
  const Owned word(std::vector<std::int32_t>{77}),
      half(DType::bf16, kFormatRows / 2, kFormatCols, {x.begin() + kFormatRows / 2 * kFormatCols, x.end()});
  const std::vector<float> whole = dequantized(*device,
                                               quantized_copy(*device, value, format, false, {.word = word})),
                           part =
                               dequantized(*device, quantized_copy(*device, half, format, false,
                                                                   {.word = word, .rows = kFormatRows / 2}));
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + kFormatRows / 2 * kFormatCols));
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(custom_formats_on, "quantize and dequantize and matmul, custom formats") {
  for (const QuantFormat& format : custom_formats()) {
    INFO(describe(format));
    b.start();
    HostMemory& host = b.host();
    const Tensor value = host.random(DType::bf16, 96, 160, 2.0f);
    HostMemory::set(value, 17, 300.0f);
    const Tensor word = host.tensor(DType::i32, 1, 1);
    *word.as<std::int32_t>() = 1234;
    QuantizedTensor x = b.operand({format, format}, 96, 160);
    x.value = b.put(value);
    x.random = {.word = b.put(word), .stream = 4, .rows = 32};
    b.device().quantize({x});
    b.check_copies("quantize", x, value);

    QuantizedTensor on_cpu = b.host_operand({format, format}, value);
    on_cpu.random = {.word = word, .stream = 4, .rows = 32};
    b.cpu().quantize({on_cpu});
    for (const bool columns : {false, true}) {
      const GemmOperand &copy = columns ? x.columnwise : x.rowwise,
                        &expected = columns ? on_cpu.columnwise : on_cpu.rowwise;
      const Tensor out = b.output(DType::bf16, copy.data.rows, copy.data.cols),
                   same = host.tensor(DType::bf16, copy.data.rows, copy.data.cols);
      b.device().dequantize({out, copy});
      b.cpu().dequantize({same, expected});
      CHECK(same_bits(b.fetch(out), same));
      b.check_error(format, value, columns, {.word = word, .stream = 4, .rows = 32});
    }
    // D = X X^T of the dequantized values.
    const Tensor d = b.output(DType::f32, 96, 96), on_host = host.tensor(DType::f32, 96, 96);
    b.device().matmul({d, x.rowwise, x.rowwise, {}});
    b.cpu().matmul({on_host, on_cpu.rowwise, on_cpu.rowwise, {}});
    const std::vector<double> result = HostMemory::values(b.fetch(d)), exact = HostMemory::values(on_host);
    CHECK(relative_error(result, exact) < 0x1p-8);  // a GPU multiplies values rounded to BF16
  }
}
