// Weight-only quantization of a linear layer: both GEMMs read the weight that an independent implementation stores and
// dequantizes, bit for bit.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/numerics/grid_testing.h"
#include "models/transformer/linear/linear_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kTokens = 48, kOut = 160, kIn = 192;

/// Returns the nearest of a format's values >= 0, of two equally near ones the one with the even index.
float nearest_magnitude(const std::vector<float>& values, float x) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double distance = std::fabs(static_cast<double>(values[i]) - static_cast<double>(x));
    const double least = std::fabs(static_cast<double>(values[best]) - static_cast<double>(x));
    if (distance < least || (distance == least && i % 2 == 0)) best = i;
  }
  return values[best];
}

float largest_magnitude(const float* x, std::int64_t n) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

using Matrix = std::vector<float>;

/// E4M3 with the scale amax / 448 of each row.
Matrix fp8_by_rows(const Matrix& w) {
  const std::vector<float> values = e4m3_values();
  Matrix out;
  for (std::int64_t r = 0; r < kOut; ++r) {
    const float scale = 448.0f / largest_magnitude(&w[r * kIn], kIn);
    for (std::int64_t k = 0; k < kIn; ++k) {
      const float x = w[r * kIn + k];
      out.push_back(std::copysign(nearest_magnitude(values, std::fabs(x) * scale), x) * (1.0f / scale));
    }
  }
  return out;
}

/// NVFP4: E2M1 with an E4M3 scale per 16 elements, under amax / (448 * 6) of the matrix.
Matrix nvfp4_by_blocks(const Matrix& w) {
  const std::vector<float> elements = e2m1_values(), scales = e4m3_values();
  const float amax = largest_magnitude(w.data(), kOut * kIn), whole = 448.0f * 6.0f / amax;
  Matrix out;
  for (std::int64_t first = 0; first < kOut * kIn; first += 16) {
    const float scale = nearest_magnitude(scales, largest_magnitude(&w[first], 16) * (whole * (1.0f / 6.0f)));
    const float multiplier = 1.0f / (scale * (1.0f / whole));
    for (std::int64_t i = first; i < first + 16; ++i) {
      const float element = nearest_magnitude(elements, std::fabs(w[i]) * multiplier);
      out.push_back(std::copysign(element, w[i]) * scale * (amax / (448.0f * 6.0f)));
    }
  }
  return out;
}

/// NF4 by the table of arXiv 2305.14314, appendix E, with the absmax of each block of 64.
Matrix nf4_by_blocks(const Matrix& w) {
  const std::vector<float> table = nf4_values();
  Matrix out;
  for (std::int64_t first = 0; first < kOut * kIn; first += 64) {
    const float inverse = 1.0f / largest_magnitude(&w[first], 64);
    for (std::int64_t i = first; i < first + 64; ++i) {
      const float x = w[i] * inverse;
      const auto value = std::min_element(table.begin(), table.end(), [x](float a, float b) {
        return std::fabs(static_cast<double>(a) - static_cast<double>(x)) <
               std::fabs(static_cast<double>(b) - static_cast<double>(x));
      });
      out.push_back(*value * (1.0f / inverse));
    }
  }
  return out;
}

struct Outputs {
  Matrix y, dx, dw;
};

Outputs outputs_of(const char* recipe_name, const Matrix& w) {
  Bench bench;
  const Recipe recipe = find_recipe(recipe_name);
  const Linear linear(*bench.device, bench.arena, recipe);
  const Owned X(DType::bf16, kTokens, kIn, rounded(normal(1, kTokens * kIn)));
  const Owned W(DType::bf16, kOut, kIn, w),
      dY(DType::bf16, kTokens, kOut, rounded(normal(3, kTokens * kOut)));
  const Owned y(DType::f32, kTokens, kOut), dx(DType::f32, kTokens, kIn), dw(DType::f32, kOut, kIn);
  const QuantizedTensor x = bench.prepare(X, linear.x_rowwise(), linear.x_columnwise());
  const QuantizedTensor dy = bench.prepare(dY, linear.dy_rowwise(), linear.dy_columnwise());
  linear.fprop(y, x, {W, {}});
  linear.dgrad(dx, dy, {W, {}}, X);
  linear.wgrad(dw, dy, x, {W, {}}, false);
  return {y.floats(), dx.floats(), dw.floats()};
}

}  // namespace

TEST_CASE("Linear: weight-only recipes equal BF16 with weights of an independent implementation",
          "[linear]") {
  Matrix w = rounded(normal(2, kOut * kIn, 0.05f));
  for (std::int64_t r = 0; r < kOut; r += 7)  // outliers
    for (std::int64_t k = r % 5; k < kIn; k += 61) w[r * kIn + k] *= 16;
  w = rounded(w);
  const std::pair<const char*, std::function<Matrix(const Matrix&)>> cases[] = {
      {"fp8_weights", fp8_by_rows}, {"nvfp4_weights", nvfp4_by_blocks}, {"nf4_weights", nf4_by_blocks}};
  for (const auto& [recipe, dequantize] : cases) {
    INFO(recipe);
    const Outputs got = outputs_of(recipe, w), want = outputs_of("bf16", rounded(dequantize(w)));
    CHECK(got.y == want.y);
    CHECK(got.dx == want.dx);
    CHECK(got.dw == want.dw);
    CHECK(got.y != outputs_of("bf16", w).y);
  }
}

TEST_CASE("Linear: a weight that is stored quantized needs no BF16 value", "[linear]") {
  for (const Recipe& recipe : weight_only_group().recipes) {
    INFO(recipe.name);
    Bench bench;
    const Linear linear(*bench.device, bench.arena, recipe);
    const Owned W(DType::bf16, kOut, kIn, rounded(normal(2, kOut * kIn, 0.05f)));
    const Owned X(DType::bf16, kTokens, kIn, rounded(normal(1, kTokens * kIn)));
    const QuantizedTensor x = bench.prepare(X, {}, {});
    Weight stored;
    stored.rowwise = bench.prepare(W, recipe.weight_only, {}).rowwise;
    const Owned from_value(DType::f32, kTokens, kOut), from_stored(DType::f32, kTokens, kOut);
    linear.fprop(from_value, x, {W, {}});
    linear.fprop(from_stored, x, stored);
    CHECK(from_stored.floats() == from_value.floats());
  }
}

TEST_CASE("recipe_support: a CPU emulates GEMMs of stored weights but not wgrad", "[linear]") {
  const std::unique_ptr<Device> cpu = make_cpu_device(1);
  const Recipe fp8 = find_recipe("fp8_weights");
  CHECK(recipe_support(*cpu, fp8, GemmRole::fprop).execution == Execution::emulated);
  CHECK(recipe_support(*cpu, fp8, GemmRole::dgrad).execution == Execution::emulated);
  CHECK(recipe_support(*cpu, fp8, GemmRole::wgrad).execution == Execution::native);
  CHECK(recipe_support(*cpu, find_recipe("bf16"), GemmRole::fprop).execution == Execution::native);
}
