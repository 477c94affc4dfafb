// NVFP4 through the CPU device's ops: torchao's bytes (numerics/golden/nvfp4.txt), a GEMM against FP64, and
// stochastic rounding. It must be unbiased, differ by stream, and not depend on how rows are split over
// ranks.
#include "kernels/numerics/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/op_testing.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/golden_testing.h"
#include "kernels/numerics/scale_layout.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// A quantized copy with its own memory.
struct OwnedOperand {
  Owned data, scale, amax;
  GemmOperand operand;

  OwnedOperand(const QuantFormat& format, std::int64_t rows, std::int64_t k)
      : data(format.dtype, rows, k),
        scale(scale_dtype(format), 1, scale_count(format.granularity, rows, k)),
        amax(DType::f32, 1, 1),
        operand{format, data, scale, false, amax} {}

  std::uint8_t code(std::int64_t i) const {
    return data.tensor().as<std::uint8_t>()[i / 2] >> 4 * (i % 2) & 0xF;
  }
  std::uint8_t scale_of(std::int64_t r, std::int64_t c) const {
    return scale.tensor().as<std::uint8_t>()[scale_index(operand.format.granularity, operand.data.rows,
                                                         operand.data.cols, r, c / 16)];
  }
  double value(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(e2m1_decode(code(r * operand.data.cols + c))) * e4m3_decode(scale_of(r, c)) *
           *amax.tensor().as<float>() / kNvfp4Max;
  }
};

OwnedOperand quantized(Device& device, const Owned& value, const QuantFormat& format, bool columns = false,
                       const RandomStream& random = {}) {
  const std::int64_t rows = value.tensor().rows, cols = value.tensor().cols;
  OwnedOperand copy(format, columns ? cols : rows, columns ? rows : cols);
  QuantizedTensor x{.value = value, .random = random};
  (columns ? x.columnwise : x.rowwise) = copy.operand;
  device.quantize({x});
  return copy;
}

bool same_codes(const OwnedOperand& a, const OwnedOperand& b) { return a.data.bytes() == b.data.bytes(); }

}  // namespace

TEST_CASE("NVFP4: the CPU device's bytes equal torchao's", "[cpu][op]") {
  constexpr std::int64_t kRows = 64, kCols = 48;
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/nvfp4.txt");
  std::vector<float> input;
  for (const std::uint64_t word : sections.at("input"))
    input.push_back(bf16_decode(static_cast<std::uint16_t>(word)));
  const Owned value(DType::bf16, kRows, kCols, input);
  const auto device = make_cpu_device(2);
  const auto check = [&](const std::string& name, const QuantFormat& format, bool columns) {
    INFO(name);
    const OwnedOperand copy = quantized(*device, value, format, columns);
    const std::int64_t rows = copy.operand.data.rows, k = copy.operand.data.cols;
    CHECK(float_to_bits(*copy.amax.tensor().as<float>()) == sections.at(name + ".amax").at(0));
    const GoldenWords &codes = sections.at(name + ".codes"), &scales = sections.at(name + ".scales");
    std::int64_t wrong = 0, wrong_scales = 0;
    for (std::int64_t i = 0; i < rows * k / 2; ++i)
      wrong += copy.data.tensor().as<std::uint8_t>()[i] != codes.at(i);
    for (std::int64_t i = 0; i < rows * k; i += 16)
      wrong_scales += copy.scale_of(i / k, i % k) != scales.at(i / 16);
    CHECK(wrong == 0);
    CHECK(wrong_scales == 0);
  };
  check("1x16", nvfp4_format(Granularity::block_1x16), false);
  check("16x16", nvfp4_format(Granularity::block_16x16), false);
  check("rht.1x16", nvfp4_format(Granularity::block_1x16, ElementRounding::rne, Transform{16, Signs::te}),
        true);

  // 16x16 blocks have the same codes in both directions.
  const OwnedOperand row = quantized(*device, value, nvfp4_format(Granularity::block_16x16));
  const OwnedOperand column = quantized(*device, value, nvfp4_format(Granularity::block_16x16), true);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c) REQUIRE(row.code(r * kCols + c) == column.code(c * kRows + r));
}

TEST_CASE(
    "NVFP4 matmul: equals the FP64 GEMM of the dequantized operands with and without a Hadamard transform",
    "[cpu][op]") {
  constexpr std::int64_t kM = 64, kN = 48, kK = 128;
  const auto device = make_cpu_device(2);
  const Owned a(DType::bf16, kM, kK, rounded(normal(1, kM * kK, 3.0f)));
  const Owned b(DType::bf16, kN, kK, rounded(normal(2, kN * kK, 0.02f)));
  for (const Transform transform : {Transform{}, Transform{16}, Transform{16, Signs::te}}) {
    const QuantFormat format = nvfp4_format(Granularity::block_1x16, ElementRounding::rne, transform);
    const OwnedOperand qa = quantized(*device, a, format), qb = quantized(*device, b, format);
    std::vector<float> start(kM * kN, 0.5f);
    const Owned d(DType::f32, kM, kN), sum(DType::f32, kM, kN, start);
    device->matmul({d, qa.operand, qb.operand, {}});
    device->matmul({sum, qa.operand, qb.operand, {.role = GemmRole::wgrad, .accumulate = true}});
    std::vector<double> want, want_sum, exact;
    const std::vector<float> x = a.floats(), w = b.floats();
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n) {
        double product = 0, plain = 0;
        for (std::int64_t k = 0; k < kK; ++k) {
          product += qa.value(m, k) * qb.value(n, k);
          plain += static_cast<double>(x[m * kK + k]) * w[n * kK + k];
        }
        want.push_back(product);
        want_sum.push_back(product + 0.5);
        exact.push_back(plain);
      }
    CHECK(relative_error(d.floats(), want) < kFp32Error);
    CHECK(relative_error(sum.floats(), want_sum) < kFp32Error);
    // Two operands of 20.5 dB give 17.4 dB: 0.134. Transforming only one operand would destroy the result.
    const double error = relative_error(d.floats(), exact);
    CHECK(error > 0.115);
    CHECK(error < 0.155);
  }
}

TEST_CASE("NVFP4: stochastic rounding of gradients is unbiased", "[cpu][op]") {
  constexpr std::int64_t kRows = 16, kCols = 64;
  constexpr int kDraws = 400;
  // A tensor scale of 1, and block scales of 1 except for the block with the amax: elements are rounded
  // unscaled. They lie on the grid of the 8 random bits, where the mean is exact.
  std::vector<float> x = rounded(normal(5, kRows * kCols, 1.3f));
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    x[i] = std::round(std::clamp(x[i], -5.5f, 5.5f) * 512) / 512;
    if (i % 16 == 3) x[i] = 6.0f;
  }
  x[3] = kNvfp4Max;
  x = rounded(x);
  const Owned value(DType::bf16, kRows, kCols, x);
  const auto device = make_cpu_device(2);
  const QuantFormat format = nvfp4_format(Granularity::block_1x16, ElementRounding::stochastic);
  for (const bool columns : {false, true}) {
    Owned source = value;
    if (columns) {  // the same blocks, as columns of the transposed matrix
      std::vector<float> turned(x.size());
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < kCols; ++c) turned[c * kRows + r] = x[r * kCols + c];
      source = Owned(DType::bf16, kCols, kRows, turned);
    }
    std::vector<double> mean(x.size());
    for (std::int32_t draw = 0; draw < kDraws; ++draw) {
      const Owned word(std::vector<std::int32_t>{draw});
      const OwnedOperand copy = quantized(*device, source, format, columns, {.word = word, .stream = 6});
      for (std::int64_t i = 0; i < kRows * kCols; ++i) mean[i] += copy.value(i / kCols, i % kCols);
    }
    for (double& sum : mean) sum /= kDraws;
    double squares = 0, signed_sum = 0;
    int count = 0;
    for (std::int64_t i = 16; i < kRows * kCols; ++i) {  // after the block whose scale is 448
      const double size = std::fabs(x[i]);
      const double step = size < 2 ? 0.5 : size < 4 ? 1 : 2;
      const double up = size / step - std::floor(size / step);
      if (up == 0) {
        CHECK(mean[i] == x[i]);
        continue;
      }
      const double z = (mean[i] - x[i]) / (step * std::sqrt(up * (1 - up) / kDraws));
      squares += z * z;
      signed_sum += std::copysign(z, z * x[i]);
      ++count;
    }
    INFO((columns ? "columns" : "rows")
         << ": " << count << " values, sum of z^2 " << squares << ", of z " << signed_sum);
    REQUIRE(count > 500);
    // Five deviations of a chi-squared and of a normal sum.
    CHECK(std::fabs(squares / count - 1) < 5 * std::sqrt(2.0 / count));
    CHECK(std::fabs(signed_sum) < 5 * std::sqrt(static_cast<double>(count)));
  }
}

TEST_CASE("NVFP4: the mean of stochastic draws has a smaller error than rounding to nearest", "[cpu][op]") {
  constexpr std::int64_t kRows = 32, kCols = 256;
  const std::vector<float> x = rounded(normal(6, kRows * kCols));
  const Owned value(DType::bf16, kRows, kCols, x);
  const auto device = make_cpu_device(2);
  const auto error_of_mean = [&](ElementRounding rounding, int draws) {
    std::vector<double> mean(x.size());
    for (std::int32_t draw = 0; draw < draws; ++draw) {
      const Owned word(std::vector<std::int32_t>{draw});
      const OwnedOperand copy =
          quantized(*device, value, nvfp4_format(Granularity::block_1x16, rounding), false, {.word = word});
      for (std::size_t i = 0; i < x.size(); ++i)
        mean[i] +=
            copy.value(static_cast<std::int64_t>(i) / kCols, static_cast<std::int64_t>(i) % kCols) / draws;
    }
    return relative_error(mean, {x.begin(), x.end()});
  };
  const double nearest = error_of_mean(ElementRounding::rne, 1);
  CHECK(error_of_mean(ElementRounding::stochastic, 1) > nearest);
  CHECK(error_of_mean(ElementRounding::stochastic, 50) < nearest / 3);
}

TEST_CASE("NVFP4: random numbers depend on element and step and operand and not on the row split",
          "[cpu][op]") {
  constexpr std::int64_t kRows = 64, kCols = 48, kHalf = kRows / 2;
  std::vector<float> x = rounded(normal(7, kRows * kCols));
  x[0] = x[kHalf * kCols] = 8.0f;  // both halves have the tensor's amax and so its scales
  const Owned whole(DType::bf16, kRows, kCols, x);
  const Owned halves[] = {Owned(DType::bf16, kHalf, kCols, {x.begin(), x.begin() + kHalf * kCols}),
                          Owned(DType::bf16, kHalf, kCols, {x.begin() + kHalf * kCols, x.end()})};
  const Owned word(std::vector<std::int32_t>{77}), next(std::vector<std::int32_t>{78});
  const auto device = make_cpu_device(2), threads = make_cpu_device(5);
  const QuantFormat format = nvfp4_format(Granularity::block_1x16, ElementRounding::stochastic);
  for (const bool columns : {false, true}) {
    INFO((columns ? "columns" : "rows"));
    const OwnedOperand all = quantized(*device, whole, format, columns, {.word = word, .stream = 4});
    CHECK(same_codes(all, quantized(*threads, whole, format, columns, {.word = word, .stream = 4})));
    CHECK_FALSE(same_codes(all, quantized(*device, whole, format, columns, {.word = next, .stream = 4})));
    CHECK_FALSE(same_codes(all, quantized(*device, whole, format, columns, {.word = word, .stream = 6})));
    for (int half = 0; half < 2; ++half) {
      const OwnedOperand part = quantized(*device, halves[half], format, columns,
                                          {.word = word, .stream = 4, .rows = half * kHalf});
      std::int64_t different = 0;
      for (std::int64_t r = 0; r < kHalf; ++r)
        for (std::int64_t c = 0; c < kCols; ++c) {
          const std::int64_t at = half * kHalf + r;
          different += columns ? part.code(c * kHalf + r) != all.code(c * kRows + at)
                               : part.code(r * kCols + c) != all.code(at * kCols + c);
        }
      CHECK(different == 0);
    }
  }
}
