// The training step on a GPU against the CPU device: loss, every gradient and the update, in every recipe.
// The FP32 reference model is the truth. The CPU device's error against it, in the same recipe, bounds the
// GPU's.
#include <cmath>

#include "kernels/gpu/gpu_testing.h"
#include "models/transformer/step_golden.h"
#include "models/transformer/step_testing.h"
#include "models/transformer/transformer.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr double kRoundoff = 0x1p-24;  // of FP32
constexpr double kBf16Roundoff = 0x1p-9;

/// Returns a device on which equal runs give equal bits: no autotuning, additions in a fixed order.
std::unique_ptr<Device> repeatable_gpu(const std::string& attention) {
  return make_gpu_device(0, {.autotune = false, .deterministic = true, .attention = attention});
}

bool takes(const Device& device, const Recipe& recipe) {
  return device.support(recipe.fprop, GemmRole::fprop).execution != Execution::unsupported &&
         device.support(recipe.dgrad, GemmRole::dgrad).execution != Execution::unsupported &&
         device.support(recipe.wgrad, GemmRole::wgrad).execution != Execution::unsupported;
}

/// Runs forward and backward on fresh weights and random tokens, the same for every setup of one size.
/// Experts are forced, because rounding could otherwise change the choice between nearly equal logits.
double random_step(TestStep& step, const StepSetup& setup) {
  step.parameters().initialize(1, 0.02f);
  if (setup.model.moe && step.parameters().routers()->forced().empty()) step.force_experts(Routing::zipf, 1);
  const std::int64_t n = setup.accumulation * setup.B * setup.T;
  return step.forward_backward(random_tokens(2, n, setup.model.vocab),
                               random_tokens(3, n, setup.model.vocab));
}

/// Returns the root mean square over the tensors of their relative distances.
double mean_distance(const Named& x, const Named& reference) {
  double squares = 0;
  for (const auto& [name, values] : reference) squares += std::pow(distance(x.at(name), values), 2.0);
  return std::sqrt(squares / static_cast<double>(reference.size()));
}

/// Copies the gradients of `from`, which has the same layout, to `to`.
void copy_gradients(TestStep& to, TestStep& from) {
  for (int unit = 0; unit < to.parameters().layout().unit_count(); ++unit) {
    const Tensor target = to.parameters().shard(unit).gradient,
                 source = from.parameters().shard(unit).gradient;
    REQUIRE(target.bytes() == source.bytes());
    std::vector<std::uint8_t> bytes(source.bytes());
    from.device().download(bytes.data(), source);
    to.device().upload(target, bytes.data());
    to.device().synchronize();
  }
}

/// Runs one AdamW step on both from the same gradients. Weights differ by at most a few FP32 roundings of the
/// weight and of an update no larger than about lr.
void check_update(TestStep& gpu, TestStep& cpu) {
  copy_gradients(cpu, gpu);
  OptimizerOptions options;
  options.lr = 1e-3f;
  options.max_norm = 0.1f;  // clips
  const double gpu_norm = gpu.update(options), cpu_norm = cpu.update(options);
  CHECK(cpu_norm > options.max_norm);
  CHECK(std::fabs(gpu_norm / cpu_norm - 1) <= 16 * kRoundoff);
  const Named weights = gpu.weights();
  for (const auto& [name, expected] : cpu.weights()) {
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::fabs(weights.at(name)[i] - expected[i]) /
                                  (std::fabs(expected[i]) + static_cast<double>(options.lr)));
    INFO(name);
    CHECK(worst <= 8 * kRoundoff);
  }
}

constexpr LinearRole kApart[] = {LinearRole::q, LinearRole::k,       LinearRole::v,
                                 LinearRole::o, LinearRole::gate_up, LinearRole::down};

/// Returns a recipe with all operands in another format.
Recipe in_format(const char* name, DType dtype) {
  Recipe recipe = find_recipe(name);
  recipe.name += std::string(" in ") + name_of(dtype);
  for (GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad})
    for (QuantFormat* operand : {&gemm->a, &gemm->b}) operand->dtype = dtype;
  return recipe;
}

/// Compares a step of each recipe on both devices with the FP32 model. `roles`: the linear layers in the
/// recipe.
void check_steps(const std::vector<Recipe>& recipes, const std::vector<LinearRole>& roles = StepSetup{}.roles,
                 const ModelConfig& model = find_model("tiny")) {
  StepSetup setup{.model = model, .B = 2, .T = 128, .roles = roles};
  const double rounding_of_loss = kBf16Roundoff / std::sqrt(static_cast<double>(setup.B * setup.T));
  for (const QkNorms& norms : kQkNorms) {
    if (norms.any && model.moe) continue;  // independent of the experts
    norms.set(setup.model);
    setup.reference = true;
    setup.recipe = find_recipe("bf16");
    TestStep exact(setup);
    const double true_loss = random_step(exact, setup);
    const Named truth = exact.gradients();
    setup.reference = false;
    // The loss is a mean over M tokens with independent rounding errors, so it can be exact by chance for one
    // recipe. The bound is therefore the largest error of all quantized recipes.
    double quantized_error = 0, bf16_error = 0;
    for (const Recipe& recipe : recipes) {
      setup.recipe = recipe;
      TestStep cpu(setup, make_cpu_device(2));
      double& error = recipe.quantized() ? quantized_error : bf16_error;
      error = std::max({error, std::fabs(random_step(cpu, setup) - true_loss), rounding_of_loss * true_loss});
    }
    for (const Recipe& recipe : recipes) {
      setup.recipe = recipe;
      TestStep cpu(setup, make_cpu_device(2));
      random_step(cpu, setup);
      const Named cpu_gradients = cpu.gradients();
      for (const char* attention : {"auto", "own"}) {
        TestStep gpu(setup, repeatable_gpu(attention));
        if (!takes(gpu.device(), recipe)) continue;
        const double gpu_loss = random_step(gpu, setup);
        const Named gradients = gpu.gradients();
        INFO(recipe.name << norms.name << ", attention by " << gpu.device().attention_name());
        CHECK(std::fabs(gpu_loss - true_loss) <= 2 * (recipe.quantized() ? quantized_error : bf16_error));
        for (const auto& [name, expected] : truth) {
          INFO(name);
          CHECK(distance(gradients.at(name), expected) <= 2 * distance(cpu_gradients.at(name), expected));
        }
        // Both devices make the same rounding errors except for values next to a rounding boundary.
        // Independent errors would put the GPU sqrt(2) times as far from the CPU as from the truth.
        CHECK(mean_distance(gradients, cpu_gradients) <= mean_distance(cpu_gradients, truth));
        check_update(gpu, cpu);
        random_step(cpu, setup);  // restores cpu's weights for the next one
      }
    }
  }
}

/// Returns a preset with two layers, to limit the memory of a test.
ModelConfig moe_model(const char* name) {
  ModelConfig model = find_model(name);
  model.layers = 2;
  return model;
}

std::vector<Recipe> expert_recipes() {
  std::vector<Recipe> all = builtin_recipes();
  std::erase_if(all, [](const Recipe& recipe) { return experts_unsupported_reason(recipe).has_value(); });
  return all;
}

/// Checks that recomputation gives the same bits in each recipe.
void check_recomputation(const std::vector<Recipe>& recipes, const ModelConfig& model = find_model("tiny")) {
  for (const Recipe& recipe : recipes)
    for (const QkNorms& norms : kQkNorms)
      for (const char* attention : {"auto", "own"}) {
        if (norms.any && model.moe) continue;
        StepSetup setup{.model = model, .B = 2, .T = 64, .recipe = recipe};
        norms.set(setup.model);
        TestStep kept(setup, repeatable_gpu(attention));
        if (!takes(kept.device(), recipe)) continue;
        INFO(recipe.name << norms.name << ", attention " << attention);
        const double loss = random_step(kept, setup);
        setup.recompute = true;
        TestStep again(setup, repeatable_gpu(attention));
        CHECK(random_step(again, setup) == loss);
        CHECK(first_difference(again.gradients(), kept.gradients()) == "");
      }
}

}  // namespace

TEST_CASE("step on a GPU: matches the CPU device in every recipe", "[gpu]") {
  if (gpu_here()) check_steps(builtin_recipes());
}

TEST_CASE("step on a GPU: matches the CPU device in FP4 with equal seeds", "[gpu]") {
  if (gpu_here()) check_steps(fp4_recipes());
}

TEST_CASE("step on a GPU: matches the CPU device in FP8 formats that no GPU supports", "[gpu]") {
  if (gpu_here())
    check_steps({find_recipe("bf16"), in_format("tensorwise", DType::e5m3), in_format("rowwise", DType::e3m4),
                 in_format("mxfp8", DType::e3m3)});
}

TEST_CASE("step on a GPU: matches the CPU device with separate q k v GEMMs", "[gpu]") {
  if (gpu_here())
    check_steps({find_recipe("tensorwise"), find_recipe("rowwise_gw_hp"), find_recipe("mxfp8"),
                 find_recipe("nvfp4_all"), find_recipe("quartet")},
                {std::begin(kApart), std::end(kApart)});
}

TEST_CASE("step on a GPU: recomputation gives the same bits", "[gpu]") {
  if (!gpu_here()) return;
  check_recomputation(builtin_recipes());
  check_recomputation(fp4_recipes());
}

TEST_CASE("MoE step on a GPU: matches the CPU device in every recipe", "[gpu][moe]") {
  if (!gpu_here()) return;
  check_steps(expert_recipes(), StepSetup{}.roles, moe_model("tiny-moe-shared"));
  check_steps({find_recipe("bf16"), find_recipe("blockwise")}, StepSetup{}.roles, moe_model("tiny-moe"));
}

TEST_CASE("MoE step on a GPU: recomputation gives the same bits", "[gpu][moe]") {
  if (gpu_here()) check_recomputation(expert_recipes(), moe_model("tiny-moe-shared"));
}

TEST_CASE("delayed scaling on a GPU: unchanged amaxes give the same bits as current scaling", "[gpu][moe]") {
  if (!gpu_here()) return;
  for (const char* name : {"tiny", "tiny-moe", "tiny-moe-shared"}) {
    INFO(name);
    StepSetup setup{.model = moe_model(name), .B = 2, .T = 64, .recipe = find_recipe("tensorwise")};
    const std::int64_t count = setup.B * setup.T;
    const std::vector<std::int32_t> tokens = random_tokens(1, count, setup.model.vocab),
                                    targets = random_tokens(2, count, setup.model.vocab);
    TestStep current(setup, repeatable_gpu("auto"));
    if (!takes(current.device(), setup.recipe)) return;
    current.parameters().initialize(1, 0.05f);
    const double loss = current.forward_backward(tokens, targets);
    const Named gradients = current.gradients();
    setup.recipe = find_recipe("tensorwise_delayed");
    setup.delayed_scales = true;
    TestStep delayed(setup, repeatable_gpu("auto"));
    delayed.parameters().initialize(1, 0.05f);
    DelayedScaling& scales = *delayed.parameters().delayed();
    for (int step = 0; step < 3; ++step) {
      INFO("step " << step);
      scales.set_current(step == 0 ? 1 : 0);
      CHECK(delayed.forward_backward(tokens, targets) == loss);
      CHECK(first_difference(delayed.gradients(), gradients) == "");
      scales.update();
    }
    // Other amaxes change the result.
    DelayedScaling::Snapshot snapshot = scales.snapshot();
    for (float& amax : snapshot.known) amax *= 1.5f;
    scales.restore(snapshot);
    CHECK(delayed.forward_backward(tokens, targets) != loss);
  }
}

TEST_CASE("MoE step on a GPU: BF16 error against Hugging Face is at most twice the CPU's", "[gpu][moe]") {
  if (!gpu_here()) return;
  for (const char* name : kGoldenMixtures) {
    INFO(name);
    const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", name);
    const StepOutcome cpu = run_step(golden, false), gpu = run_step(golden, false, repeatable_gpu("own"));
    const double loss = golden.values("loss")[0];
    // Four standard deviations of a mean over tokens with independent roundoffs.
    const double tokens = static_cast<double>(golden.targets.size());
    CHECK(std::fabs(gpu.loss - loss) <= 4 * kBf16Roundoff / std::sqrt(tokens) * loss);
    for (const auto& [parameter, truth] : golden.all("grad.")) {
      INFO(parameter);
      CHECK(distance(gpu.gradients.at(parameter), truth) <= 2 * distance(cpu.gradients.at(parameter), truth));
    }
  }
}
