// Tests of an op of any device against the CPU device. They have host tensors that the CPU computes on in
// place, copies of them on the device under test, and two comparisons: bit for bit, or at most twice the
// CPU's error against FP64 (or FP32).
//
//   PRECBENCH_OP_TEST(swiglu_on, "swiglu and swiglu_backward") { ... b.device() ... }
//
// makes two test cases: the CPU device, with another thread count than the reference, and the first GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/checks/two_devices.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/grid_testing.h"
#include "kernels/testing/catch.h"

namespace precbench::testing {

using checks::HostMemory, checks::OutputFormats, checks::same_bits, checks::same_scales;

/// The 2x rule: RMS and largest error of `result` are at most twice those of `naive`, the CPU device at the
/// same precision. If the truth rounded to the result's type has a larger error than `naive`, that error is
/// the measure. `largest_factor` replaces the 2 for the largest error, which varies more where values are few.
inline void check_twice(const std::string& what, const Tensor& result, const Tensor& naive,
                        const std::vector<double>& truth, double largest_factor = 2) {
  INFO(what);
  REQUIRE(result.size() == static_cast<std::int64_t>(truth.size()));
  double sums[3] = {}, largest[3] = {};
  for (std::int64_t i = 0; i < result.size(); ++i) {
    const float exact = static_cast<float>(truth[i]);
    const double rounded = result.dtype == DType::f32 ? exact : bf16_decode(bf16_encode(exact));
    const double errors[3] = {HostMemory::get(result, i) - truth[i], HostMemory::get(naive, i) - truth[i],
                              rounded - truth[i]};
    for (int k = 0; k < 3; ++k) {
      sums[k] += errors[k] * errors[k];
      largest[k] = std::max(largest[k], std::isnan(errors[k]) ? INFINITY : std::fabs(errors[k]));
    }
  }
  // Few values have no meaningful RMS: one last place of the largest value is always allowed.
  double last_place = 0;
  for (double t : truth)
    last_place = std::max(last_place, std::fabs(t) * (result.dtype == DType::f32 ? 0x1p-24 : 0x1p-9));
  CHECK(std::sqrt(sums[0] / truth.size()) <=
        2 * std::sqrt(std::max({sums[1], sums[2], last_place * last_place}) / truth.size()));
  CHECK(largest[0] <= largest_factor * std::max({largest[1], largest[2], last_place}));
}

/// Returns the recipes' output formats, two with fewer mantissa bits, none, and FP4 formats if the sizes
/// allow them.
inline std::vector<OutputFormats> output_formats(std::int64_t rows, std::int64_t cols) {
  std::vector<OutputFormats> all = {{},
                                    {kTensorE4m3, kTensorE4m3},
                                    {kTensorE5m2, {}},
                                    {kRow, kRow},
                                    {{}, kRow},
                                    {kBlock, kBlockPow2},
                                    {kMx, kMx},
                                    {kRow, kTensorE4m3},
                                    {kTensorE4m3, kRow},
                                    {kRowE4m2, kTensorE4m1},
                                    {kTensorE5m3, kRowE3m4},
                                    {kSquare, {}}};
  // Grids, with codes of four bits where rows have an even number of them.
  all.push_back(
      {grid_format(cols % 2 == 0 ? nf4_values() : integers(-15, 15), Granularity::block_1x32,
                   ScaleType::e4m3),
       grid_format(rows % 2 == 0 ? e3m0_values() : integers(-15, 15), Granularity::tensor, ScaleType::f32)});
  if (rows % 16 != 0 || cols % 16 != 0) return all;
  const QuantFormat rht =
      nvfp4_format(Granularity::block_1x16, ElementRounding::stochastic, Transform{16, Signs::te});
  all.push_back({nvfp4_format(Granularity::block_1x16), rht});
  all.push_back({{}, rht});
  all.push_back({nvfp4_format(Granularity::block_16x16), {}});
  return all;
}

struct Size {
  std::int64_t M, C;
};

/// Checks that `poisoned` is non-finite where `reached(row, column)` and equals `clean` elsewhere. Host
/// tensors.
template <class Reached>
void check_reached(const std::string& what, const Tensor& poisoned, const Tensor& clean, Reached&& reached) {
  INFO(what);
  std::int64_t spread = 0, lost = 0;
  for (std::int64_t i = 0; i < clean.size(); ++i) {
    const float was = HostMemory::get(clean, i), is = HostMemory::get(poisoned, i);
    if (reached(i / clean.cols, i % clean.cols))
      lost += std::isfinite(is);
    else
      spread += is != was;
  }
  CHECK(spread == 0);
  CHECK(lost == 0);
}

/// The device under test beside the CPU device, with assertions.
class OpTest : public checks::TwoDevices {
 public:
  using TwoDevices::TwoDevices;

  /// Checks a device output by the 2x rule against the CPU's outputs from BF16 (`naive`) and FP32 (`truth`)
  /// inputs.
  void check(const std::string& what, const Tensor& result, const Tensor& naive, const Tensor& truth) {
    check_twice(what, fetch(result), naive, HostMemory::values(truth));
  }

  /// Checks that the device's quantized copies and amax_out equal, bit for bit, the CPU device's for `value`.
  void check_copies(const std::string& what, const QuantizedTensor& result, const Tensor& value) {
    INFO(what);
    CHECK(copies_difference(result, value) == "");
  }

  /// Checks that the quantization error of a copy of `value` equals the CPU's, and returns its five sums.
  /// They are FP64 sums rounded once: they may differ by one place if the exact sum lies between two floats.
  Tensor check_error(const QuantFormat& format, const Tensor& value, bool columns, RandomStream random = {}) {
    INFO(describe(format) << (columns ? " columns" : " rows"));
    QuantizedTensor x = host_operand(columns ? OutputFormats{{}, format} : OutputFormats{format, {}}, value);
    x.random = random;
    cpu().quantize({x});
    const GemmOperand& operand = columns ? x.columnwise : x.rowwise;
    const Tensor expected = host().tensor(DType::f32, 1, 5), out = output(DType::f32, 1, 5);
    cpu().quantization_error({expected, value, operand, columns, random});
    random.word = put(random.word);
    device().quantization_error({out, put(value), put(operand), columns, random});
    const Tensor result = fetch(out);
    for (int i = 0; i < 5; ++i) {
      INFO(i);
      const float e = expected.as<float>()[i], r = result.as<float>()[i];
      CHECK((r == e || r == std::nextafter(e, r)));
    }
    return expected;
  }

  /// Runs `op(operand)` for every set of output formats, with and without keeping the value. The kept value
  /// must have the same bits for all formats, and the quantized copies must be those of that value. Returns
  /// the value.
  template <class Op>
  Tensor check_operand(const std::string& what, std::int64_t rows, std::int64_t cols, Op&& op) {
    Tensor first;
    for (const OutputFormats& formats : output_formats(rows, cols))
      for (const bool keep : {true, false}) {
        if (!keep && !formats.rowwise.quantized() && !formats.columnwise.quantized()) continue;
        QuantizedTensor x = operand(formats, rows, cols);
        x.keep_value = keep;
        op(x);
        if (keep) {
          const Tensor value = fetch(x.value);
          if (first.empty()) first = value;
          CHECK(same_bits(value, first));
        }
        check_copies(what + ", row " + describe(formats.rowwise) + ", col " + describe(formats.columnwise), x,
                     first);
      }
    return first;
  }
};

}  // namespace precbench::testing

/// Defines a test on the CPU device as a function of OpTest& b, for ops that no GPU implements yet.
#define PRECBENCH_CPU_OP_TEST(function, name)          \
  static void function(precbench::testing::OpTest& b); \
  TEST_CASE(name " on the CPU device", "[cpu][op]") {  \
    const auto device = precbench::make_cpu_device(3); \
    precbench::testing::OpTest test(*device);          \
    function(test);                                    \
  }                                                    \
  static void function(precbench::testing::OpTest& b)

/// Defines the same test on every available device.
#define PRECBENCH_OP_TEST(function, name)              \
  static void function(precbench::testing::OpTest& b); \
  TEST_CASE(name " on a GPU", "[gpu][op]") {           \
    const auto device = precbench::gpu_or_skip();      \
    if (!device) return;                               \
    precbench::testing::OpTest test(*device);          \
    function(test);                                    \
  }                                                    \
  PRECBENCH_CPU_OP_TEST(function, name)
