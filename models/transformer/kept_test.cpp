// Activations kept for the backward pass (KeptActivations): stacks that differ only in what they keep have the same bits,
// whatever the recipe; kept inputs of norms and activation functions change the step as their format says.
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/xz_testing.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/grid_testing.h"
#include "models/transformer/step_compare.h"
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

StepSetup kept_setup(const std::string& recipe, const std::string& stack = "precbench") {
  StepSetup setup{.model = find_model("tiny"), .B = 2, .T = 64, .recipe = find_recipe(recipe)};
  setup.model.layers = 2;
  setup.recipe.kept = kept_by(stack);
  return setup;
}

void check_same(const Result& got, const Result& expected) {
  CHECK(got.loss == expected.loss);
  CHECK(first_difference(got.gradients, expected.gradients) == "");
}

/// Returns true if the weights of k and up can be quantized alone.
bool has_slices(const StepSetup& setup) {
  const ModelConfig& m = setup.model;
  return !weight_slice_unsupported_reason(setup.recipe, m.q_width(), m.kv_width()) &&
         !weight_slice_unsupported_reason(setup.recipe, m.ffn, m.ffn);
}

constexpr const char* kLossless[] = {"transformer_engine", "torchao", "torchao_nvfp4"};

}  // namespace

TEST_CASE("kept: data quantized in forward has the bits of quantizing in backward in every recipe",
          "[kept]") {
  for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "rowwise_gw_hp",
                             "blockwise", "mxfp8", "mxfp4_bwd", "nvfp4_all", "quartet", "nf4_weights"}) {
    const Result expected = random_step(kept_setup(recipe));
    for (const char* stack : kLossless) {
      INFO(recipe << " as " << stack);
      check_same(random_step(kept_setup(recipe, stack)), expected);
    }
  }
}

TEST_CASE("kept: data quantized in forward has the bits of quantizing in backward on a GPU", "[gpu][kept]") {
  if (!gpu_here()) return;
  const auto gpu = [] { return make_gpu_device(0, {.autotune = false, .deterministic = true}); };
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all"}) {
    StepSetup setup = kept_setup(recipe);
    setup.T = 128;
    const Result expected = random_step(setup, gpu());
    for (const char* stack : kLossless) {
      INFO(recipe << " as " << stack);
      setup.recipe.kept = kept_by(stack);
      check_same(random_step(setup, gpu()), expected);
    }
    // The GEMM of k or up alone may sum in another order.
    if (has_slices(setup)) {
      setup.recipe.kept = kept_by("torchao");
      setup.recompute = kRecomputeSelective;
      check_close(random_step(setup, gpu()), expected, 1e-3, 0.05);
      setup.recompute = {};
    }
    // COAT's rounding moves a step that another device computed with other last bits no more than twice as far as FP4's alone.
    setup.recipe.kept = kept_by("precbench");
    const double usual = farthest(expected.gradients, random_step(setup).gradients).distance;
    setup.recipe.kept = kept_by("coat");
    check_close(random_step(setup, gpu()), random_step(setup), 1e-3, std::max(0.2, 2 * usual));
  }
}

TEST_CASE("kept: every form of block has the same bits whatever is kept", "[kept]") {
  for (const std::string form : {"ungated", "parallel", "norms on outputs"}) {
    StepSetup setup = kept_setup("tensorwise");
    BlockForm& block = setup.model.block;
    if (form == "ungated") block.gated = false, block.activation = Activation::gelu;
    if (form == "parallel") block.residual = Residual::parallel_one_norm;
    if (form == "norms on outputs") block.norms = NormPlace::both, setup.model.qk_norm = true;
    setup.accumulation = 2;
    const Result expected = random_step(setup);
    for (const char* stack : kLossless) {
      INFO(form << " as " << stack);
      setup.recipe.kept = kept_by(stack);
      check_same(random_step(setup), expected);
    }
  }
}

TEST_CASE("kept: recomputation drops what is kept and has the same bits", "[kept]") {
  for (const char* stack : kLossless) {
    INFO(stack);
    const StepSetup setup = kept_setup("tensorwise", stack);
    check_recomputed(setup, random_step(setup));
  }
}

TEST_CASE("kept: selective recomputation has the same bits, whatever it keeps of quantized blocks",
          "[kept]") {
  for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "mxfp8", "nvfp4_all",
                             "quartet", "fp8_weights", "nf4_weights"}) {
    StepSetup setup = kept_setup(recipe);
    const Result kept = random_step(setup);
    for (const char* stack : {"precbench", "transformer_engine", "torchao"}) {
      setup.recipe.kept = kept_by(stack);
      if (setup.recipe.kept.gemm_output == KeptAs::value && !has_slices(setup)) continue;
      INFO(recipe << " as " << stack);
      check_recomputed(setup, kept, kSelective);
    }
  }
  StepSetup mixed = kept_setup("mxfp8", "torchao_nvfp4");  // gate stays, q and v do not
  mixed.roles = {LinearRole::qkv, LinearRole::down};
  check_recomputed(mixed, random_step(mixed), kSelective);
}

TEST_CASE("kept: a weight's rows alone that would have other bits are named", "[kept]") {
  const auto why = [](const char* recipe, std::int64_t first, std::int64_t count) {
    return weight_slice_unsupported_reason(find_recipe(recipe), first, count).value_or("");
  };
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "mxfp8", "nf4_weights"})
    CHECK(why(recipe, 128, 64) == "");
  CHECK(why("blockwise", 128, 256) == "");
  CHECK(why("blockwise", 128, 64) ==
        "rows 128 to 192 of a weight in e4m3 128x128 f32 have blocks that end elsewhere");
  CHECK(why("blockwise", 64, 128).ends_with("have blocks that end elsewhere"));
  CHECK(why("tensorwise_delayed", 128, 64).ends_with("have scales from earlier steps"));
  CHECK(why("nvfp4", 128, 64).ends_with("have a scale of the whole matrix"));
  Recipe rounds = find_recipe("mxfp8");
  rounds.fprop.b.element_rounding = ElementRounding::stochastic;
  CHECK(
      weight_slice_unsupported_reason(rounds, 128, 64)->ends_with("have random numbers of the whole matrix"));
}

TEST_CASE("kept: inputs of norms and SwiGLU in groups of 16 move the step by what e4m3 costs", "[kept]") {
  const StepSetup setup = kept_setup("tensorwise", "coat");
  const Result exact = random_step(kept_setup("tensorwise")), kept = random_step(setup);
  CHECK(kept.loss != exact.loss);
  check_close(kept, exact, 0.01, 0.25);
  RecomputeKind only_norms[] = {{"norm", {.norm = true}}};
  check_recomputed(setup, kept, only_norms);
  StepSetup bf16 = kept_setup("bf16");
  bf16.recipe.kept = setup.recipe.kept;
  check_close(random_step(bf16), random_step(kept_setup("bf16")), 0.01, 0.25);
}

TEST_CASE("kept: wgrad from fprop's data has the bits of quantizing values where blocks span both directions",
          "[kept]") {
  const auto from_fprop = [](const char* name, Granularity of_x, ScaleType scale, bool again) {
    StepSetup setup = kept_setup(name);
    for (QuantFormat* x : {&setup.recipe.fprop.a, &setup.recipe.wgrad.b})
      x->granularity = of_x, x->scale = scale;
    setup.recipe.wgrad.b.from_fprop = again;
    return random_step(setup);
  };
  const auto distance_of = [&](const char* name, Granularity of_x, ScaleType scale) {
    const Result values = from_fprop(name, of_x, scale, false), data = from_fprop(name, of_x, scale, true);
    CHECK(data.loss == values.loss);
    return farthest(data.gradients, values.gradients).distance;
  };
  CHECK(distance_of("tensorwise", Granularity::tensor, ScaleType::f32_pow2) == 0);
  CHECK(distance_of("mxfp8", Granularity::block_32x32, ScaleType::ue8m0) == 0);
  for (const auto& [name, of_x, scale] :
       {std::tuple("rowwise", Granularity::row, ScaleType::f32_pow2),
        std::tuple("blockwise_pow2", Granularity::block_1x128, ScaleType::f32_pow2),
        std::tuple("mxfp8", Granularity::block_1x32, ScaleType::ue8m0)}) {
    INFO(name);
    const double d = distance_of(name, of_x, scale);
    CHECK(d > 0);
    CHECK(d < 0.02);  // a second rounding by e4m3 of what mostly is already on its grid
  }
}

namespace {

/// Checks that what ops keep in their own pass has the bits of separate passes: of a grid of the same values.
void check_direct(const std::string& recipe, const std::function<std::unique_ptr<Device>()>& device,
                  const Recompute& recompute = {}) {
  INFO(recipe);
  StepSetup setup = kept_setup(recipe, "coat");
  setup.T = 128;
  setup.recompute = recompute;
  const Result direct = random_step(setup, device());
  setup.recipe.kept.norm_input = setup.recipe.kept.activation_input =
      grid_format(e4m3_values(), Granularity::block_1x16, ScaleType::ue5m3);
  check_same(direct, random_step(setup, device()));
}

}  // namespace

TEST_CASE("kept: inputs that RMSNorm and SwiGLU keep themselves have the bits of separate passes", "[kept]") {
  const auto cpu = [] { return make_cpu_device(1); };
  // quartet computes SwiGLU again in backward, to mask what its cast clipped.
  for (const char* recipe :
       {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "mxfp8", "nvfp4_all", "quartet"})
    check_direct(recipe, cpu);
  check_direct("tensorwise", cpu, {.norm = true});
}

TEST_CASE("kept: inputs that RMSNorm and SwiGLU keep themselves have the bits of separate passes on a GPU",
          "[gpu][kept]") {
  if (!gpu_here()) return;
  const auto gpu = [] { return make_gpu_device(0, {.autotune = false, .deterministic = true}); };
  for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "blockwise", "mxfp8"})
    check_direct(recipe, gpu);
  check_direct("tensorwise", gpu, {.norm = true});
}

TEST_CASE("kept: inputs may have any scales along rows", "[kept]") {
  const Result exact = random_step(kept_setup("rowwise"));
  for (const QuantFormat& format :
       {QuantFormat{DType::e4m3, Granularity::tensor, ScaleType::f32},
        QuantFormat{DType::e4m3, Granularity::row, ScaleType::f32_pow2},
        QuantFormat{DType::e4m3, Granularity::block_1x128, ScaleType::f32},
        QuantFormat{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::rceil},
        QuantFormat{DType::e4m3, Granularity::block_1x16, ScaleType::e4m3}}) {
    INFO(describe(format));
    StepSetup setup = kept_setup("rowwise");
    setup.recipe.kept.norm_input = setup.recipe.kept.activation_input = format;
    const Result kept = random_step(setup);
    CHECK(kept.loss != exact.loss);
    check_close(kept, exact, 0.01, 0.25);
  }
}

TEST_CASE("kept: inputs in groups of 16 give the step of PyTorch autograd with the same quantization",
          "[kept]") {
  const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", "llama");
  const nlohmann::json expected =
      nlohmann::json::parse(unpacked_file(PRECBENCH_SOURCE_DIR "/models/transformer/golden/kept.json.xz"));
  StepSetup setup{.model = golden.model, .B = golden.B, .T = golden.T, .recipe = find_recipe("bf16")};
  setup.recipe.kept = kept_by("coat");
  TestStep step(setup, make_cpu_device(1));
  step.load(golden.weights());
  CHECK(std::fabs(step.forward_backward(golden.tokens, golden.targets) / expected.at("loss").get<double>() -
                  1) < 1e-3);
  for (const auto& [name, values] : step.gradients()) {
    INFO(name);
    const std::string bits = expected.at("grad").at(name);
    REQUIRE(bits.size() == 4 * values.size());
    std::vector<float> reference(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      reference[i] = bf16_decode(static_cast<std::uint16_t>(std::stoul(bits.substr(4 * i, 4), nullptr, 16)));
    // Most gradients would be further off without the quantization, or with another.
    CHECK(distance(values, reference) < std::max(0.2 * expected.at("moved").at(name).get<double>(), 0.01));
  }
}
