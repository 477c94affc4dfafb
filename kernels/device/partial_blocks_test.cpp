// Blocks of 128 that end with their matrix, as in models whose width is 576 or 2880: scales and elements of both copies
// against loops over the elements of each block, and the three GEMMs of a linear layer against FP64 sums. Blocks differ
// in size, so that a scale from other elements, or of another block, is far off.
#include <algorithm>
#include <cmath>

#include "kernels/device/compare_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct LayerShape {
  std::int64_t M, N, K;  ///< tokens, out features, in features
};
// The last blocks of SmolLM2 (576; vocabulary of 49152), gpt-oss (2880) and latent attention (3648, 2112), and of every
// length from 16 on.
constexpr LayerShape kLayerShapes[] = {{128, 960, 576}, {16, 192, 2880}, {144, 48, 3648}, {80, 2112, 320},
                                       {272, 16, 1088}, {16, 49152, 64}, {32, 112, 16},   {240, 224, 336}};

std::int64_t up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// A quantized copy [rows, k], element by element.
struct LoopCopy {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;   ///< with zeros as padding
  std::vector<double> values;  ///< element times scale
};

/// Quantizes `at(r, c)` block by block, `tall` rows by 128 columns.
template <class At>
LoopCopy quantized_by_loops(std::int64_t rows, std::int64_t k, std::int64_t tall, bool pow2, const At& at) {
  const std::int64_t blocks = up(k, 128) / 128;
  LoopCopy copy{std::vector<std::uint8_t>(rows * k),
                std::vector<float>(tall == 1 ? blocks * up(rows, 4) : up(rows, 128) / 128 * up(blocks, 4)),
                std::vector<double>(rows * k)};
  for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t last_row = std::min(rows, r0 + tall), last = std::min(k, block * 128 + 128);
      float amax = 0;
      for (std::int64_t r = r0; r < last_row; ++r)
        for (std::int64_t c = block * 128; c < last; ++c) amax = std::max(amax, std::fabs(at(r, c)));
      float factor = 448.0f / amax;
      if (pow2) factor = std::ldexp(1.0f, std::ilogb(factor));
      const float scale = 1.0f / factor;
      copy.scales[tall == 1 ? block * up(rows, 4) + r0 : r0 / 128 * up(blocks, 4) + block] = scale;
      for (std::int64_t r = r0; r < last_row; ++r)
        for (std::int64_t c = block * 128; c < last; ++c) {
          copy.codes[r * k + c] = e4m3_encode(at(r, c) * factor);
          copy.values[r * k + c] = static_cast<double>(e4m3_decode(copy.codes[r * k + c])) * scale;
        }
    }
  return copy;
}

/// Returns normal values [rows, cols] whose magnitude changes from block to block, in both directions.
Tensor in_blocks_of_sizes(HostMemory& host, std::int64_t rows, std::int64_t cols) {
  const Tensor x = host.random(DType::bf16, rows, cols, 1.0f);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto size = static_cast<int>(3 * (i / cols / 128) + 5 * (i % cols / 128));
    HostMemory::set(x, i, std::ldexp(HostMemory::get(x, i), size % 7));
  }
  return x;
}

/// A matrix quantized on the device in both directions, and by loops.
struct BothWays {
  GemmOperand rowwise, columnwise;  ///< on the device
  LoopCopy rows, columns;
};

BothWays quantize_both(OpTest& b, const Tensor& value, const QuantFormat& row, const QuantFormat& column) {
  QuantizedTensor x = b.operand({row, column}, value.rows, value.cols);
  x.value = b.put(value);
  b.device().quantize({x});
  const auto by_loops = [&](const QuantFormat& format, bool columns) {
    const std::int64_t rows = columns ? value.cols : value.rows, k = columns ? value.rows : value.cols;
    const std::int64_t tall = format.granularity == Granularity::block_128x128 ? 128 : 1;
    return quantized_by_loops(rows, k, tall, format.scale == ScaleType::f32_pow2,
                              [&](std::int64_t r, std::int64_t c) {
                                return HostMemory::get(value, columns ? c * rows + r : r * k + c);
                              });
  };
  BothWays made{x.rowwise, x.columnwise, by_loops(row, false), by_loops(column, true)};
  for (const auto& [operand, expected] :
       {std::pair(&made.rowwise, &made.rows), std::pair(&made.columnwise, &made.columns)}) {
    INFO(value.rows << " x " << value.cols << ", " << describe(operand->format)
                    << (operand == &made.columnwise ? " of columns" : ""));
    const Tensor scales = b.fetch(operand->scale), codes = b.fetch(operand->data);
    REQUIRE(scales.size() == static_cast<std::int64_t>(expected->scales.size()));
    CHECK(std::equal(expected->scales.begin(), expected->scales.end(), scales.as<float>()));
    CHECK(std::equal(expected->codes.begin(), expected->codes.end(), codes.as<std::uint8_t>()));
  }
  return made;
}

/// Checks D = A B^T: into BF16, and for a weight gradient, and on the CPU always, also into FP32 and added to it.
void check_gemm(OpTest& b, GemmRole role, const GemmOperand& a, const LoopCopy& a_values,
                const GemmOperand& b_operand, const LoopCopy& b_values) {
  const std::int64_t M = a.rows(), N = b_operand.rows(), k = a.k();
  INFO(name_of(role) << " " << M << " x " << N << " x " << k);
  for (const auto& [type, accumulate] :
       {std::pair{DType::f32, false}, std::pair{DType::f32, true}, std::pair{DType::bf16, false}}) {
    if (type == DType::f32 && role != GemmRole::wgrad && !b.on_cpu()) continue;  // no step has that
    const Tensor before = b.host().tensor(type, M, N);
    if (accumulate)
      for (std::int64_t i = 0; i < before.size(); ++i)
        HostMemory::set(before, i, static_cast<float>(i % 5 - 2));
    const Tensor d = b.put(before);
    b.device().matmul({d, a, b_operand, {.role = role, .accumulate = accumulate}});
    const Tensor got = b.fetch(d);
    // Every element of small results, else about 20,000 that fall into all tiles, the last row and column included.
    const std::int64_t stride = std::max<std::int64_t>(1, M * N / 20000) | 1;
    double error = 0, size = 0, worst = 0;
    for (std::int64_t i = M * N - 1; i >= 0; i -= stride) {
      const std::int64_t m = i / N, n = i % N;
      double sum = 0, length = 0;
      for (std::int64_t c = 0; c < k; ++c) {
        const double term = a_values.values[m * k + c] * b_values.values[n * k + c];
        sum += term, length += term * term;
      }
      if (accumulate) sum += static_cast<double>(i % 5 - 2);
      const double off = HostMemory::get(got, i) - sum;
      error += off * off, size += length;
      worst = std::max(worst, std::fabs(off) / std::sqrt(length + sum * sum));
    }
    // FP32 sums on the CPU. A GPU's tensor cores keep 13 bits of 32 products, and emulation rounds operands to BF16.
    const double bound = type == DType::bf16 ? 0x1p-7 : b.on_cpu() ? 0x1p-18 : 0x1p-8;
    INFO("into " << name_of(type) << (accumulate ? ", accumulated" : ""));
    CHECK(std::sqrt(error / size) <= bound);
    CHECK(worst <= 16 * bound);
  }
}

}  // namespace

PRECBENCH_OP_TEST(partial_blocks_on, "partial blocks of 128: scales, elements and GEMMs") {
  for (const char* name : {"blockwise", "blockwise_pow2"})
    for (const LayerShape& shape : kLayerShapes) {
      INFO(name);
      b.start();
      const Recipe recipe = find_recipe(name);
      HostMemory& host = b.host();
      const BothWays x = quantize_both(b, in_blocks_of_sizes(host, shape.M, shape.K), recipe.fprop.a,
                                       recipe.wgrad.b),
                     w = quantize_both(b, in_blocks_of_sizes(host, shape.N, shape.K), recipe.fprop.b,
                                       recipe.dgrad.b),
                     dy = quantize_both(b, in_blocks_of_sizes(host, shape.M, shape.N), recipe.dgrad.a,
                                        recipe.wgrad.a);
      check_gemm(b, GemmRole::fprop, x.rowwise, x.rows, w.rowwise, w.rows);
      check_gemm(b, GemmRole::dgrad, dy.rowwise, dy.rows, w.columnwise, w.columns);
      check_gemm(b, GemmRole::wgrad, dy.columnwise, dy.columns, x.columnwise, x.columns);
    }
}

PRECBENCH_OP_TEST(partial_transposes_on, "transpose: partial blocks of 128x128") {
  for (const auto& [rows, k] : {std::pair{960, 576}, std::pair{16, 2880}, std::pair{144, 112}}) {
    b.start();
    const Recipe recipe = find_recipe("blockwise");
    const BothWays w =
        quantize_both(b, in_blocks_of_sizes(b.host(), rows, k), recipe.fprop.b, recipe.dgrad.b);
    const GemmOperand turned = b.quantized_copy(recipe.dgrad.b, k, rows);
    b.device().transpose({turned, w.rowwise});
    INFO(rows << " x " << k);
    CHECK(same_bits(b.fetch(turned.data), b.fetch(w.columnwise.data)));
    CHECK(same_scales(b.fetch(turned.scale), b.fetch(w.columnwise.scale)));
  }
}

TEST_CASE("partial blocks of 128 are multiplied by our own kernels and never by cuBLASLt", "[gpu][op]") {
  if (!gpu_here()) return;
  for (const char* gemm : {"cublaslt", "own"}) {
    INFO(gemm);
    const auto device = make_gpu_device(0, {.gemm = gemm});
    OpTest test(*device);
    partial_blocks_on(test);
    const GemmRecipe fprop = find_recipe("blockwise").fprop;
    if (device->support(fprop, GemmRole::fprop).execution != Execution::native) continue;
    const bool own = gemm == std::string("own");
    CHECK(device->emulated_shapes(GemmRole::fprop).empty() == own);
    if (own) CHECK(device->gemm_names(GemmRole::dgrad).starts_with("own "));
  }
}
