// Grouped expert GEMMs against the dense ops on each expert's own rows and weights.
#include <cmath>

#include "kernels/device/moe_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Rows per expert: empty groups, sizes around a tile, and a remainder.
const std::vector<std::int64_t> kCounts = {0, 1, 127, 128, 129, 0, 40};

/// Returns a tensor's rows padded with zeros to a multiple of 128, as in a group.
Tensor padded_rows(HostMemory& host, const Tensor& rows) {
  const Tensor t = host.tensor(rows.dtype, detail::padded(rows.rows, 128), rows.cols);
  for (std::int64_t i = 0; i < t.size(); ++i)
    HostMemory::set(t, i, i < rows.size() ? HostMemory::get(rows, i) : 0);
  return t;
}

float amax(const Tensor& t) {
  float largest = 0;
  for (const double v : HostMemory::values(t)) largest = std::max(largest, static_cast<float>(std::fabs(v)));
  return largest;
}

/// Returns a dense operand on the CPU: [rows, k] of `value`, or its transpose with `columns`. `known`: the
/// tensor's amax.
GemmOperand dense_operand(OpTest& b, const QuantFormat& format, const Tensor& value, bool columns,
                          float known) {
  if (!format.quantized()) return {format, value, {}, columns};
  QuantizedTensor x = b.host_operand(columns ? OutputFormats{{}, format} : OutputFormats{format, {}}, value);
  if (format.granularity == Granularity::tensor) {
    x.amax_in = b.host().tensor(DType::f32, 1, 1);
    *x.amax_in.as<float>() = known;
    x.amax_out = {};
  }
  b.cpu().quantize({x});
  return columns ? x.columnwise : x.rowwise;
}

/// Returns grouped tokens on the device in a GEMM's format.
QuantizedTensor grouped_operand(OpTest& b, const Groups& groups, const Tensor& tokens,
                                const QuantFormat& format, bool columns) {
  const std::int64_t rows = groups.rows_capacity(), C = tokens.cols;
  QuantizedTensor x{.value = b.output(DType::bf16, rows, C)};
  QuantizedTensor src{.value = b.put(tokens)};
  if (!format.quantized()) {
    (columns ? x.columnwise : x.rowwise) = {format, x.value, {}, columns};
  } else if (columns) {
    x.columnwise = b.quantized_copy(format, C, rows);
    x.columnwise.scale =
        b.output(scale_dtype(format), 1, grouped_scale_count(format.granularity, groups.experts(), C, rows));
    if (format.granularity == Granularity::tensor) x.amax_out = b.output(DType::f32, 1, 1);
  } else {
    x.rowwise = b.quantized_copy(format, rows, C);
    src.rowwise = b.put(dense_operand(b, format, tokens, false, amax(tokens)));
  }
  b.device().permute({x, src, {}, groups});
  return x;
}

GemmOperand stacked_weights(OpTest& b, const Tensor& value, std::int64_t E, const QuantFormat& format,
                            bool columns) {
  const Tensor there = b.put(value);
  if (!format.quantized()) return {format, there, {}, columns};
  const std::int64_t N = value.rows / E, rows = columns ? value.cols : N, k = columns ? N : value.cols;
  GemmOperand operand = b.quantized_copy(format, E * rows, k);
  operand.scale = b.output(scale_dtype(format), 1, stacked_scale_count(format.granularity, E, rows, k));
  QuantizedTensor w{.value = there};
  (columns ? w.columnwise : w.rowwise) = operand;
  b.device().quantize_experts({w, E});
  return operand;
}

/// Returns the relative error of a sum over 128 elements against the same sum in FP32. For each 32 FP8 products
/// and the running sum, Hopper's tensor cores keep 13 bits below the largest and truncate the rest: half of
/// that on average, four times.
double summation_error(const QuantFormat& format) {
  return format.granularity == Granularity::block_1x32 || !format.quantized() ? 1e-5 : 2 * 0x1p-13;
}

/// Requires equal bits on the CPU device; elsewhere the error of another summation order and of rounding. `in_bf16`: the
/// operands may be rounded to BF16 first.
void check_product(OpTest& b, const QuantFormat& format, const Tensor& got, const Tensor& expected,
                   bool in_bf16) {
  if (b.on_cpu()) {
    CHECK(same_bits(got, b.host().converted(expected, got.dtype)));
    return;
  }
  const double rounding = (got.dtype == DType::bf16 ? 0x1p-9 : 0) + (in_bf16 ? 2 * 0x1p-9 : 0);
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(HostMemory::get(got, i)) - HostMemory::get(expected, i), 2);
    size += std::pow(static_cast<double>(HostMemory::get(expected, i)), 2);
  }
  CHECK(std::sqrt(error) <= (summation_error(format) + rounding) * std::sqrt(size));
}

struct Problem {
  std::int64_t E = static_cast<std::int64_t>(kCounts.size()), N, K;
  Tensor x, dy, w;  // tokens [T, K] and [T, N], stack [E * N, K]
  std::vector<std::int32_t> index = experts_with(kCounts);

  explicit Problem(HostMemory& host, std::int64_t out = 256, std::int64_t in = 128) : N(out), K(in) {
    const auto T = static_cast<std::int64_t>(index.size());
    x = host.random(DType::bf16, T, K, 1.0f);
    dy = host.random(DType::bf16, T, N, 1.0f);
    w = host.random(DType::bf16, E * N, K, 0.1f);
    // Experts differ in size, so that one scale for all would be noticed.
    for (std::int64_t i = 0; i < w.size(); ++i)
      HostMemory::set(w, i, HostMemory::get(w, i) * std::ldexp(1.0f, static_cast<int>(i / (N * K))));
  }
  /// Returns an expert's tokens.
  Tensor rows_of(HostMemory& host, const Tensor& tokens, std::int64_t e) const {
    std::vector<std::int64_t> mine;
    for (std::size_t t = 0; t < index.size(); ++t)
      if (index[t] == e) mine.push_back(static_cast<std::int64_t>(t));
    const Tensor rows = host.tensor(tokens.dtype, static_cast<std::int64_t>(mine.size()), tokens.cols);
    for (std::size_t r = 0; r < mine.size(); ++r)
      std::memcpy(rows.slice_rows(static_cast<std::int64_t>(r), 1).data, tokens.slice_rows(mine[r], 1).data,
                  tokens.bytes() / tokens.rows);
    return rows;
  }
};

/// Checks all GEMMs of experts [N, K] in a recipe.
void check_experts(OpTest& b, const char* name, std::int64_t N, std::int64_t K) {
  INFO(name << ", experts of " << N << " x " << K);
  const Recipe recipe = find_recipe(name);
  b.start();
  HostMemory& host = b.host();
  const Problem p(host, N, K);
  const TwoGroups groups(b, p.index, 1, p.E, 128);
  const std::int64_t rows = groups.device.rows_capacity();
  const std::vector<std::int32_t> offsets = integers(groups.cpu.offsets);
  for (const auto& [role, type] : {std::pair{GemmRole::fprop, DType::f32},
                                   {GemmRole::fprop, DType::bf16},
                                   {GemmRole::dgrad, DType::f32},
                                   {GemmRole::dgrad, DType::bf16}}) {
    INFO(name_of(role) << " into " << name_of(type));
    const bool dgrad = role == GemmRole::dgrad;
    const GemmRecipe& gemm = recipe.gemm(role);
    const Tensor& tokens = dgrad ? p.dy : p.x;
    const std::int64_t out = dgrad ? p.K : p.N;
    // Our kernels give BF16 results, and cuBLASLt does not take partial blocks: FP32 results are emulated, which is
    // exact with scales of powers of two.
    const bool in_bf16 = type == DType::f32 && gemm.a.scale == ScaleType::f32 &&
                         (N % 128 != 0 || K % 128 != 0) && gemm.a.granularity == Granularity::block_1x128;
    const Tensor d = b.output(type, rows, out);
    b.device().grouped_matmul({d,
                               grouped_operand(b, groups.device, tokens, gemm.a, false).rowwise,
                               stacked_weights(b, p.w, p.E, gemm.b, dgrad),
                               groups.device,
                               {role, gemm.fast_accum}});
    const Tensor all = b.fetch(d);
    for (std::int64_t e = 0; e < p.E; ++e) {
      if (kCounts[e] == 0) continue;
      INFO("expert " << e);
      const Tensor mine = p.rows_of(host, tokens, e), w = p.w.slice_rows(e * p.N, p.N);
      const Tensor expected = host.tensor(DType::f32, mine.rows, out);
      b.cpu().matmul({expected,
                      dense_operand(b, gemm.a, mine, false, amax(tokens)),
                      dense_operand(b, gemm.b, w, dgrad, amax(w)),
                      {}});
      check_product(b, gemm.a, all.slice_rows(offsets[e], mine.rows), expected, in_bf16);
    }
  }
  const GemmRecipe& gemm = recipe.wgrad;
  const QuantizedTensor dy = grouped_operand(b, groups.device, p.dy, gemm.a, true);
  const QuantizedTensor x = grouped_operand(b, groups.device, p.x, gemm.b, true);
  for (const bool accumulate : {false, true}) {
    INFO("wgrad, accumulate " << accumulate);
    const Tensor before = host.random(DType::f32, p.E * p.N, p.K, 1.0f), d = b.put(before);
    b.device().grouped_matmul(
        {d, dy.columnwise, x.columnwise, groups.device, {GemmRole::wgrad, false, accumulate}});
    const Tensor all = b.fetch(d);
    for (std::int64_t e = 0; e < p.E; ++e) {
      INFO("expert " << e);
      const Tensor expected = host.tensor(DType::f32, p.N, p.K);
      const Tensor first = before.slice_rows(e * p.N, p.N);
      for (std::int64_t i = 0; i < expected.size(); ++i)
        expected.as<float>()[i] = accumulate ? first.as<float>()[i] : 0.0f;
      if (kCounts[e] > 0) {
        // BF16 GEMMs skip padding, FP8 blocks contain its zeros: the sums are the same numbers.
        const auto mine = [&](const Tensor& tokens) { return p.rows_of(host, tokens, e); };
        const auto operand = [&](const QuantFormat& f, const Tensor& tokens) {
          const Tensor of_expert = mine(tokens);
          GemmOperand whole = dense_operand(b, f, f.quantized() ? padded_rows(host, of_expert) : of_expert,
                                            true, amax(tokens));
          return whole;
        };
        b.cpu().matmul({expected, operand(gemm.a, p.dy), operand(gemm.b, p.x), {.accumulate = accumulate}});
      }
      const Tensor got = all.slice_rows(e * p.N, p.N);
      double error = 0, size = 1e-30;
      for (std::int64_t i = 0; i < got.size(); ++i) {
        error += std::pow(static_cast<double>(got.as<float>()[i]) - expected.as<float>()[i], 2);
        size += std::pow(static_cast<double>(expected.as<float>()[i]), 2);
      }
      // With padding the dense GEMM sums more zeros, in another order.
      CHECK(std::sqrt(error / size) <= (b.on_cpu() ? 1e-6 : summation_error(gemm.a)));
      if (kCounts[e] == 0) CHECK(same_bits(got, expected));
    }
  }
}

}  // namespace

PRECBENCH_OP_TEST(grouped_matmul_on, "grouped_matmul and quantize_experts") {
  for (const char* name :
       {"bf16", "tensorwise", "rowwise", "rowwise_gw_hp", "blockwise", "blockwise_pow2", "mxfp8"})
    check_experts(b, name, 256, 128);
}

PRECBENCH_OP_TEST(grouped_partial_on, "grouped_matmul: experts that end within a block of 128") {
  for (const char* name : {"blockwise", "blockwise_pow2"})
    for (const auto& [N, K] : {std::pair{320, 192}, std::pair{336, 208}, std::pair{64, 576}})
      check_experts(b, name, N, K);
}

PRECBENCH_OP_TEST(grouped_matmul_nan_on, "grouped_matmul: a NaN stays in its group") {
  HostMemory& host = b.host();
  Problem p(host);
  const std::int64_t bad = 4;  // an expert
  for (std::size_t t = 0; t < p.index.size(); ++t)
    if (p.index[t] == bad) HostMemory::set(p.x, static_cast<std::int64_t>(t) * p.K + 3, NAN);
  const TwoGroups groups(b, p.index, 1, p.E, 128);
  const std::vector<std::int32_t> offsets = integers(groups.cpu.offsets);
  for (const char* name : {"bf16", "rowwise", "blockwise", "mxfp8"}) {
    INFO(name);
    const Recipe recipe = find_recipe(name);
    const Tensor y = b.output(DType::f32, groups.device.rows_capacity(), p.N);
    b.device().grouped_matmul({y,
                               grouped_operand(b, groups.device, p.x, recipe.fprop.a, false).rowwise,
                               stacked_weights(b, p.w, p.E, recipe.fprop.b, false),
                               groups.device,
                               {}});
    const Tensor dw = b.output(DType::f32, p.E * p.N, p.K);
    b.device().grouped_matmul({dw,
                               grouped_operand(b, groups.device, p.dy, recipe.wgrad.a, true).columnwise,
                               grouped_operand(b, groups.device, p.x, recipe.wgrad.b, true).columnwise,
                               groups.device,
                               {GemmRole::wgrad}});
    const Tensor got_y = b.fetch(y), got_dw = b.fetch(dw);
    for (std::int64_t e = 0; e < p.E; ++e) {
      bool finite = true;
      for (std::int64_t i = offsets[e] * p.N; i < (offsets[e] + kCounts[e]) * p.N; ++i)
        finite = finite && std::isfinite(got_y.as<float>()[i]);
      for (std::int64_t i = e * p.N * p.K; i < (e + 1) * p.N * p.K; ++i)
        finite = finite && std::isfinite(got_dw.as<float>()[i]);
      INFO("expert " << e);
      CHECK(finite == (e != bad));
    }
  }
}

TEST_CASE("grouped_matmul: cuBLASLt's grouped call and the loop over experts both run on a GPU",
          "[gpu][op]") {
  if (!gpu_here()) return;
  for (const std::string grouped : {"cublaslt", "loop"}) {
    INFO(grouped);
    const auto device = make_gpu_device(0, {.grouped = grouped});
    OpTest test(*device);
    grouped_matmul_on(test);
    grouped_partial_on(test);
    grouped_matmul_nan_on(test);
    // An old cuBLASLt has no grouped call: then both runs use the loop.
    if (device->grouped_name().find(grouped) == std::string::npos) WARN("skipped: no grouped call here");
  }
}
