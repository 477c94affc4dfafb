// A layer of experts in every recipe on the CPU device: how much noise its quantization adds to its output and its gradients
// (SQNR), beside the same layer in BF16 with FP32 values.
#include <cmath>

#include "kernels/device/moe_testing.h"
#include "kernels/device/op_testing.h"
#include "models/transformer/expert_linear.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kTokens = 512, kTopK = 2, kExperts = 8, kWidth = 256, kInner = 384;

struct LayerResult {
  std::vector<float> y, dx, dgate_up, ddown;
};

/// y = the weighted sum of a token's experts, and the gradients of <y, dy>. Few experts have most rows, the last has none.
LayerResult run(const Recipe& recipe) {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kBytes = std::int64_t{128} << 20;
  const std::vector<std::byte> memory(kBytes);
  Arena arena(const_cast<std::byte*>(memory.data()), kBytes);
  const auto push = [&](std::int64_t rows, std::int64_t cols) {
    return arena.push(Segment::activations, DType::f32, rows, cols);
  };
  const auto random = [](std::uint64_t seed, std::int64_t rows, std::int64_t cols, float std) {
    return Owned(DType::f32, rows, cols, rounded(normal(seed, rows * cols, std)));
  };
  const float of_width = 1 / std::sqrt(float{kWidth}), of_inner = 1 / std::sqrt(float{kInner});
  const Owned x = random(1, kTokens, kWidth, 1), dy = random(2, kTokens, kWidth, 1);
  const Owned gate_up = random(3, kExperts * 2 * kInner, kWidth, of_width);
  const Owned down = random(4, kExperts * kWidth, kInner, of_inner);
  const Owned weights(DType::f32, kTokens, kTopK, std::vector<float>(kTokens * kTopK, 0.5f));
  const std::vector<std::int32_t> chosen = uneven_index(kTokens, kTopK, kExperts);
  const Tensor index = arena.push(Segment::activations, DType::i32, kTokens, kTopK);
  std::copy(chosen.begin(), chosen.end(), index.as<std::int32_t>());
  const Groups groups = make_groups(
      *device,
      [&](DType t, std::int64_t r, std::int64_t c) { return arena.push(Segment::activations, t, r, c); },
      index, kExperts, group_padding(recipe), kTokens, push(1, 3));
  const std::int64_t rows = groups.rows_capacity();
  const ExpertLinear linear(*device, arena, recipe, kExperts);
  // Rows come as codes of the tokens, columns are cast from the rows that have come.
  const auto permuted = [&](QuantizedTensor to, const Tensor& value) {
    QuantizedTensor tokens = make_quantized_tensor(value, to.rowwise.format, {});
    if (to.rowwise.format.quantized())
      tokens.rowwise =
          push_gemm_operand(arena, Segment::activations, to.rowwise.format, value.rows, value.cols);
    if (to.rowwise.format.granularity == Granularity::tensor) tokens.amax_out = push(1, 1);
    device->quantize({tokens});
    device->permute({to, tokens, {}, groups});
    return to;
  };

  const QuantizedTensor xs = permuted(linear.input(push(rows, kWidth), true, false), x);
  const Tensor pre = push(rows, 2 * kInner), made = push(rows, kWidth);
  linear.fprop(pre, xs, {gate_up, {}}, groups);
  const QuantizedTensor s = linear.input(push(rows, kInner), true, false);
  device->grouped_swiglu({s, pre, weights, groups});
  linear.fprop(made, s, {down, {}}, groups);
  const Owned y(DType::f32, kTokens, kWidth), dx(DType::f32, kTokens, kWidth);
  device->unpermute({.out = y, .rows = made, .addend = {}, .groups = groups});

  const QuantizedTensor dys = permuted(linear.gradient(push(rows, kWidth)), dy);
  const Tensor ds = push(rows, kInner);
  linear.dgrad(ds, dys, {down, {}}, groups);
  const QuantizedTensor s_columns = linear.input(push(rows, kInner), false, true);
  const QuantizedTensor dpre = linear.gradient(push(rows, 2 * kInner));
  device->grouped_swiglu_backward({dpre, s_columns, push(kTokens, kTopK), ds, pre, weights, groups});
  const Owned dgate_up(DType::f32, kExperts * 2 * kInner, kWidth),
      ddown(DType::f32, kExperts * kWidth, kInner);
  linear.wgrad(ddown, dys, s_columns, groups, false);
  linear.dgrad(made, dpre, {gate_up, {}}, groups);
  device->unpermute({.out = dx, .rows = made, .addend = {}, .groups = groups});
  const QuantizedTensor x_columns = permuted(linear.input(push(rows, kWidth), false, true), x);
  linear.wgrad(dgate_up, dpre, x_columns, groups, false);
  return {y.floats(), dx.floats(), dgate_up.floats(), ddown.floats()};
}

/// In dB.
double sqnr(const std::vector<float>& x, const std::vector<float>& reference) {
  return -20 * std::log10(relative_error(x, {reference.begin(), reference.end()}));
}

}  // namespace

TEST_CASE("a layer of experts keeps more than 20 dB in output and gradients", "[moe][sqnr]") {
  const LayerResult exact = run(find_recipe("bf16"));
  for (const Recipe& recipe : builtin_recipes()) {
    if (!recipe.quantized() || !why_no_experts(recipe).empty()) continue;
    const LayerResult got = run(recipe);
    // As of a dense feed-forward layer (linear_test.cpp): three GEMMs of 28.5 dB each lie between the input and dX.
    const double least = recipe.dgrad.a.dtype == DType::e5m2                     ? 20
                         : recipe.dgrad.a.scale_rounding == ScaleRounding::floor ? 21.5
                         : recipe.dgrad.a.scale_rounding == ScaleRounding::even  ? 22.5
                                                                                 : 23;
    for (const auto& [what, member] : {std::pair{"y", &LayerResult::y},
                                       {"dx", &LayerResult::dx},
                                       {"dW gate|up", &LayerResult::dgate_up},
                                       {"dW down", &LayerResult::ddown}}) {
      const double db = sqnr(got.*member, exact.*member);
      INFO(recipe.name << " " << what << ": " << db << " dB");
      CHECK(db > least);
      CHECK(db < 60);  // it was quantized
    }
  }
}
