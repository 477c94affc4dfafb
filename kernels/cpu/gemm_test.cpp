// gemm() computes the sum that its header defines, in every variant that this CPU can execute. An output
// row's bits depend on that row only: in the GEMM, and in the ops of every recipe.
#include "kernels/cpu/gemm.h"

#include <cstring>

#include "kernels/cpu/multiply.h"
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/multiply_add.h"
#include "kernels/numerics/recipe.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// An operand [rows, k] stored with a stride beyond its row length.
struct Operand {
  std::vector<float> values;  ///< [rows, k]
  std::int64_t rows, k;
  std::vector<float> memory;
  cpu::Matrix matrix;

  Operand(std::uint64_t seed, std::int64_t row_count, std::int64_t depth, bool transposed)
      : rows(row_count), k(depth) {
    for (std::int64_t i = 0; i < rows * k; ++i) values.push_back(irwin_hall_normal(seed, i));
    const std::int64_t outer = transposed ? k : rows, inner = transposed ? rows : k, stride = inner + 3;
    memory.assign(outer * stride, std::nanf(""));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < k; ++i)
        memory[transposed ? i * stride + r : r * stride + i] = values[r * k + i];
    matrix = {memory.data(), stride, transposed};
  }
  /// Returns the operand without its first `row` rows.
  cpu::Matrix from(std::int64_t row) const {
    return {matrix.data + (matrix.transposed ? row : row * matrix.stride), matrix.stride, matrix.transposed};
  }
};

/// Returns an element as the header defines it.
float defined(const float* a, const float* b, std::int64_t k, float alpha, bool accumulate, float c) {
  for (std::int64_t from = 0, depth = 0; from < k; from += depth) {
    depth = cpu::gemm_block_depth(k - from);
    float sum = 0;
    for (std::int64_t i = from; i < from + depth; ++i) sum = multiply_add(a[i], b[i], sum);
    c = accumulate || from > 0 ? multiply_add(alpha, sum, c) : alpha * sum;
  }
  return c;
}

struct Shape {
  std::int64_t m, n, k;
};
// Below, at and above every kernel's rows (4, 6, 8) and columns (8 to 32), a panel's (96, 512) and a block's
// depth (320).
constexpr Shape kShapes[] = {{1, 1, 1},    {3, 5, 2},    {4, 8, 16},    {6, 16, 320},
                             {7, 17, 321}, {8, 32, 639}, {9, 33, 640},  {13, 47, 701},
                             {96, 31, 64}, {97, 513, 9}, {131, 70, 961}};

bool same_bits(float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0; }

}  // namespace

TEST_CASE("gemm_block_depth: blocks cover the sum and none is short", "[cpu][gemm]") {
  for (std::int64_t k = 1; k <= 3000; ++k) {
    std::int64_t covered = 0;
    while (covered < k) {
      const std::int64_t depth = cpu::gemm_block_depth(k - covered);
      REQUIRE(depth <= cpu::kGemmDepth);
      REQUIRE(depth >= std::min(k, cpu::kGemmDepth / 2 - 15));
      covered += depth;
    }
    REQUIRE(covered == k);
  }
}

TEST_CASE("gemm: every variant gives the documented sum bit for bit", "[cpu][gemm]") {
  CHECK(!cpu::gemm_variants().empty());
  for (const cpu::GemmVariant& variant : cpu::gemm_variants())
    for (const auto& [m, n, k] : kShapes)
      for (int way = 0; way < 16; ++way) {
        const bool accumulate = way & 4;
        const float alpha = way & 8 ? 0.3f : 1.0f;
        INFO(variant.bits << " bits, " << m << " x " << n << " x " << k << ", way " << way);
        const Operand a(1, m, k, way & 1), b(2, n, k, way & 2);
        const std::int64_t stride = n + 2;
        std::vector<float> c(m * stride);
        for (std::size_t i = 0; i < c.size(); ++i) c[i] = irwin_hall_normal(3, i);
        const std::vector<float> before = c;
        // Without accumulation C is not read.
        for (std::int64_t i = 0; !accumulate && i < m; ++i)
          std::fill_n(c.data() + i * stride, n, std::nanf(""));
        variant.run(m, n, k, alpha, a.matrix, b.matrix, accumulate, c.data(), stride);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < stride; ++j) {
            const std::int64_t at = i * stride + j;
            const float expected =
                j < n ? defined(&a.values[i * k], &b.values[j * k], k, alpha, accumulate, before[at])
                      : before[at];
            wrong += !same_bits(c[at], expected);
          }
        REQUIRE(wrong == 0);
      }
}

TEST_CASE("gemm: an element's bits do not depend on other rows and columns", "[cpu][gemm]") {
  for (const cpu::GemmVariant& variant : cpu::gemm_variants())
    for (const int way : {0, 1, 2, 3}) {
      constexpr std::int64_t kRows = 131, kCols = 70, kDepth = 701;
      INFO(variant.bits << " bits, way " << way);
      const Operand a(1, kRows, kDepth, way & 1), b(2, kCols, kDepth, way & 2);
      std::vector<float> whole(kRows * kCols), part(kRows * kCols);
      variant.run(kRows, kCols, kDepth, 0.3f, a.matrix, b.matrix, false, whole.data(), kCols);
      for (const auto& [row, rows, col, cols] : {std::array<std::int64_t, 4>{0, 1, 0, kCols},
                                                 {130, 1, 0, kCols},
                                                 {17, 63, 0, kCols},
                                                 {96, 35, 0, kCols},
                                                 {0, kRows, 69, 1},
                                                 {0, kRows, 5, 37},
                                                 {29, 5, 31, 2}}) {
        INFO("from " << row << ", " << col << ": " << rows << " x " << cols);
        variant.run(rows, cols, kDepth, 0.3f, a.from(row), b.from(col), false, part.data(), cols);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < cols; ++j)
            wrong += !same_bits(part[i * cols + j], whole[(row + i) * kCols + col + j]);
        CHECK(wrong == 0);
      }
    }
}

TEST_CASE("gemm: K of zero gives zero or leaves C unchanged with accumulation", "[cpu][gemm]") {
  for (const cpu::GemmVariant& variant : cpu::gemm_variants()) {
    std::vector<float> c(6, 2.0f);
    const float none = 0;
    variant.run(2, 3, 0, 1.0f, {&none, 0, false}, {&none, 0, false}, true, c.data(), 3);
    CHECK(c == std::vector<float>(6, 2.0f));
    variant.run(2, 3, 0, 1.0f, {&none, 0, false}, {&none, 0, false}, false, c.data(), 3);
    CHECK(c == std::vector<float>(6, 0.0f));
  }
}

TEST_CASE("matmul: a row's bits do not depend on other rows in any recipe", "[cpu][matmul]") {
  // Three blocks of rows, as long as the largest scaling scope; the first has the tensor's amax. Dropping the
  // second, or exchanging the first two, must not change the other rows' results.
  constexpr std::int64_t kBlock = 128, kN = 144, kK = 384;
  std::vector<Recipe> recipes = builtin_recipes();
  for (const auto* more : {&control_recipes(), &fp4_recipes()})
    recipes.insert(recipes.end(), more->begin(), more->end());
  std::vector<GemmRecipe> seen;
  for (const Recipe& recipe : recipes)
    for (const GemmRecipe& gemm : {recipe.fprop, recipe.dgrad}) {
      // Stochastic rounding draws by an element's position.
      const auto drawn = [](const QuantFormat& f) {
        return f.element_rounding != ElementRounding::rne || f.eden || f.from_fprop || f.transform;
      };
      if (drawn(gemm.a) || drawn(gemm.b) || std::find(seen.begin(), seen.end(), gemm) != seen.end()) continue;
      seen.push_back(gemm);
      for (const int threads : {1, 3})
        for (const DType out : {DType::f32, DType::bf16}) {
          INFO(recipe.name << ", " << threads << " threads, " << name_of(out));
          const auto device = make_cpu_device(threads);
          OpTest b(*device);
          const Tensor x = b.host().random(DType::bf16, 3 * kBlock, kK, 1.0f);
          const Tensor w = b.host().random(DType::bf16, kN, kK, 0.1f);
          HostMemory::set(x, 5 * kK + 3, 7.0f);
          const auto operand_of = [&](const QuantFormat& format, const Tensor& value) {
            if (!format.quantized()) return GemmOperand{format, value, {}, false};
            const QuantizedTensor made = b.host_operand({format, {}}, value);
            device->quantize({made});
            return made.rowwise;
          };
          const GemmOperand weights = operand_of(gemm.b, w);
          const auto product = [&](const std::vector<std::int64_t>& blocks) {
            const auto rows = static_cast<std::int64_t>(blocks.size()) * kBlock;
            const Tensor some = b.host().tensor(DType::bf16, rows, kK), d = b.host().tensor(out, rows, kN);
            for (std::size_t i = 0; i < blocks.size(); ++i)
              std::memcpy(some.slice_rows(static_cast<std::int64_t>(i) * kBlock, kBlock).data,
                          x.slice_rows(blocks[i] * kBlock, kBlock).data, x.slice_rows(0, kBlock).bytes());
            device->matmul({d, operand_of(gemm.a, some), weights, {}});
            return d;
          };
          const Tensor whole = product({0, 1, 2});
          const auto check = [&](const std::vector<std::int64_t>& blocks) {
            const Tensor part = product(blocks);
            for (std::size_t i = 0; i < blocks.size(); ++i)
              CHECK(testing::same_bits(part.slice_rows(static_cast<std::int64_t>(i) * kBlock, kBlock),
                                       whole.slice_rows(blocks[i] * kBlock, kBlock)));
          };
          check({0, 2});
          check({1, 0, 2});
          check({0});
        }
    }
  CHECK(seen.size() >= 8);
}

TEST_CASE("multiply: rows have the same bits alone and within more rows", "[cpu][matmul]") {
  constexpr std::int64_t kRows = 401, kN = 130, kK = 333;
  const Operand a(1, kRows, kK, false), b(2, kN, kK, true);
  for (const DType out : {DType::f32, DType::bf16})
    for (const int threads : {1, 2, 5}) {
      HostMemory host;
      const Tensor whole = host.tensor(out, kRows, kN);
      cpu::multiply(1, whole, a.matrix, b.matrix, kK, 1.0f, false);
      for (const std::int64_t rows : {1, 2, 3, 5, 8, 31, 64, 100, 192, 193, 400}) {
        INFO(rows << " rows, " << threads << " threads, " << name_of(out));
        const Tensor part = host.tensor(out, rows, kN);
        cpu::multiply(threads, part, a.from(kRows - rows), b.matrix, kK, 1.0f, false);
        CHECK(testing::same_bits(part, whole.slice_rows(kRows - rows, rows)));
      }
    }
}
