// Every mode of the CUDA matmul against FP64, on the operands that the GPU is given: quantized by the CPU
// device, dequantized exactly. A product may be at most twice as far from the truth as the same product
// computed naively at the same precision on the host: an accumulator of the tensor core's width, additions in
// index order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/device/devices.h"
#include "kernels/device/test_buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"
#include "kernels/numerics/formats.h"
#include "tools/testing/catch.h"

namespace precbench {
namespace {

constexpr std::int64_t kM = 256, kN = 384, kK = 640;

/// One operand on the host: random rows whose sizes and whose 128-blocks' sizes differ by up to 2^8, so that
/// a scale in the wrong place shows.
struct HostOperand {
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales;
  std::vector<double> values;  // what the GPU is given, exactly: [rows, k]
  std::vector<double> norms;   // of the rows
  GemmOperand form;
  std::int64_t rows, k;
};

double dequantized(const GemmOperand& form, std::int64_t rows, std::int64_t k, std::int64_t r,
                   std::int64_t c) {
  const QuantFormat& format = form.format;
  const std::int64_t block = block_length(format.granularity);
  const std::int64_t at = scale_index(format.granularity, rows, k, r, block ? c / block : 0);
  const double scale = format.scale == ScaleType::ue8m0 ? ue8m0_decode(form.scale.as<std::uint8_t>()[at])
                                                        : form.scale.as<float>()[at];
  const std::uint8_t code = form.data.as<std::uint8_t>()[r * k + c];
  return scale * (format.dtype == DType::e4m3 ? e4m3_decode(code) : e5m2_decode(code));
}

HostOperand make_quantized_tensor(const QuantFormat& format, std::int64_t rows, std::int64_t k,
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
  operand.form = {format, value, {}, transposed};
  if (format.quantized()) {
    const bool exponent_bytes = format.scale == ScaleType::ue8m0;
    const std::int64_t scales = scale_count(format.granularity, rows, k);
    operand.codes.resize(operand.bf16.size());
    operand.scales.resize(static_cast<std::size_t>(scales) * (exponent_bytes ? 1 : 4));
    operand.form.data = {operand.codes.data(), format.dtype, rows, k};
    operand.form.scale = {operand.scales.data(), exponent_bytes ? DType::ue8m0 : DType::f32, 1, scales};
    float amax = 0;
    make_cpu_device(1)->quantize(
        {{.value = value, .rowwise = operand.form, .amax_out = {&amax, DType::f32, 1, 1}}});
  }
  operand.values.resize(operand.bf16.size());
  operand.norms.resize(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const double v = format.quantized() ? dequantized(operand.form, rows, k, r, c)
                                          : bf16_decode(operand.bf16[transposed ? c * rows + r : r * k + c]);
      operand.values[r * k + c] = v;
      operand.norms[r] += v * v;
    }
  for (double& norm : operand.norms) norm = std::sqrt(norm);
  return operand;
}

double round_to(DType dtype, double x) {
  const float f = static_cast<float>(x);
  return dtype == DType::f32 ? f : bf16_decode(bf16_encode(f));
}

/// An accumulator as tensor cores have it: `group` products and the sum so far are cut to `bits` fraction
/// bits of the largest of them, then added; every `promote` products (0: never) the sum moves into an FP32
/// register.
struct Accumulator {
  int group, bits, promote;
};
/// Hopper's FP8: 32 products an instruction, 13 fraction bits kept (DeepSeek-V3 section 3.3.2 saw about 14
/// bits); promoted after 128 unless accumulation is fast. On H200 this model's error is within 15% of the
/// hardware's.
constexpr Accumulator kFp8Fast{32, 13, 0}, kFp8{32, 13, 128};
/// BF16 and emulated products: FP32, truncated as tensor cores truncate.
constexpr Accumulator kFp32{1, 23, 0};

double naive_dot(const double* a, const double* b, std::int64_t k, const Accumulator& with) {
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

/// Root mean square of (x - exact) / (|a row| |b row|): every element counts alike, whatever its row's size.
struct Errors {
  double gpu, naive;
};

Errors errors_of(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                 const MatmulOptions& options, bool emulated) {
  Buffers buffers(device);
  const GemmOperand device_a = buffers.copy_of(a.form), device_b = buffers.copy_of(b.form);
  const std::int64_t M = a.rows, N = b.rows, K = a.k;

  std::vector<double> before(static_cast<std::size_t>(M * N));
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<std::uint16_t> d16(before.size());
  std::vector<float> d32(before.size());
  for (std::int64_t i = 0; i < M * N; ++i) {
    // Where D is not accumulated into, what was there must not matter: it is NaN.
    before[i] =
        output.accumulate ? round_to(output.dtype, normal(random) * a.norms[i / N] * b.norms[i % N]) : NAN;
    d32[i] = static_cast<float>(before[i]);
    d16[i] = bf16_encode(d32[i]);
  }
  const bool wide = output.dtype == DType::f32;
  const Tensor host{wide ? static_cast<void*>(d32.data()) : d16.data(), output.dtype, M, N};
  const Tensor d = buffers.copy_of(host);
  device.matmul({d, device_a, device_b, options});
  device.download(host.data, d);

  const Accumulator accumulator = a.form.format.quantized() && b.form.format.quantized() && !emulated
                                      ? (options.fast_accum ? kFp8Fast : kFp8)
                                      : kFp32;
  // An emulated product rounds FP32-scaled values to BF16 first.
  const auto given = [&](const HostOperand& x) {
    std::vector<double> values = x.values;
    if (emulated)
      for (double& v : values) v = round_to(DType::bf16, v);
    return values;
  };
  const std::vector<double> naive_a = given(a), naive_b = given(b);
  constexpr std::int64_t kNaiveRows = 32;  // enough to know its error; the GPU's is taken over every element
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
      const double weight = 1 / (a.norms[i] * b.norms[j]);
      const double got = wide ? d32[at] : bf16_decode(d16[at]);
      gpu += std::pow((got - exact[at]) * weight, 2) / static_cast<double>(M * N);
      if (i >= kNaiveRows) continue;
      const double product = naive_dot(&naive_a[i * K], &naive_b[j * K], K, accumulator);
      const double sum = round_to(output.dtype, product + (output.accumulate ? before[at] : 0));
      naive += std::pow((sum - exact[at]) * weight, 2) / static_cast<double>(kNaiveRows * N);
    }
  return {std::sqrt(gpu), std::sqrt(naive)};
}

void check_gemm(Device& device, const GemmRecipe& gemm, GemmRole role, const Output& output) {
  const GemmSupport support = device.support(gemm, role);
  const HostOperand a = make_quantized_tensor(gemm.a, kM, kK, false, 1),
                    b = make_quantized_tensor(gemm.b, kN, kK, false, 2);
  const Errors errors = errors_of(
      device, a, b, output, {.role = role, .fast_accum = gemm.fast_accum, .accumulate = output.accumulate},
      support.execution == Execution::emulated);
  INFO(describe(gemm.a) << " x " << describe(gemm.b) << ", " << name_of(role) << " into "
                        << name_of(output.dtype) << (output.accumulate ? " accumulated" : "") << ": "
                        << name_of(support.execution) << " " << support.reason << "; error " << errors.gpu
                        << ", naive " << errors.naive);
  CHECK(errors.gpu <= 2 * errors.naive);
}

std::vector<Output> outputs_of(GemmRole role) {
  if (role != GemmRole::wgrad) return {{DType::bf16, false}};
  return {{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::bf16, true}};
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
  for (const auto* table : {&builtin_recipes(), &control_recipes()})
    for (const Recipe& recipe : *table)
      for (GemmRole role : kGemmRoles) {
        const GemmRecipe& gemm = recipe.gemm(role);
        const bool wgrad = role == GemmRole::wgrad;
        if (std::any_of(done.begin(), done.end(),
                        [&](const Done& d) { return d.gemm == gemm && d.wgrad == wgrad; }))
          continue;
        done.push_back({gemm, wgrad});
        for (const Output& output : outputs_of(role)) check_gemm(*device, gemm, role, output);
      }
}

TEST_CASE("matmul: FP32 output shows the accumulator of each FP8 mode", "[gpu][matmul]") {
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
  for (const GemmRecipe& gemm : gemms) check_gemm(*device, gemm, GemmRole::fprop, {DType::f32, false});
}

TEST_CASE("matmul: what no GPU mode takes is emulated in BF16", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat odd = fp8(DType::e4m3, Granularity::block_1x32);
  const QuantFormat vector = fp8(DType::e4m3, Granularity::block_1x128);
  const QuantFormat wide = fp8(DType::e5m2, Granularity::tensor);
  for (const GemmRecipe& gemm : {GemmRecipe{odd, odd}, GemmRecipe{wide, wide}, GemmRecipe{vector, wide},
                                 GemmRecipe{vector, {}}, GemmRecipe{{}, vector}}) {
    CHECK(device->support(gemm, GemmRole::fprop).execution == Execution::emulated);
    CHECK_FALSE(device->support(gemm, GemmRole::fprop).reason.empty());
    check_gemm(*device, gemm, GemmRole::fprop, {DType::f32, false});
    check_gemm(*device, gemm, GemmRole::fprop, {DType::bf16, true});
  }
}

TEST_CASE("matmul: BF16 operands stored either way", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  for (bool a_transposed : {false, true})
    for (bool b_transposed : {false, true})
      for (const Output& output : outputs_of(GemmRole::wgrad)) {
        const HostOperand a = make_quantized_tensor({}, kM, kK, a_transposed, 1);
        const HostOperand b = make_quantized_tensor({}, kN, kK, b_transposed, 2);
        const Errors errors = errors_of(*device, a, b, output, {.accumulate = output.accumulate}, false);
        INFO(a_transposed << b_transposed << " " << name_of(output.dtype) << " " << output.accumulate << ": "
                          << errors.gpu << ", naive " << errors.naive);
        CHECK(errors.gpu <= 2 * errors.naive);
      }
}

TEST_CASE("matmul: BF16 views that are 16-byte aligned only", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const HostOperand a = make_quantized_tensor({}, 40, 72, false, 1),
                    b = make_quantized_tensor({}, 24, 72, false, 2);
  const Errors errors = errors_of(*device, a, b, {DType::bf16, false}, {}, false);
  CHECK(errors.gpu <= 2 * errors.naive);

  // The last 32 rows of A begin 8 * 72 * 2 bytes into it; their product is that part of the whole product.
  Buffers buffers(*device);
  const GemmOperand whole_a = buffers.copy_of(a.form), form_b = buffers.copy_of(b.form);
  GemmOperand part_a = whole_a;
  part_a.data = whole_a.data.slice_rows(8, 32);
  const Tensor whole = buffers.tensor(DType::f32, 40, 24), part = buffers.tensor(DType::f32, 32, 24);
  device->matmul({whole, whole_a, form_b, {}});
  device->matmul({part, part_a, form_b, {}});
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

TEST_CASE("matmul: a NaN scale makes its own row NaN and no other", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat row = fp8(DType::e4m3, Granularity::row);
  HostOperand a = make_quantized_tensor(row, kM, kK, false, 1);
  const HostOperand b = make_quantized_tensor(row, kN, kK, false, 2);
  a.form.scale.as<float>()[5] = NAN;
  Buffers buffers(*device);
  const Tensor d = buffers.tensor(DType::f32, kM, kN);
  device->matmul({d, buffers.copy_of(a.form), buffers.copy_of(b.form), {}});
  std::vector<float> got(kM * kN);
  device->download(got.data(), d);
  for (std::int64_t i = 0; i < kM; ++i) CHECK(std::isnan(got[i * kN + 3]) == (i == 5));
}

TEST_CASE("matmul: repeated and replayed products have the same bits", "[gpu][matmul][graph]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const QuantFormat row = fp8(DType::e4m3, Granularity::row), tensor = fp8(DType::e4m3, Granularity::tensor);
  const QuantFormat mx{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::rceil};
  for (const GemmRecipe& gemm : {GemmRecipe{}, GemmRecipe{row, row, true}, GemmRecipe{row, tensor, false},
                                 GemmRecipe{mx, mx, false}}) {
    const HostOperand a = make_quantized_tensor(gemm.a, kM, kK, false, 1),
                      b = make_quantized_tensor(gemm.b, kN, kK, false, 2);
    Buffers buffers(*device);
    const GemmOperand form_a = buffers.copy_of(a.form), form_b = buffers.copy_of(b.form);
    const Tensor d = buffers.tensor(DType::f32, kM, kN);
    const std::vector<float> nothing(kM * kN, NAN);
    std::vector<float> once(kM * kN), again(kM * kN), replayed(kM * kN);
    const auto step = [&] { device->matmul({d, form_a, form_b, {.fast_accum = gemm.fast_accum}}); };
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

TEST_CASE("matmul: choosing an algorithm leaves the sum alone, with room for another D or without",
          "[gpu][matmul]") {
  // Small whole numbers, so that every algorithm's sum is exact.
  const auto entry = [](std::int64_t i, std::int64_t period) { return static_cast<float>(i % period - 2); };
  const auto filled = [&](std::int64_t rows, std::int64_t period) {
    std::vector<std::uint16_t> bits(rows * kK);
    for (std::int64_t i = 0; i < rows * kK; ++i) bits[i] = bf16_encode(entry(i, period));
    return bits;
  };
  std::vector<std::uint16_t> a = filled(kM, 5), b = filled(kN, 7);
  std::vector<float> before(kM * kN), got(kM * kN);
  for (std::int64_t i = 0; i < kM * kN; ++i) before[i] = entry(i, 11);
  for (const bool room : {true, false}) {
    const auto device = gpu_or_skip();
    if (!device) return;
    Buffers buffers(*device);
    const GemmOperand form_a{{}, buffers.copy_of(Tensor{a.data(), DType::bf16, kM, kK}), {}, false};
    const GemmOperand form_b{{}, buffers.copy_of(Tensor{b.data(), DType::bf16, kN, kK}), {}, false};
    const Tensor d = buffers.copy_of(Tensor{before.data(), DType::f32, kM, kN});
    device->matmul(
        {buffers.tensor(DType::bf16, kM, kN), form_a, form_b, {}});  // makes the library's workspace
    std::unique_ptr<DeviceBlock> filler;
    constexpr std::int64_t kLeft = std::int64_t{256} << 20;
    if (!room) filler = std::make_unique<DeviceBlock>(*device, gpu_memory(0).free_bytes - kLeft);
    device->matmul({d, form_a, form_b, {.accumulate = true}});
    device->download(got.data(), d);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kM; ++i)
      for (std::int64_t j = 0; j < kN; ++j) {
        float sum = before[i * kN + j];
        for (std::int64_t k = 0; k < kK; ++k) sum += entry(i * kK + k, 5) * entry(j * kK + k, 7);
        wrong += got[i * kN + j] != sum;
      }
    INFO((room ? "room" : "no room"));
    CHECK(wrong == 0);
  }
}

TEST_CASE("matmul: support names what a mode needs where it is not native", "[gpu][matmul]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const GpuProperties gpu = gpu_properties(0);
  for (const Recipe& recipe : builtin_recipes())
    for (GemmRole role : kGemmRoles) {
      const GemmSupport support = device->support(recipe.gemm(role), role);
      INFO(recipe.name << " " << name_of(role) << ": " << name_of(support.execution) << " "
                       << support.reason);
      CHECK((support.execution == Execution::native) == support.reason.empty());
      const bool exponents = recipe.gemm(role).a.scale == ScaleType::ue8m0;
      if (gpu.compute_capability == 90)  // what an H100 or H200 is known to run
        CHECK(support.execution == (exponents ? Execution::emulated : Execution::native));
    }
  // FP4: what no GPU before Blackwell multiplies.
  for (const Recipe& recipe : fp4_recipes())
    for (GemmRole role : kGemmRoles) {
      const GemmRecipe& gemm = recipe.gemm(role);
      const GemmSupport support = device->support(gemm, role);
      INFO(recipe.name << " " << name_of(role) << ": " << support.reason);
      if (gpu.compute_capability == 90)
        CHECK(support.execution == (gemm.a.quantized() ? Execution::emulated : Execution::native));
    }
  // The controls: fewer mantissa bits are the same GEMM, and nobody multiplies e5m2 x e5m2.
  for (const Recipe& recipe : control_recipes())
    for (GemmRole role : kGemmRoles) {
      const GemmRecipe& gemm = recipe.gemm(role);
      const GemmSupport support = device->support(gemm, role);
      INFO(recipe.name << " " << name_of(role) << ": " << support.reason);
      const bool none = gemm.a.dtype == DType::e5m2 && gemm.b.dtype == DType::e5m2;
      if (none) CHECK(support.reason.find("is no mode of cuBLASLt") != std::string::npos);
      if (none || gpu.compute_capability == 90)
        CHECK(support.execution == (none ? Execution::emulated : Execution::native));
    }
}

}  // namespace
}  // namespace precbench
