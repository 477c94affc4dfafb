// SQNR of an expert layer's output and gradients in every recipe on the CPU device, against the same layer in
// BF16 with FP32 values. Measured alone and as torchao does: with a router and a shared expert, which no
// recipe converts and whose parts of the output and of dX have no noise.
#include <algorithm>
#include <cmath>
#include <thread>

#include "kernels/device/moe_testing.h"
#include "kernels/device/op_testing.h"
#include "models/transformer/moe/expert_linear.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kTokens = 512, kExperts = 8;

struct Setting {
  bool whole;
  std::int64_t width, inner, top_k;
  float std_in, std_down;  ///< of the input weights; of the down weights
};
const Setting kAlone{false, 256, 384, 2, 1 / std::sqrt(256.0f), 1 / std::sqrt(384.0f)};
/// Scaled so that sums are as large as in torchao's layer, whose weights of 0.02 have 5120 and 8192 inputs.
/// The router's part of dX is a third of its square at this width, and most of it at torchao's.
const Setting kWhole{
    true, 1024, 1536, 1, 0.02f * std::sqrt(5120.0f / 1024.0f), 0.02f * std::sqrt(8192.0f / 1536.0f)};
const Setting kTorchao{true, 5120, 8192, 1, 0.02f, 0.02f};

struct LayerResult {
  std::vector<float> y, dx, dgate_up, ddown;
};

/// Computes y, the weighted sum of a token's experts, and the gradients of <y, dy>. A few experts have most
/// rows and the last has none. A `whole` layer uses one expert by a sigmoid router and the shared expert, and
/// the gradients of |y - 1|^2 / 2.
LayerResult run(const Recipe& recipe, const Setting& setting) {
  const auto [whole, width, inner, top_k, std_in, std_down] = setting;
  const auto device = make_cpu_device(static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
  const std::int64_t bytes = (std::int64_t{whole ? 64 : 32} << 20) + 20 * kExperts * width * inner;
  std::vector<std::byte> memory(bytes);
  Arena arena(memory.data(), bytes);
  const auto push = [&](std::int64_t rows, std::int64_t cols) {
    return arena.push(Segment::activations, DType::f32, rows, cols);
  };
  const auto random = [](std::uint64_t seed, std::int64_t rows, std::int64_t cols, float std) {
    return Owned(DType::f32, rows, cols, rounded(normal(seed, rows * cols, std)));
  };
  const Owned x = random(1, kTokens, width, 1);
  Owned dy = random(2, kTokens, width, 1);
  const Owned gate_up = random(3, kExperts * 2 * inner, width, std_in);
  const Owned down = random(4, kExperts * width, inner, std_down);
  const Tensor weights = push(kTokens, top_k), dweights = push(kTokens, top_k);
  const Tensor index = arena.push(Segment::activations, DType::i32, kTokens, top_k);
  const RoutingRule rule{
      .experts = kExperts, .top_k = top_k, .score = RouterScore::sigmoid, .normalise = false};
  const Owned router = random(5, kExperts, width, std_in);
  const Tensor z = push(kTokens, kExperts), load = push(1, kExperts + 2);
  if (whole) {
    const Tensor bad = arena.push(Segment::activations, DType::i32, 1, 1);
    device->route({.z = z,
                   .index = index,
                   .weights = weights,
                   .report = load,
                   .bad = bad,
                   .x = x,
                   .router = router,
                   .bias = {},
                   .forced = {},
                   .rule = rule});
  } else {
    const std::vector<std::int32_t> chosen = uneven_index(kTokens, top_k, kExperts);
    std::copy(chosen.begin(), chosen.end(), index.as<std::int32_t>());
    std::fill_n(weights.as<float>(), weights.size(), 0.5f);
  }
  const Groups groups = make_groups(
      *device,
      [&](DType t, std::int64_t r, std::int64_t c) { return arena.push(Segment::activations, t, r, c); },
      index, kExperts, group_padding(recipe), kTokens, push(1, 3));
  const std::int64_t rows = groups.rows_capacity();
  const ExpertLinear linear(*device, arena, recipe, kExperts);
  // Rowwise data is gathered from the quantized tokens; columns are cast from the permuted rows.
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

  const QuantizedTensor xs = permuted(linear.input(push(rows, width), true, false), x);
  const Tensor pre = push(rows, 2 * inner), made = push(rows, width);
  linear.fprop(pre, xs, {gate_up, {}}, groups);
  const QuantizedTensor s = linear.input(push(rows, inner), true, false);
  device->grouped_swiglu({s, pre, weights, groups});
  linear.fprop(made, s, {down, {}}, groups);
  const Owned y(DType::f32, kTokens, width), dx(DType::f32, kTokens, width);
  const Recipe& plain = find_recipe("bf16");
  const Linear shared(*device, arena, plain);
  const Owned shared_gate_up = random(6, 2 * inner, width, std_in),
              shared_down = random(7, width, inner, std_down);
  const auto value = [](const Tensor& t) { return make_quantized_tensor(t, {}, {}); };
  const Tensor shared_pre = push(kTokens, 2 * inner), shared_s = push(kTokens, inner);
  Tensor shared_y, shared_dx;
  if (whole) {
    shared_y = push(kTokens, width), shared_dx = push(kTokens, width);
    shared.fprop(shared_pre, value(x), {shared_gate_up, {}});
    device->swiglu({value(shared_s), shared_pre});
    shared.fprop(shared_y, value(shared_s), {shared_down, {}});
  }
  device->unpermute({.out = y, .rows = made, .addend = shared_y, .groups = groups});
  if (whole) {
    std::vector<float> away = y.floats();
    for (float& element : away) element -= 1;
    dy = Owned(DType::f32, kTokens, width, away);
    const Tensor shared_ds = push(kTokens, inner), shared_dpre = push(kTokens, 2 * inner);
    shared.dgrad(shared_ds, value(dy), {shared_down, {}});
    device->swiglu_backward({value(shared_dpre), value(shared_s), shared_ds, shared_pre});
    shared.dgrad(shared_dx, value(shared_dpre), {shared_gate_up, {}});
  }

  const QuantizedTensor dys = permuted(linear.gradient(push(rows, width)), dy);
  const Tensor ds = push(rows, inner);
  linear.dgrad(ds, dys, {down, {}}, groups);
  const QuantizedTensor s_columns = linear.input(push(rows, inner), false, true);
  const QuantizedTensor dpre = linear.gradient(push(rows, 2 * inner));
  device->grouped_swiglu_backward({dpre, s_columns, dweights, ds, pre, weights, groups});
  const Owned dgate_up(DType::f32, kExperts * 2 * inner, width), ddown(DType::f32, kExperts * width, inner);
  linear.wgrad(ddown, dys, s_columns, groups, false);
  linear.dgrad(made, dpre, {gate_up, {}}, groups);
  device->unpermute({.out = dx, .rows = made, .addend = shared_dx, .groups = groups});
  if (whole)
    device->route_backward({.dx = dx,
                            .drouter = push(kExperts, width),
                            .accumulate = false,
                            .addend = dx,
                            .dw = dweights,
                            .z = z,
                            .index = index,
                            .report = load,
                            .x = x,
                            .router = router,
                            .rule = rule});
  const QuantizedTensor x_columns = permuted(linear.input(push(rows, width), false, true), x);
  linear.wgrad(dgate_up, dpre, x_columns, groups, false);
  return {y.floats(), dx.floats(), dgate_up.floats(), ddown.floats()};
}

/// Returns the SQNR in dB.
double sqnr(const std::vector<float>& x, const std::vector<float>& reference) {
  return -20 * std::log10(relative_error(x, {reference.begin(), reference.end()}));
}

/// Checks the limits of torchao's MoE training test: min_out_sqnr, min_input_grad_sqnr, min_param_grad_sqnr.
void check_torchao_limits(const Setting& setting) {
  const LayerResult exact = run(find_recipe("bf16"), setting);
  struct Least {
    const char* recipe;
    double y, dx, dw;
  };
  for (const Least& least : {Least{"rowwise", 23, 29, 21}, {"mxfp8", 23, 27, 21}}) {
    const LayerResult got = run(find_recipe(least.recipe), setting);
    const double y = sqnr(got.y, exact.y), dx = sqnr(got.dx, exact.dx);
    const double dgate_up = sqnr(got.dgate_up, exact.dgate_up), ddown = sqnr(got.ddown, exact.ddown);
    INFO(least.recipe << ": y " << y << ", dx " << dx << ", dW " << dgate_up << " " << ddown << " dB");
    CHECK(y >= least.y);
    CHECK(dx >= least.dx);
    CHECK(std::min(dgate_up, ddown) >= least.dw);
  }
}

}  // namespace

TEST_CASE("expert layer: quantized output and gradients keep more than 20 dB SQNR", "[moe][sqnr]") {
  const LayerResult exact = run(find_recipe("bf16"), kAlone);
  for (const Recipe& recipe : builtin_recipes()) {
    if (!recipe.quantized() || experts_unsupported_reason(recipe)) continue;
    const LayerResult got = run(recipe, kAlone);
    // Same limits as for a dense feed-forward layer (linear_test.cpp): three GEMMs of 28.5 dB each lie between
    // the input and dX.
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
      CHECK(db < 60);  // proves that it was quantized
    }
  }
}

TEST_CASE("expert layer with router and shared expert: SQNR meets torchao's test limits", "[moe][sqnr]") {
  check_torchao_limits(kWhole);
}

// Takes more than 24 GiB of memory and several minutes.
TEST_CASE("at torchao's own shape too", "[.][sqnr]") { check_torchao_limits(kTorchao); }
