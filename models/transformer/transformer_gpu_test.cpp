// The training step on a GPU against the CPU device: loss, every gradient and the update, in every recipe.
// The FP32 reference model is the truth. The CPU device's error against it, in the same recipe, bounds the
// GPU's.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "kernels/base/errors.h"
#include "kernels/gpu/gpu_testing.h"
#include "models/checks/check_step.h"
#include "models/transformer/step_golden.h"
#include "models/transformer/step_testing.h"
#include "models/transformer/transformer.h"

using namespace precbench;
using namespace precbench::testing;
using checks::random_step;

namespace {

constexpr double kBf16Roundoff = 0x1p-9;
const std::string kGoldens = PRECBENCH_SOURCE_DIR "/models/transformer/golden";

/// Returns a device on which equal runs give equal bits: no autotuning, additions in a fixed order.
std::unique_ptr<Device> repeatable_gpu(const std::string& attention) {
  return make_gpu_device(0, {.autotune = false, .deterministic = true, .attention = attention});
}

bool takes(const Device& device, const Recipe& recipe) {
  return device.support(recipe.fprop, GemmRole::fprop).execution != Execution::unsupported &&
         device.support(recipe.dgrad, GemmRole::dgrad).execution != Execution::unsupported &&
         device.support(recipe.wgrad, GemmRole::wgrad).execution != Execution::unsupported;
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
  for (const QkNorms& norms : kQkNorms) {
    if (norms.any && (model.moe || model.latent)) continue;  // independent of the experts; not with latents
    norms.set(setup.model);
    checks::StepChecks steps(setup, recipes);
    for (const Recipe& recipe : recipes)
      for (const char* attention : {"auto", "own"}) {
        if (model.latent && std::string(attention) == "own") continue;
        if (!takes(*repeatable_gpu(attention), recipe)) continue;
        for (const checks::Finding& finding : steps.check(
                 recipe, [&] { return repeatable_gpu(attention); }, norms.name)) {
          INFO(finding.path << finding.what << ", attention " << attention << ": " << finding.measured);
          CHECK(finding.agrees);
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

/// Returns tiny with DeepSeek's heads, in sizes that every recipe takes, and with or without a latent of queries.
ModelConfig latent_model(std::int64_t q_rank) {
  ModelConfig model = find_model("tiny");
  model.layers = 2;
  model.heads = model.kv_heads = 2;
  model.head_dim = 192;
  model.latent = {.q_rank = q_rank, .kv_rank = 192, .rope_dim = 64, .v_dim = 128};
  model.block.rope_pairs = RopePairs::interleaved;
  model.block.attention_scale = 0.1;
  return model;
}

std::vector<Recipe> expert_recipes() {
  std::vector<Recipe> all = builtin_recipes();
  std::erase_if(all, [](const Recipe& recipe) { return experts_unsupported_reason(recipe).has_value(); });
  return all;
}

/// Checks that recomputation gives the same bits in each recipe: with all kinds, norms and attention kernels
/// in two recipes, and in the others with what depends on their formats.
void check_recomputation(const std::vector<Recipe>& recipes, const ModelConfig& model = find_model("tiny")) {
  for (const Recipe& recipe : recipes) {
    const bool all = recipe.name == "bf16" || recipe.name == "tensorwise";
    for (const QkNorms& norms : kQkNorms)
      for (const char* attention : {"auto", "own"}) {
        if (norms.any && (model.moe || model.latent || !all)) continue;
        if ((!all || model.latent) && std::string(attention) == "own") continue;
        StepSetup setup{.model = model, .B = 2, .T = 64, .recipe = recipe};
        norms.set(setup.model);
        TestStep kept(setup, repeatable_gpu(attention));
        if (!takes(kept.device(), recipe)) continue;
        INFO(recipe.name << norms.name << ", attention " << attention);
        const double loss = random_step(kept, setup);
        const Named gradients = kept.gradients();
        const auto kinds = all ? std::span<const RecomputeKind>(kRecomputeKinds) : kFullRecomputeKinds;
        for_each_recompute(setup, kinds, [&] {
          TestStep again(setup, repeatable_gpu(attention));
          CHECK(random_step(again, setup) == loss);
          CHECK(first_difference(again.gradients(), gradients) == "");
        });
      }
  }
}

/// Errors of a step's loss and, relative to their length, of its gradients, for several sets of weights.
struct Errors {
  std::vector<double> loss;
  std::map<std::string, std::vector<double>> gradients;

  void add(StepOutcome step, double loss_of_truth, Named truth) {
    measure_by_queries(step.gradients, truth);
    loss.push_back(std::fabs(step.loss - loss_of_truth));
    for (const auto& [name, gradient] : truth)
      gradients[name].push_back(distance(step.gradients.at(name), gradient));
  }
};

/// Returns the value that `below` values exceed.
double descending(std::vector<double> values, std::size_t below) {
  std::sort(values.begin(), values.end(), std::greater<>());
  return values.at(below);
}

/// Returns a set of weights: the golden's own, or neighbours of them in BF16.
Named neighbours(const Golden& golden, std::uint64_t set) {
  Named weights = golden.weights();
  std::uint64_t drawn = 0;
  if (set > 0)
    for (auto& [name, values] : weights)
      for (float& value : values) {
        const double uniform = 2 * (random_bits(set, drawn++) * 0x1p-32) - 1;
        value = bf16_decode(bf16_encode(static_cast<float>(value * (1 + 2 * uniform * kBf16Roundoff))));
      }
  return weights;
}

/// Checks that a golden step on `device` has at most twice the error that roundoff explains on the CPU device.
///
/// Roundoff sends a token to another expert for about one set of weights in sixteen, on either device, which changes the
/// gradients of small experts by 10% at once. So the device's error is the median of three sets, and the CPU's the second
/// largest of eight. Eight say little about values beside the limit of a clamped SwiGLU: rounding moves some across it,
/// and the gradient of an expert by 15% of its length.
void check_golden(const char* name, const std::function<std::unique_ptr<Device>()>& device) {
  INFO(name);
  const Golden golden(kGoldens, name);
  constexpr std::uint64_t kOnDevice = 3;
  const std::uint64_t sets = golden.model.moe.swiglu_limit > 0 ? 24 : 8;
  Errors roundoff, found;
  for (std::uint64_t set = 0; set < sets; ++set) {
    const Named weights = neighbours(golden, set);
    const StepOutcome truth = run_step(golden, true, make_cpu_device(1), &weights);
    roundoff.add(run_step(golden, false, make_cpu_device(1), &weights), truth.loss, truth.gradients);
    if (set == 0)
      found.add(run_step(golden, false, device(), &weights), golden.values("loss")[0], golden.all("grad."));
    else if (set < kOnDevice)
      found.add(run_step(golden, false, device(), &weights), truth.loss, truth.gradients);
  }
  CHECK(descending(found.loss, kOnDevice / 2) <= 2 * descending(roundoff.loss, 1));
  for (const auto& [parameter, errors] : found.gradients) {
    INFO(parameter);
    CHECK(descending(errors, kOnDevice / 2) <= 2 * descending(roundoff.gradients.at(parameter), 1));
  }
}

}  // namespace

TEST_CASE("step on a GPU: matches the CPU device in every recipe", "[gpu]") {
  if (gpu_here()) check_steps(builtin_recipes());
}

TEST_CASE("step on a GPU: dimensions that end within a block of 128 match the CPU device", "[gpu][moe]") {
  if (!gpu_here()) return;
  const std::vector<Recipe> recipes = {find_recipe("bf16"), find_recipe("blockwise"),
                                       find_recipe("blockwise_pow2")};
  for (const ModelConfig& model : {with_partial_blocks(), experts_with_partial_blocks()}) {
    check_steps(recipes, StepSetup{}.roles, model);
    check_recomputation(recipes, model);
  }
}

TEST_CASE("step on a GPU: matches the CPU device in FP4 with equal seeds", "[gpu]") {
  if (gpu_here()) check_steps(fp4_recipes());
}

TEST_CASE("step on a GPU: matches the CPU device with weights stored quantized", "[gpu]") {
  if (!gpu_here()) return;
  check_steps(weight_only_group().recipes);
  check_recomputation(weight_only_group().recipes);
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

namespace {

/// Divides two sequences of 128 tokens into documents of 1, 20, 43 and 64 tokens, and of 100 tokens and padding.
StepSetup with_documents(StepSetup setup) {
  for (const std::vector<std::int32_t>& begins :
       {std::vector<std::int32_t>{0, 1, 21, 64, 128}, {0, 100, 101, 102, 103, 128}})
    for (std::size_t i = 0; i + 1 < begins.size(); ++i)
      for (std::int32_t t = begins[i]; t < begins[i + 1]; ++t) {
        setup.first_key.push_back(begins[i]);
        setup.positions.push_back(t - begins[i]);
      }
  return setup;
}

}  // namespace

TEST_CASE(
    "step on a GPU: packed documents match the CPU device, also with windows, soft-capping and learned positions",
    "[gpu][documents]") {
  if (!gpu_here()) return;
  const std::vector<Recipe> recipes = {find_recipe("bf16"), find_recipe("tensorwise"),
                                       find_recipe("blockwise"), find_recipe("mxfp8")};
  for (const double softcap : {0, 2})
    for (const bool forms : {false, true})
      for (const QkNorms& norms : kQkNorms) {
        if (softcap != 0 && &norms != &kQkNorms[0]) continue;
        StepSetup setup = with_documents({.model = find_model("tiny"), .B = 2, .T = 128});
        norms.set(setup.model);
        setup.model.block.attention_softcap = softcap;
        if (forms) {
          setup.model.sliding_window = 24;
          setup.model.learned_positions = 128;
        }
        checks::StepChecks steps(setup, recipes);
        for (const Recipe& recipe : recipes) {
          if (!takes(*repeatable_gpu("auto"), recipe)) continue;
          for (const checks::Finding& finding : steps.check(
                   recipe, [] { return repeatable_gpu("auto"); }, norms.name)) {
            INFO(finding.path << finding.what << ": " << finding.measured);
            CHECK(finding.agrees);
          }
        }
      }
}

TEST_CASE("step on a GPU: recomputation gives the same bits", "[gpu]") {
  if (!gpu_here()) return;
  check_recomputation(builtin_recipes());
  check_recomputation(fp4_recipes());
}

TEST_CASE(
    "step on a GPU: latent attention matches the CPU device in every recipe, and recomputation is exact",
    "[gpu]") {
  if (!gpu_here()) return;
  for (const std::int64_t q_rank : {0, 128})
    if (const ModelConfig model = latent_model(q_rank);
        make_gpu_device(0)
            ->attention_refusal(
                {.B = 2, .T = 128, .heads = 2, .kv_heads = 2, .head_dim = 192, .value_dim = 128})
            .empty()) {
      check_steps(builtin_recipes(), StepSetup{}.roles, model);
      check_recomputation(builtin_recipes(), model);
    }
}

TEST_CASE("MoE step on a GPU: matches the CPU device in every recipe", "[gpu][moe]") {
  if (!gpu_here()) return;
  check_steps(expert_recipes(), StepSetup{}.roles, moe_model("tiny-moe-shared"));
  check_steps({find_recipe("bf16"), find_recipe("blockwise")}, StepSetup{}.roles, moe_model("tiny-moe"));
  check_steps(expert_recipes(), StepSetup{}.roles, like_gpt_oss());
}

TEST_CASE("MoE step on a GPU: recomputation gives the same bits", "[gpu][moe]") {
  if (!gpu_here()) return;
  check_recomputation(expert_recipes(), moe_model("tiny-moe-shared"));
  check_recomputation(expert_recipes(), like_gpt_oss());
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
    if (Golden(kGoldens, name).model.latent) continue;  // only cuDNN has it
    check_golden(name, [] { return repeatable_gpu("own"); });
  }
}

TEST_CASE("step on a GPU: BF16 error of every family against Hugging Face is at most twice the CPU's",
          "[gpu]") {
  if (!gpu_here()) return;
  for (const char* name : kGoldenSteps) {
    INFO(name);
    try {
      check_golden(name, [] { return repeatable_gpu("auto"); });
    } catch (const Unsupported& refusal) {  // only cuDNN has latent attention
      WARN(name << ": " << refusal.what());
      CHECK(static_cast<bool>(Golden(kGoldens, name).model.latent));
    }
  }
}
