// Linear layers and steps of models whose dimensions end within a block of 128, as those of SmolLM2 (576), gpt-oss
// (2880) and latent attention (2112). kernels/device/partial_blocks_test.cpp has the scales and GEMMs by themselves.
#include <cmath>

#include "models/transformer/linear/linear_testing.h"
#include "models/transformer/step_compare.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct PaddedLayer {
  std::vector<float> y, dx, dw;
};

/// Runs a layer [N, K] on M tokens after padding its matrices to [up_M, up_N, up_K] with zeros, and returns the parts
/// of the results that are not padding.
PaddedLayer run_padded(const Recipe& recipe, std::int64_t M, std::int64_t N, std::int64_t K,
                       std::int64_t multiple) {
  const auto up = [&](std::int64_t n) { return (n + multiple - 1) / multiple * multiple; };
  const auto padded = [&](std::uint64_t seed, std::int64_t rows, std::int64_t cols, float deviation) {
    const std::vector<float> x = rounded(normal(seed, rows * cols, deviation));
    std::vector<float> all(up(rows) * up(cols));
    for (std::int64_t i = 0; i < rows * cols; ++i)
      all[i / cols * up(cols) + i % cols] =
          std::ldexp(x[i], static_cast<int>((i / cols / 128 + i % cols / 128) % 5));
    return Owned(DType::bf16, up(rows), up(cols), all);
  };
  const auto part = [&](const Owned& all, std::int64_t rows, std::int64_t cols) {
    const std::vector<float> values = all.floats();
    std::vector<float> x(rows * cols);
    for (std::int64_t i = 0; i < rows * cols; ++i) x[i] = values[i / cols * up(cols) + i % cols];
    return x;
  };
  Bench bench;
  const Linear linear(*bench.device, bench.arena, recipe);
  const Owned X = padded(1, M, K, 1.0f), W = padded(2, N, K, 0.05f), dY = padded(3, M, N, 1e-3f);
  const Owned y(DType::f32, up(M), up(N)), dx(DType::f32, up(M), up(K)), dw(DType::f32, up(N), up(K));
  const QuantizedTensor x_operand = bench.prepare(X, linear.x_rowwise(), linear.x_columnwise());
  const QuantizedTensor dy_operand = bench.prepare(dY, linear.dy_rowwise(), linear.dy_columnwise());
  linear.fprop(y, x_operand, {W, {}});
  linear.dgrad(dx, dy_operand, {W, {}}, X);
  linear.wgrad(dw, dy_operand, x_operand, {W, {}}, false);
  return {part(y, M, N), part(dx, M, K), part(dw, N, K)};
}

}  // namespace

TEST_CASE("Linear: partial blocks of 128 give the bits of matrices padded with zeros", "[linear]") {
  // A sum of at most 320 products is one block of the CPU's GEMM, in which zeros at its end change no bit.
  for (const char* recipe : {"blockwise", "blockwise_pow2"})
    for (const auto& [M, N, K] :
         {std::tuple{80, 192, 240}, std::tuple{240, 48, 112}, std::tuple{16, 144, 208}}) {
      INFO(recipe << ", " << M << " tokens, " << N << " x " << K);
      const PaddedLayer got = run_padded(find_recipe(recipe), M, N, K, 1),
                        expected = run_padded(find_recipe(recipe), M, N, K, 128),
                        exact = run_padded(find_recipe("bf16"), M, N, K, 1);
      const std::tuple<const char*, std::vector<float> PaddedLayer::*, std::int64_t> results[] = {
          {"Y", &PaddedLayer::y, K}, {"dX", &PaddedLayer::dx, N}, {"dW", &PaddedLayer::dw, M}};
      for (const auto& [name, member, contracted] : results) {
        INFO(name);
        CHECK((got.*member) == (expected.*member));
        const double error = relative_error(got.*member, {(exact.*member).begin(), (exact.*member).end()});
        CHECK(error > 0.01);
        CHECK(error < 0.06);
      }
    }
}

TEST_CASE("step: dimensions that end within a block of 128 are close to BF16 and recomputed bit for bit",
          "[transformer]") {
  for (const ModelConfig& model : {with_partial_blocks(), experts_with_partial_blocks()})
    for (const char* recipe : {"blockwise", "blockwise_pow2"}) {
      INFO(model.name << ", " << recipe);
      StepSetup setup{.model = model, .B = 2, .T = 48};
      const auto run = [&] {
        TestStep step(setup);
        if (model.moe) step.force_experts(Routing::zipf, 1);  // routing must not depend on the recipe's noise
        step.parameters().initialize(1, 0.02f);
        const std::int64_t n = setup.B * setup.T;
        const double loss =
            step.forward_backward(random_tokens(2, n, model.vocab), random_tokens(3, n, model.vocab));
        return Result{loss, step.gradients()};
      };
      const Result reference = run();
      setup.recipe = find_recipe(recipe);
      const Result result = run();
      CHECK(std::fabs(result.loss / reference.loss - 1) <= 1e-3);
      for (const auto& [name, expected] : reference.gradients) {
        INFO(name);
        CHECK(1 - compare(result.gradients.at(name), expected).cosine <= 0.02);  // measured 0.0097
        if (name.find("_proj") != name.npos) CHECK(result.gradients.at(name) != expected);
      }
      check_recomputed(setup, random_step(setup), kFullRecomputeKinds);
    }
}
