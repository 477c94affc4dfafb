// Helpers shared by tests of the CUDA matmul: random operands on the host with their exact values, and the
// error of a GPU GEMM, next to that of a naive GEMM at the same precision on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/device/devices.h"
#include "kernels/device/test_buffers.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/fp4.h"

namespace precbench::testing {

/// One operand on the host: random rows whose sizes and whose 128-blocks' sizes differ by up to 2^8, so that
/// a misplaced scale shows.
struct HostOperand {
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint8_t> data;
  std::vector<std::byte> scales;
  std::vector<float> amax = {0.0f};  // for FP4 with e4m3 scales
  std::vector<double> values;        // exact values of the GPU's input: [rows, k]
  std::vector<double> norms;         // of the rows
  GemmOperand view;
  std::int64_t rows, k;
};

inline double dequantized(const GemmOperand& operand, std::int64_t rows, std::int64_t k, std::int64_t r,
                          std::int64_t c) {
  const QuantFormat& format = operand.format;
  const std::int64_t block = block_length(format.granularity);
  const std::int64_t at = scale_index(format.granularity, rows, k, r, block ? c / block : 0);
  const auto byte = [&] { return operand.scale.as<std::uint8_t>()[at]; };
  const double scale = format.scale == ScaleType::ue8m0  ? ue8m0_decode(byte())
                       : format.scale == ScaleType::e4m3 ? e4m3_decode(byte())
                                                         : operand.scale.as<float>()[at];
  if (format.dtype == DType::e2m1) {
    const std::int64_t i = r * k + c;
    const auto code = static_cast<std::uint8_t>(operand.data.as<std::uint8_t>()[i / 2] >> 4 * (i % 2) & 0xF);
    return e2m1_decode(code) * scale *
           fp4_tensor_factor(format, operand.amax.empty() ? 0.0f : *operand.amax.as<float>());
  }
  if (held_in_bf16(format.dtype)) return scale * bf16_decode(operand.data.as<std::uint16_t>()[r * k + c]);
  const std::uint8_t code = operand.data.as<std::uint8_t>()[r * k + c];
  return scale * (format.dtype == DType::e4m3 ? e4m3_decode(code) : e5m2_decode(code));
}

inline HostOperand make_quantized_tensor(const QuantFormat& format, std::int64_t rows, std::int64_t k,
                                         bool transposed, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-4, 4);
  HostOperand operand;
  operand.rows = rows;
  operand.k = k;
  operand.bf16.resize(static_cast<std::size_t>(rows * k));
  for (std::int64_t r = 0; r < rows; ++r) {
    const int row_size = exponent(random);
    for (std::int64_t c0 = 0; c0 < k; c0 += 128) {
      const int size = row_size + exponent(random);
      for (std::int64_t c = c0; c < std::min(k, c0 + 128); ++c)
        operand.bf16[transposed ? c * rows + r : r * k + c] = bf16_encode(std::ldexp(normal(random), size));
    }
  }
  const Tensor value{operand.bf16.data(), DType::bf16, transposed ? k : rows, transposed ? rows : k};
  operand.view = {format, value, {}, transposed};
  if (format.quantized()) {
    const std::int64_t scales = scale_count(format.granularity, rows, k);
    operand.data.resize(static_cast<std::size_t>(bytes_of(format.dtype, rows * k)));
    operand.scales.resize(static_cast<std::size_t>(bytes_of(scale_dtype(format), scales)));
    operand.view.data = {operand.data.data(), format.dtype, rows, k};
    operand.view.scale = {operand.scales.data(), scale_dtype(format), 1, scales};
    if (format.scale == ScaleType::e4m3) operand.view.amax = {operand.amax.data(), DType::f32, 1, 1};
    float amax = 0;
    make_cpu_device(1)->quantize(
        {{.value = value, .rowwise = operand.view, .amax_out = {&amax, DType::f32, 1, 1}}});
  }
  operand.values.resize(operand.bf16.size());
  operand.norms.resize(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const double v = format.quantized() ? dequantized(operand.view, rows, k, r, c)
                                          : bf16_decode(operand.bf16[transposed ? c * rows + r : r * k + c]);
      operand.values[r * k + c] = v;
      operand.norms[r] += v * v;
    }
  for (double& norm : operand.norms) norm = std::sqrt(norm);
  return operand;
}

inline double round_to(DType dtype, double x) {
  const float f = static_cast<float>(x);
  return dtype == DType::f32 ? f : bf16_decode(bf16_encode(f));
}

/// A tensor core accumulator: `group` products and the running sum are truncated to `bits` fraction bits of
/// the largest of them, then added; every `promote` products (0: never) the sum moves into an FP32 register.
struct Accumulator {
  int group, bits, promote;
};
/// Hopper's FP8: 32 products per instruction, 13 fraction bits kept (DeepSeek-V3 section 3.3.2 found about 14
/// bits); promoted after 128 unless accumulation is fast. On H200 this model's error is within 15% of the
/// hardware's.
inline constexpr Accumulator kFp8Fast{32, 13, 0}, kFp8{32, 13, 128};
/// BF16 and emulated GEMMs: FP32, truncated like in tensor cores.
inline constexpr Accumulator kFp32{1, 23, 0};

inline double naive_dot(const double* a, const double* b, std::int64_t k, const Accumulator& with) {
  double total = 0, sum = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += with.group) {
    if (with.promote && k0 % with.promote == 0) {
      total = static_cast<float>(total + sum);
      sum = 0;
    }
    const std::int64_t end = std::min<std::int64_t>(k, k0 + with.group);
    double largest = std::fabs(sum);
    for (std::int64_t i = k0; i < end; ++i) largest = std::max(largest, std::fabs(a[i] * b[i]));
    if (largest == 0) continue;
    const double ulp = std::ldexp(1.0, std::ilogb(largest) - with.bits);
    double next = std::trunc(sum / ulp);
    for (std::int64_t i = k0; i < end; ++i) next += std::trunc(a[i] * b[i] / ulp);
    sum = next * ulp;
    if (with.group == 1) {  // the sum may have grown a bit
      const double grown = std::ldexp(1.0, std::ilogb(sum == 0 ? 1 : sum) - with.bits);
      sum = std::trunc(sum / grown) * grown;
    }
  }
  return total + sum;
}

struct Output {
  DType dtype;
  bool accumulate;
};

/// RMS of (x - exact) / (|a row| |b row|): every element has equal weight, whatever its row's size.
struct Errors {
  double gpu, naive;
};

/// Computes d = or += a b^T, in device memory.
using Product = std::function<void(const Tensor& d, const GemmOperand& a, const GemmOperand& b)>;

/// `accumulator`: of the naive GEMM; `rounded`: its operands are rounded to BF16.
inline Errors errors_of(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                        const Product& product_of, const Accumulator& accumulator, bool rounded) {
  Buffers buffers(device);
  const GemmOperand device_a = buffers.copy_of(a.view), device_b = buffers.copy_of(b.view);
  const std::int64_t M = a.rows, N = b.rows, K = a.k;

  std::vector<double> before(static_cast<std::size_t>(M * N));
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<std::uint16_t> d16(before.size());
  std::vector<float> d32(before.size());
  for (std::int64_t i = 0; i < M * N; ++i) {
    // Without accumulation D's previous contents must not matter: they are NaN.
    before[i] =
        output.accumulate ? round_to(output.dtype, normal(random) * a.norms[i / N] * b.norms[i % N]) : NAN;
    d32[i] = static_cast<float>(before[i]);
    d16[i] = bf16_encode(d32[i]);
  }
  const bool wide = output.dtype == DType::f32;
  const Tensor host{wide ? static_cast<void*>(d32.data()) : d16.data(), output.dtype, M, N};
  const Tensor d = buffers.copy_of(host);
  product_of(d, device_a, device_b);
  device.download(host.data, d);

  const auto given = [&](const HostOperand& x) {
    std::vector<double> values = x.values;
    if (rounded)
      for (double& v : values) v = round_to(DType::bf16, v);
    return values;
  };
  const std::vector<double> naive_a = given(a), naive_b = given(b);
  constexpr std::int64_t kNaiveRows = 32;  // enough for its error; the GPU's is taken over all elements
  std::vector<double> exact(before.size());
#pragma omp parallel for
  for (std::int64_t i = 0; i < M; ++i)
    for (std::int64_t j = 0; j < N; ++j) {
      double sum = output.accumulate ? before[i * N + j] : 0;
      for (std::int64_t k = 0; k < K; ++k) sum += a.values[i * K + k] * b.values[j * K + k];
      exact[i * N + j] = sum;
    }
  double gpu = 0, naive = 0;
#pragma omp parallel for reduction(+ : gpu, naive)
  for (std::int64_t i = 0; i < M; ++i)
    for (std::int64_t j = 0; j < N; ++j) {
      const std::int64_t at = i * N + j;
      // A row far smaller than others under the same FP4 scale may be all zeros; its products are then 0.
      const auto relative = [norm = a.norms[i] * b.norms[j]](double error) {
        return error == 0 ? 0 : error / norm;
      };
      const double got = wide ? d32[at] : bf16_decode(d16[at]);
      gpu += std::pow(relative(got - exact[at]), 2) / static_cast<double>(M * N);
      if (i >= kNaiveRows) continue;
      const double product = naive_dot(&naive_a[i * K], &naive_b[j * K], K, accumulator);
      const double sum = round_to(output.dtype, product + (output.accumulate ? before[at] : 0));
      naive += std::pow(relative(sum - exact[at]), 2) / static_cast<double>(kNaiveRows * N);
    }
  return {std::sqrt(gpu), std::sqrt(naive)};
}

}  // namespace precbench::testing
