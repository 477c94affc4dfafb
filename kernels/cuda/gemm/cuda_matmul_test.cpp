// Every mode of the CUDA matmul against FP64 on the GPU's actual operands: quantized by the CPU device,
// dequantized exactly. A GEMM's error may be at most twice that of a naive GEMM at the same precision on the
// host: an accumulator of the tensor core's width, additions in index order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/checks/check_gemm.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/matmul_kernels.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/device/buffers.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/mx_expansion.h"
#include "kernels/numerics/native_formats.h"
#include "kernels/numerics/scale_layout.h"
#include "kernels/numerics/without_draws.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

constexpr std::int64_t kM = 256, kN = 384, kK = 640;

// TransformerEngine sets the batch stride of alpha up to 12.8.3.
static_assert(confuses_cached_scales(120800) && confuses_cached_scales(120803) &&
              !confuses_cached_scales(120804));
static_assert(takes_scales_as_mx(100) && takes_scales_as_mx(103) && takes_scales_as_mx(107));
static_assert(!takes_scales_as_mx(90) && !takes_scales_as_mx(110) && !takes_scales_as_mx(120));

using checks::agrees, checks::Errors, checks::errors_of_matmul, checks::HostOperand;
using checks::make_quantized_tensor, checks::Output, checks::outputs_of;

void expect_exact(Device& device, const GemmRecipe& gemm, GemmRole role, const Output& output) {
  const GemmSupport support = device.support(gemm, role);
  const checks::Finding finding = checks::check_gemm(device, gemm, role, output, {kM, kN, kK});
  INFO(finding.path << ", " << finding.what << ": " << name_of(support.execution) << " " << support.reason
                    << "; " << finding.measured);
  CHECK(finding.agrees);
}

/// Returns how a GPU of this compute capability is known to run a GEMM with the newest cuBLASLt: 8.9 and 9.0
/// from runs, others from cuBLAS's documentation. None if unknown.
std::optional<Execution> known_execution(const GemmRecipe& gemm, int compute_capability) {
  const NativeFormats known = native_formats(compute_capability);
  if (known.none()) return std::nullopt;
  return is_native(known, gemm) ? Execution::native : Execution::emulated;
}

QuantFormat fp8(DType dtype, Granularity granularity, ScaleType scale = ScaleType::f32) {
  return {dtype, granularity, scale, ScaleRounding::none};
}

TEST_CASE("matmul: every GEMM of every recipe is as exact as its precision", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  struct Done {
    GemmRecipe gemm;
    bool wgrad;
  };
  std::vector<Done> done;  // recipes share GEMMs
  for (const auto* table : {&builtin_recipes(), &control_recipes(), &fp4_recipes()})
    for (const Recipe& recipe : *table)
      for (GemmRole role : kGemmRoles) {
        const GemmRecipe gemm = without_draws(recipe.gemm(role));
        const bool wgrad = role == GemmRole::wgrad;
        if (std::any_of(done.begin(), done.end(),
                        [&](const Done& d) { return d.gemm == gemm && d.wgrad == wgrad; }))
          continue;
        done.push_back({gemm, wgrad});
        for (const Output& output : outputs_of(role)) expect_exact(*device, gemm, role, output);
      }
}

TEST_CASE("matmul: FP32 output has the accumulator error of each FP8 mode", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat e4m3 = fp8(DType::e4m3, Granularity::tensor),
                    e5m2 = fp8(DType::e5m2, Granularity::tensor);
  const QuantFormat row = fp8(DType::e4m3, Granularity::row);
  const QuantFormat vector = fp8(DType::e4m3, Granularity::block_1x128);
  const QuantFormat square = fp8(DType::e4m3, Granularity::block_128x128);
  const GemmRecipe gemms[] = {{e4m3, e4m3, true},  {e4m3, e4m3, false}, {e5m2, e4m3, false},
                              {e4m3, e5m2, false}, {row, row, true},    {row, row, false},
                              {row, e4m3, false},  {e4m3, row, false},  {vector, square},
                              {vector, vector},    {square, vector}};
  for (const GemmRecipe& gemm : gemms) expect_exact(*device, gemm, GemmRole::fprop, {DType::f32, false});
}

TEST_CASE("matmul: formats without a GPU mode are emulated in BF16", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat odd = fp8(DType::e4m3, Granularity::block_1x32);
  const QuantFormat vector = fp8(DType::e4m3, Granularity::block_1x128);
  const QuantFormat wide = fp8(DType::e5m2, Granularity::tensor);
  const QuantFormat held = fp8(DType::e3m4, Granularity::row), longer = fp8(DType::e5m3, Granularity::tensor);
  for (const GemmRecipe& gemm :
       {GemmRecipe{odd, odd}, GemmRecipe{wide, wide}, GemmRecipe{vector, wide}, GemmRecipe{vector, {}},
        GemmRecipe{{}, vector}, GemmRecipe{held, longer},
        GemmRecipe{held, fp8(DType::e4m3, Granularity::row)}, GemmRecipe{{}, wide}}) {
    CHECK(device->support(gemm, GemmRole::fprop).execution == Execution::emulated);
    CHECK_FALSE(device->support(gemm, GemmRole::fprop).reason.empty());
    expect_exact(*device, gemm, GemmRole::fprop, {DType::f32, false});
    expect_exact(*device, gemm, GemmRole::fprop, {DType::bf16, true});
  }
}

TEST_CASE("matmul: scratch of an emulated GEMM is known in advance", "[gpu][matmul]") {
  if (!gpu_here()) return;
  const QuantFormat blocks = fp8(DType::e4m3, Granularity::block_1x32);
  for (const GemmRecipe& gemm : {GemmRecipe{}, GemmRecipe{blocks, blocks}, GemmRecipe{{}, blocks}}) {
    const auto device = make_gpu_device(0);
    expect_exact(*device, gemm, GemmRole::fprop, {DType::f32, false});
    const auto dry = make_dry_device(device.get());
    const auto operand = [&](const QuantFormat& format, std::int64_t rows) {
      return GemmOperand{.format = format, .data = {dry->allocate(1), format.dtype, rows, kK}, .scale = {}};
    };
    dry->matmul({{dry->allocate(1), DType::f32, kM, kN}, operand(gemm.a, kM), operand(gemm.b, kN), {}});
    CHECK(device->workspace_bytes() == dry->workspace_bytes());
  }
}

TEST_CASE("matmul: BF16 operands work in either layout", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  for (bool a_transposed : {false, true})
    for (bool b_transposed : {false, true})
      for (const Output& output : outputs_of(GemmRole::wgrad)) {
        const HostOperand a = make_quantized_tensor({}, kM, kK, a_transposed, 1);
        const HostOperand b = make_quantized_tensor({}, kN, kK, b_transposed, 2);
        const Errors errors =
            errors_of_matmul(*device, a, b, output, {.accumulate = output.accumulate}, false);
        INFO(a_transposed << b_transposed << " " << name_of(output.dtype) << " " << output.accumulate << ": "
                          << errors.gpu << ", naive " << errors.naive);
        CHECK(agrees(errors));
      }
}

TEST_CASE("matmul: BF16 views with 16-byte alignment only work", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const HostOperand a = make_quantized_tensor({}, 40, 72, false, 1),
                    b = make_quantized_tensor({}, 24, 72, false, 2);
  const Errors errors = errors_of_matmul(*device, a, b, {DType::bf16, false}, {}, false);
  CHECK(agrees(errors));

  // The last 32 rows of A begin 8 * 72 * 2 bytes into it; their GEMM must equal that part of the whole one.
  Buffers buffers(*device);
  const GemmOperand whole_a = buffers.copy_of(a.view), operand_b = buffers.copy_of(b.view);
  GemmOperand part_a = whole_a;
  part_a.data = whole_a.data.slice_rows(8, 32);
  const Tensor whole = buffers.tensor(DType::f32, 40, 24), part = buffers.tensor(DType::f32, 32, 24);
  device->matmul({whole, whole_a, operand_b, {}});
  device->matmul({part, part_a, operand_b, {}});
  std::vector<float> expected(40 * 24), got(32 * 24);
  device->download(expected.data(), whole);
  device->download(got.data(), part);
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - expected[i + 8 * 24], 2);
    size += std::pow(expected[i + 8 * 24], 2);
  }
  // Two FP32 sums of the same 72 products differ by their rounding, at most 72 * 2^-24 of the terms' size
  // each.
  CHECK(std::sqrt(error / size) < 2 * 72 * std::ldexp(1.0, -24));
}

TEST_CASE("matmul: a NaN scale makes only its own row NaN", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat row = fp8(DType::e4m3, Granularity::row);
  HostOperand a = make_quantized_tensor(row, kM, kK, false, 1);
  const HostOperand b = make_quantized_tensor(row, kN, kK, false, 2);
  a.view.scale.as<float>()[5] = NAN;
  Buffers buffers(*device);
  const Tensor d = buffers.tensor(DType::f32, kM, kN);
  device->matmul({d, buffers.copy_of(a.view), buffers.copy_of(b.view), {}});
  std::vector<float> got(kM * kN);
  device->download(got.data(), d);
  for (std::int64_t i = 0; i < kM; ++i) CHECK(std::isnan(got[i * kN + 3]) == (i == 5));
}

TEST_CASE("matmul: repeated and replayed GEMMs have the same bits", "[gpu][matmul][graph]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat row = fp8(DType::e4m3, Granularity::row), tensor = fp8(DType::e4m3, Granularity::tensor);
  const QuantFormat mx{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::rceil};
  for (const GemmRecipe& gemm : {GemmRecipe{}, GemmRecipe{row, row, true}, GemmRecipe{row, tensor, false},
                                 GemmRecipe{mx, mx, false}}) {
    const HostOperand a = make_quantized_tensor(gemm.a, kM, kK, false, 1),
                      b = make_quantized_tensor(gemm.b, kN, kK, false, 2);
    Buffers buffers(*device);
    const GemmOperand operand_a = buffers.copy_of(a.view), operand_b = buffers.copy_of(b.view);
    const Tensor d = buffers.tensor(DType::f32, kM, kN);
    const std::vector<float> nothing(kM * kN, NAN);
    std::vector<float> once(kM * kN), again(kM * kN), replayed(kM * kN);
    const auto step = [&] { device->matmul({d, operand_a, operand_b, {.fast_accum = gemm.fast_accum}}); };
    step();
    device->download(once.data(), d);
    device->upload(d, nothing.data());
    step();
    device->download(again.data(), d);
    const auto graph = capture_step(*device, step);
    device->upload(d, nothing.data());
    graph->replay();
    device->download(replayed.data(), d);
    CHECK(std::memcmp(once.data(), again.data(), once.size() * 4) == 0);
    CHECK(std::memcmp(once.data(), replayed.data(), once.size() * 4) == 0);
  }
}

TEST_CASE("matmul: choosing an algorithm preserves an accumulating D with and without memory for another",
          "[gpu][matmul]") {
  // Small integers, so that every algorithm's sum is exact.
  const auto entry = [](std::int64_t i, std::int64_t period) { return static_cast<float>(i % period - 2); };
  const auto filled = [&](std::int64_t rows, std::int64_t period) {
    std::vector<std::uint16_t> bits(rows * kK);
    for (std::int64_t i = 0; i < rows * kK; ++i) bits[i] = bf16_encode(entry(i, period));
    return bits;
  };
  std::vector<std::uint16_t> a = filled(kM, 5), b = filled(kN, 7);
  std::vector<float> before(kM * kN), got(kM * kN);
  for (std::int64_t i = 0; i < kM * kN; ++i) before[i] = entry(i, 11);
  for (const bool has_memory : {true, false}) {
    const auto device = gpu_or_skip();
    if (!device) return;
    Buffers buffers(*device);
    const GemmOperand operand_a{{}, buffers.copy_of(Tensor{a.data(), DType::bf16, kM, kK}), {}, false};
    const GemmOperand operand_b{{}, buffers.copy_of(Tensor{b.data(), DType::bf16, kN, kK}), {}, false};
    const Tensor d = buffers.copy_of(Tensor{before.data(), DType::f32, kM, kN});
    device->matmul({buffers.tensor(DType::bf16, kM, kN),
                    operand_a,
                    operand_b,
                    {}});  // allocates the library's workspace
    std::unique_ptr<DeviceBlock> filler;
    constexpr std::int64_t kLeft = std::int64_t{256} << 20;
    if (!has_memory) filler = std::make_unique<DeviceBlock>(*device, gpu_memory(0).free_bytes - kLeft);
    device->matmul({d, operand_a, operand_b, {.accumulate = true}});
    device->download(got.data(), d);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kM; ++i)
      for (std::int64_t j = 0; j < kN; ++j) {
        float sum = before[i * kN + j];
        for (std::int64_t k = 0; k < kK; ++k) sum += entry(i * kK + k, 5) * entry(j * kK + k, 7);
        wrong += got[i * kN + j] != sum;
      }
    INFO((has_memory ? "enough memory" : "too little memory"));
    CHECK(wrong == 0);
  }
}

TEST_CASE("matmul: support names the requirement of a mode that is not native", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const GpuProperties gpu = gpu_properties(0);
  for (const auto* table : {&builtin_recipes(), &fp4_recipes(), &control_recipes()})
    for (const Recipe& recipe : *table)
      for (GemmRole role : kGemmRoles) {
        const GemmRecipe& gemm = recipe.gemm(role);
        const GemmSupport support = device->support(gemm, role);
        INFO(recipe.name << " " << name_of(role) << ": " << name_of(support.execution) << " "
                         << support.reason);
        CHECK((support.execution == Execution::native) == support.reason.empty());
        if (const auto known = known_execution(gemm, gpu.compute_capability))
          CHECK(support.execution == *known);
        // Fewer mantissa bits are the same GEMM, and no GPU multiplies e5m2 x e5m2.
        if (gemm.a.dtype == DType::e5m2 && gemm.b.dtype == DType::e5m2) {
          CHECK(support.execution == Execution::emulated);
          CHECK(support.reason.find("is no mode of cuBLASLt") != std::string::npos);
        }
      }
}

TEST_CASE("matmul: a shape without a kernel is emulated and reported with its scratch known in advance",
          "[gpu][matmul]") {
  if (!gpu_here()) return;
  // cuBLASLt requires FP8 rows of a multiple of 16 bytes; 8 columns of K are not.
  constexpr std::int64_t kOdd = 8 * 17;
  const QuantFormat tensor = fp8(DType::e4m3, Granularity::tensor);
  const GemmRecipe gemm{tensor, tensor, false};
  const auto device = make_gpu_device(0);
  if (device->support(gemm, GemmRole::fprop).execution != Execution::native) return;
  const HostOperand a = make_quantized_tensor(tensor, kM, kOdd, false, 1),
                    b = make_quantized_tensor(tensor, kN, kOdd, false, 2);
  CHECK(device->emulated_shapes(GemmRole::fprop).empty());
  for (const Output& output :
       {Output{DType::f32, false}, Output{DType::f32, true}, Output{DType::bf16, false}}) {
    const Errors errors = errors_of_matmul(*device, a, b, output, {.accumulate = output.accumulate}, true);
    INFO(errors.gpu << ", naive " << errors.naive);
    CHECK(agrees(errors));
  }
  CHECK(device->emulated_shapes(GemmRole::fprop) == "256 x 384 x 136");
  CHECK(device->emulated_shapes(GemmRole::wgrad).empty());
  const auto dry = make_dry_device(device.get());
  const auto operand = [&](std::int64_t rows) {
    return GemmOperand{.format = tensor, .data = {dry->allocate(1), tensor.dtype, rows, kOdd}, .scale = {}};
  };
  dry->matmul({{dry->allocate(1), DType::f32, kM, kN}, operand(kM), operand(kN), {}});
  CHECK(device->workspace_bytes() == dry->workspace_bytes());
  // A shape with a kernel is native as before.
  expect_exact(*device, gemm, GemmRole::fprop, {DType::bf16, false});
  CHECK(device->emulated_shapes(GemmRole::fprop) == "256 x 384 x 136");
}

TEST_CASE("matmul: scales expanded on the GPU equal the host's including padding", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  auto& cuda = dynamic_cast<CudaDevice&>(*device);
  for (const Granularity granularity :
       {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128}) {
    constexpr std::int64_t kRows = 200, kLength = 384;
    const QuantFormat format = fp8(DType::e4m3, granularity, ScaleType::f32_pow2);
    const HostOperand x = make_quantized_tensor(format, kRows, kLength, false, 3);
    const std::int64_t count = scale_count(Granularity::block_1x32, kRows, kLength);
    std::vector<std::uint8_t> expected(static_cast<std::size_t>(count)), got(expected.size(), 0xAA);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t block = 0; block < kLength / 32; ++block)
        expected[scale_index(Granularity::block_1x32, kRows, kLength, r, block)] =
            expanded_exponent(granularity, x.view.scale.as<float>(), kRows, kLength, r, block);
    Buffers buffers(*device);
    const Tensor out = buffers.copy_of(Tensor{got.data(), DType::ue8m0, 1, count});
    launch_expand_scales(out.as<std::uint8_t>(), buffers.copy_of(x.view), cuda.stream());
    device->download(got.data(), out);
    INFO(name_of(granularity));
    CHECK(got == expected);
  }
}

}  // namespace
}  // namespace precbench
