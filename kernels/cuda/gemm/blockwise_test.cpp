// Our own block-scaled GEMMs, each kernel separately: against FP64 on the same codes, at shapes that no tile
// divides; writes outside D; NaN and Inf; equal bits for all tile sizes. Also the selection by matmul.
#include "kernels/cuda/gemm/blockwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/checks/naive_gemm.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"

namespace precbench {
namespace {

using checks::HostOperand;

struct GemmShape {
  std::int64_t M, N, K;
};

/// No tile divides M or N; k ends within a scale block, within the first one, and at the end of one.
constexpr GemmShape kOddShapes[] = {{264, 520, 656}, {72, 136, 112}, {309, 392, 1152}};

QuantFormat blocks(DType dtype, Granularity granularity) {
  return {dtype, granularity, ScaleType::f32, ScaleRounding::none};
}

QuantFormat format_a(const BlockwiseKernel& kernel) { return blocks(kernel.a, Granularity::block_1x128); }
QuantFormat format_b(const BlockwiseKernel& kernel) {
  return blocks(kernel.b, kernel.square_b ? Granularity::block_128x128 : Granularity::block_1x128);
}

/// Returns the kernels that this GPU runs; none without Hopper.
std::span<const BlockwiseKernel> kernels_here() {
  if (!gpu_here()) return {};
  if (gpu_properties(0).compute_capability != 90) {
    WARN("skipped: the kernels are for compute capability 9.0");
    return {};
  }
  return hopper_blockwise_kernels();
}

void run(CudaDevice& device, const BlockwiseKernel& kernel, const Tensor& d, const GemmOperand& a,
         const GemmOperand& b) {
  const BlockwiseGemm gemm{.M = a.rows(),
                           .N = b.rows(),
                           .K = a.k(),
                           .a = kernel.a,
                           .b = kernel.b,
                           .d = kernel.d,
                           .square_b = kernel.square_b,
                           .accumulate = kernel.accumulate,
                           .alignment = 16};
  const auto taken = blockwise_kernels(gemm, device.compute_capability());
  CHECK(std::find(taken.begin(), taken.end(), &kernel) != taken.end());
  kernel.launch(gemm, {a.data.data, b.data.data, a.scale.as<float>(), b.scale.as<float>(), d.data},
                device.stream());
  device.launched("matmul");
}

std::string words(const BlockwiseKernel& kernel) {
  return std::string(kernel.name) + " " + name_of(kernel.a) +
         (kernel.square_b ? " 1x128 x 128x128" : " 1x128 x 1x128") + " into " + name_of(kernel.d) +
         (kernel.accumulate ? ", accumulated" : "");
}

/// D's bits after a kernel ran on a matrix of `fill` bytes, with the rows before and after it.
struct OutputBits {
  std::vector<std::byte> before, d, after;
};

OutputBits bits_of(CudaDevice& device, const BlockwiseKernel& kernel, const GemmOperand& a,
                   const GemmOperand& b, int fill) {
  constexpr std::int64_t kGuard = 16;  // rows
  const std::int64_t M = a.rows(), N = b.rows();
  Buffers buffers(device);
  std::vector<std::byte> all(static_cast<std::size_t>(bytes_of(kernel.d, (M + 2 * kGuard) * N)),
                             std::byte(fill));
  const Tensor whole = buffers.copy_of(Tensor{all.data(), kernel.d, M + 2 * kGuard, N});
  run(device, kernel, whole.slice_rows(kGuard, M), a, b);
  device.download(all.data(), whole);
  const auto guard = static_cast<std::ptrdiff_t>(bytes_of(kernel.d, kGuard * N));
  return {{all.begin(), all.begin() + guard},
          {all.begin() + guard, all.end() - guard},
          {all.end() - guard, all.end()}};
}

double bits_element(const OutputBits& bits, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, &bits.d[static_cast<std::size_t>(4 * index)], 4);
    return value;
  }
  std::uint16_t value = 0;
  std::memcpy(&value, &bits.d[static_cast<std::size_t>(2 * index)], 2);
  return bf16_decode(value);
}

TEST_CASE("blockwise: every own kernel is as exact as its precision", "[gpu][matmul][blockwise]") {
  for (const BlockwiseKernel& kernel : kernels_here())
    for (const GemmShape& shape : kOddShapes) {
      CudaDevice device(0);
      const HostOperand a = checks::make_quantized_tensor(format_a(kernel), shape.M, shape.K, false, 1);
      const HostOperand b = checks::make_quantized_tensor(format_b(kernel), shape.N, shape.K, false, 2);
      const checks::Errors errors = checks::errors_of(
          device, a, b, {kernel.d, kernel.accumulate},
          [&](const Tensor& d, const GemmOperand& of_a, const GemmOperand& of_b) {
            run(device, kernel, d, of_a, of_b);
          },
          checks::kFp8, false);
      INFO(words(kernel) << ", " << shape.M << " x " << shape.N << " x " << shape.K << ": error "
                         << errors.gpu << ", naive " << errors.naive);
      CHECK(errors.gpu <= 2 * errors.naive);
    }
}

TEST_CASE("blockwise: nothing outside D is written and every tile size gives the same bits",
          "[gpu][matmul][blockwise]") {
  for (const BlockwiseKernel& kernel : kernels_here())
    for (const GemmShape& shape : kOddShapes) {
      CudaDevice device(0);
      Buffers buffers(device);
      const HostOperand a = checks::make_quantized_tensor(format_a(kernel), shape.M, shape.K, false, 1);
      const HostOperand b = checks::make_quantized_tensor(format_b(kernel), shape.N, shape.K, false, 2);
      const GemmOperand device_a = buffers.copy_of(a.view), device_b = buffers.copy_of(b.view);
      constexpr int kFill = 0x3c;  // a small number in both dtypes
      const OutputBits bits = bits_of(device, kernel, device_a, device_b, kFill);
      INFO(words(kernel) << ", " << shape.M << " x " << shape.N << " x " << shape.K);
      const std::vector<std::byte> guard(bits.before.size(), std::byte(kFill));
      CHECK(bits.before == guard);
      CHECK(bits.after == guard);
      for (const BlockwiseKernel& other : hopper_blockwise_kernels())
        if (other.a == kernel.a && other.d == kernel.d && other.square_b == kernel.square_b &&
            other.accumulate == kernel.accumulate)
          CHECK(bits_of(device, other, device_a, device_b, kFill).d == bits.d);
    }
}

TEST_CASE("blockwise: a NaN reaches only its row and an infinite scale only its columns",
          "[gpu][matmul][blockwise]") {
  constexpr GemmShape kShape = kOddShapes[0];
  constexpr std::int64_t kRow = 200, kAt = 300, kColumn = 140;
  for (const BlockwiseKernel& kernel : kernels_here()) {
    CudaDevice device(0);
    Buffers buffers(device);
    HostOperand a = checks::make_quantized_tensor(format_a(kernel), kShape.M, kShape.K, false, 1);
    HostOperand b = checks::make_quantized_tensor(format_b(kernel), kShape.N, kShape.K, false, 2);
    const auto result = [&] {
      return bits_of(device, kernel, buffers.copy_of(a.view), buffers.copy_of(b.view), 0);
    };
    const OutputBits clean = result();
    a.data[kRow * kShape.K + kAt] = 0x7f;  // NaN in both formats
    const Granularity granularity = b.view.format.granularity;
    const auto at = scale_index(granularity, kShape.N, kShape.K, kColumn, kAt / 128);
    const float infinite = std::numeric_limits<float>::infinity();
    std::memcpy(&b.scales[static_cast<std::size_t>(4 * at)], &infinite, 4);
    const OutputBits marked = result();

    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kShape.M; ++i)
      for (std::int64_t j = 0; j < kShape.N; ++j) {
        const double was = bits_element(clean, kernel.d, i * kShape.N + j);
        const double is = bits_element(marked, kernel.d, i * kShape.N + j);
        const bool scaled = kernel.square_b ? j / 128 == kColumn / 128 : j == kColumn;
        if (i == kRow)
          wrong += !std::isnan(is);
        else if (scaled)
          wrong += std::isfinite(is);
        else
          wrong += is != was;
      }
    INFO(words(kernel));
    CHECK(wrong == 0);
  }
}

TEST_CASE("blockwise: there are no own kernels for GPUs other than Hopper", "[gpu][matmul][blockwise]") {
  const BlockwiseGemm gemm{512, 512, 512, DType::e4m3, DType::e4m3, DType::f32, false, false, 16};
  for (const int compute_capability : {80, 89, 100, 103, 120}) {
    INFO(compute_capability);
    CHECK(blockwise_kernels(gemm, compute_capability).empty());
  }
  // On Hopper the kernels exist: otherwise the checks above would be vacuous.
  if (kernels_here().empty()) return;
  CHECK_FALSE(blockwise_kernels(gemm, 90).empty());
}

TEST_CASE("blockwise: matmul uses the selected kernels and reports which ran", "[gpu][matmul][blockwise]") {
  if (kernels_here().empty()) return;
  constexpr std::int64_t kSize = 512;
  const QuantFormat vector = blocks(DType::e4m3, Granularity::block_1x128);
  const QuantFormat tensor = blocks(DType::e4m3, Granularity::tensor);
  const auto names = [&](const char* choice, const QuantFormat& format) {
    const auto device = make_gpu_device(0, {.gemm = choice});
    const HostOperand a = checks::make_quantized_tensor(format, kSize, kSize, false, 1);
    Buffers buffers(*device);
    const GemmOperand operand = buffers.copy_of(a.view);
    device->matmul({buffers.tensor(DType::f32, kSize, kSize), operand, operand, {.role = GemmRole::wgrad}});
    device->synchronize();
    CHECK(device->gemm_names(GemmRole::fprop) == "");
    return device->gemm_names(GemmRole::wgrad);
  };
  CHECK(names("cublaslt", vector) == "cuBLASLt");
  CHECK(names("own", vector).starts_with("own "));
  CHECK(!names("auto", vector).empty());
  CHECK(names("own", tensor) == "cuBLASLt");
  CHECK_THROWS_AS(make_gpu_device(0, {.gemm = "theirs"}), InvalidInput);
}

}  // namespace
}  // namespace precbench
