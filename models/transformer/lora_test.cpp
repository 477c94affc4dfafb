// Training of adapters: against Hugging Face's peft (tools/goldens/make_lora_goldens.py), and against itself where
// two settings must agree.
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/random.h"
#include "models/transformer/flops.h"
#include "models/transformer/step_compare.h"
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

const std::string kLoraGoldens = PRECBENCH_SOURCE_DIR "/models/transformer/golden";

struct LoraGolden : Golden {
  explicit LoraGolden(const std::string& name) : Golden(kLoraGoldens, "lora-" + name) {
    const auto json = nlohmann::json::parse(file.metadata().at("lora"));
    lora = {json.at("rank"), json.at("alpha")};
  }

  /// Returns the tensors of all adapters under `prefix`.
  Named adapters(const std::string& prefix) const {
    Named result;
    const Layout layout(model, lora);
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) result[p.name] = values(prefix + p.name);
    return result;
  }
  Named first_weights() const {
    Named result = weights();
    result.merge(adapters(""));
    return result;
  }

  LoraOptions lora;
};

StepSetup lora_setup(const LoraGolden& golden) {
  return {.model = golden.model, .B = golden.B, .T = golden.T, .lora = golden.lora};
}

StepOutcome lora_step(const LoraGolden& golden, const StepSetup& setup,
                      std::unique_ptr<Device> device = make_cpu_device(1)) {
  TestStep step(setup, std::move(device));
  step.load(golden.first_weights());
  return outcome_of(step, golden);
}

/// Returns the changes of weights by a step, without elements whose gradient is too near to eps (update()).
Named adapter_changes(const LoraGolden& golden, const Named& after) {
  const Named gradients = golden.adapters("grad.");
  Named result;
  for (const auto& [name, before] : golden.adapters(""))
    for (std::size_t i = 0; i < before.size(); ++i)
      if (std::fabs(gradients.at(name)[i]) > 200 * golden.optimizer.eps)
        result[name].push_back(after.at(name)[i] - before[i]);
  return result;
}

}  // namespace

// PyTorch's own FP32 step is as far from its FP64 step as ours: 45 to 49 roundoffs in the worst gradient. Measured
// here: 10 for the norm, 50 for gradients, 750 for updates, whose elements of 200 eps amplify errors (step_golden.h).
TEST_CASE("LoRA: a step in FP32 is peft's") {
  for (const char* name : {"llama", "qwen2", "gemma2", "nemotron", "mixtral", "qwen2-moe"}) {
    INFO(name);
    const LoraGolden golden(name);
    StepSetup setup = lora_setup(golden);
    setup.reference = true;
    const StepOutcome outcome = lora_step(golden, setup);
    CHECK(std::fabs(outcome.loss / golden.values("loss")[0] - 1) <= 4 * kRoundoff);
    CHECK(std::fabs(outcome.grad_norm / golden.values("grad_norm")[0] - 1) <= 16 * kRoundoff);
    const Farthest gradient = farthest(outcome.gradients, golden.adapters("grad."));
    INFO(gradient.name << " " << gradient.distance / kRoundoff);
    CHECK(gradient.distance <= 64 * kRoundoff);
    const Farthest update = farthest(adapter_changes(golden, outcome.weights),
                                     adapter_changes(golden, golden.adapters("after.")));
    INFO(update.name << " " << update.distance / kRoundoff);
    CHECK(update.distance <= 1024 * kRoundoff);
  }
}

TEST_CASE("LoRA: micro-steps add up to the step, and recomputation has its bits") {
  const LoraGolden golden("llama");
  StepSetup setup = lora_setup(golden);
  setup.reference = true;
  setup.B = 1, setup.accumulation = 2;
  TestStep step(setup);
  step.load(golden.first_weights());
  CHECK(std::fabs(step.forward_backward(golden.tokens, golden.targets) / golden.values("loss")[0] - 1) <=
        4 * kRoundoff);
  CHECK(farthest(step.gradients(), golden.adapters("grad.")).distance <= 64 * kRoundoff);

  for (const char* recipe : {"bf16", "mxfp8", "tensorwise"}) {
    StepSetup whole = lora_setup(golden);
    whole.model.ffn = whole.model.width = 32, whole.model.heads = 4, whole.model.kv_heads = 2;
    whole.B = 2, whole.T = 32, whole.recipe = find_recipe(recipe);
    INFO(recipe);
    check_recomputed(whole, random_step(whole));
  }
}

TEST_CASE("LoRA: fresh adapters change nothing, and a step trains nothing but them") {
  for (const char* recipe : {"bf16", "rowwise", "tensorwise", "mxfp8", "blockwise", "nvfp4"}) {
    INFO(recipe);
    StepSetup setup;
    setup.model = find_model("tiny");
    setup.T = 128;
    setup.recipe = find_recipe(recipe);
    const std::vector<std::int32_t> tokens = random_tokens(2, setup.T, setup.model.vocab),
                                    targets = random_tokens(3, setup.T, setup.model.vocab);
    TestStep plain(setup);
    plain.parameters().initialize(1, 0.02f);
    const double loss = plain.forward_backward(tokens, targets);
    setup.lora = {8, 16};
    TestStep step(setup);
    step.parameters().initialize(1, 0.02f);
    const Named before = step.weights();
    CHECK(before.size() == static_cast<std::size_t>(14 * setup.model.layers));
    for (const auto& [name, values] : before) {
      const bool is_a = name.ends_with("lora_A.weight");
      const float most = std::fabs(*std::max_element(
          values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
      CHECK((is_a ? most > 0.05f : most == 0));
    }
    CHECK(step.forward_backward(tokens, targets) == loss);
    for (const auto& [name, values] : step.gradients()) {
      const bool zero = std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
      CHECK(zero == name.ends_with("lora_A.weight"));
    }
    CHECK(step.update({.lr = 0.01f}) > 0);
    CHECK(step.forward_backward(tokens, targets) < loss);
    CHECK(step.token_losses(tokens, targets).size() == tokens.size());
  }
}

TEST_CASE("LoRA: adapters of a quantized base have nearly the gradients of BF16") {
  const LoraGolden golden("llama");
  StepSetup setup = lora_setup(golden);
  setup.model.ffn = setup.model.width = 128, setup.model.heads = 4, setup.model.kv_heads = 2,
  setup.model.head_dim = 32;
  setup.B = 1, setup.T = 128, setup.lora = {8, 16};
  const auto result_of = [&](const char* recipe) {
    setup.recipe = find_recipe(recipe);
    TestStep step(setup);
    step.parameters().initialize(1, 0.05f);
    step.parameters().load([](const Parameter& p, float* values) {  // B, too, so that A has gradients
      for (std::int64_t i = 0; i < p.size(); ++i)
        values[i] = 0.05f * irwin_hall_normal(5, static_cast<std::uint64_t>(p.in_model + i));
    });
    const double loss = step.forward_backward(random_tokens(2, setup.T, setup.model.vocab),
                                              random_tokens(3, setup.T, setup.model.vocab));
    return Result{loss, step.gradients()};
  };
  const Result bf16 = result_of("bf16");
  // Measured 0.17 to 0.20 (FP8) and 0.68 (NVFP4), of a random model whose adapters' gradients are small.
  for (const auto& [recipe, limit] :
       {std::pair{"rowwise", 0.3}, {"tensorwise", 0.3}, {"mxfp8", 0.3}, {"blockwise", 0.3}, {"nvfp4", 0.9}}) {
    INFO(recipe);
    const Result result = result_of(recipe);
    CHECK(std::fabs(result.loss / bf16.loss - 1) < 0.1 * limit);
    const Farthest gradient = farthest(result.gradients, bf16.gradients);
    INFO(gradient.name << " " << gradient.distance);
    CHECK(gradient.distance < limit);
    CHECK(gradient.distance > 1e-3);
    setup.keep_copies = false;
    const Result quantized_on_use = result_of(recipe);
    CHECK(quantized_on_use.loss == result.loss);
    CHECK(first_difference(quantized_on_use.gradients, result.gradients) == "");
    setup.keep_copies = true;
  }
}

TEST_CASE("LoRA: a step needs no BF16 weights beside their copies") {
  StepSetup setup;
  setup.model = find_model("tiny");
  setup.T = 128, setup.lora = {8, 16};
  const std::vector<std::int32_t> tokens = random_tokens(2, setup.T, setup.model.vocab),
                                  targets = random_tokens(3, setup.T, setup.model.vocab);
  for (const char* recipe :
       {"tensorwise", "mxfp8", "fp8_weights", "nvfp4_weights", "nf4_weights", "quartet"}) {
    INFO(recipe);
    setup.recipe = find_recipe(recipe);
    setup.keep_frozen = true;
    TestStep kept(setup);
    setup.keep_frozen = false;
    TestStep dropped(setup);
    // Quartet's dgrad quantizes what fprop's copy stands for, which it makes from the weight.
    CHECK(dropped.parameters().drops_frozen_values() == (std::string(recipe) != "quartet"));
    for (TestStep* step : {&kept, &dropped}) step->parameters().initialize(1, 0.02f);
    CHECK(kept.forward_backward(tokens, targets) == dropped.forward_backward(tokens, targets));
    CHECK(first_difference(kept.gradients(), dropped.gradients()) == "");
    for (TestStep* step : {&kept, &dropped}) step->update({.lr = 0.01f});
    CHECK(kept.token_losses(tokens, targets) == dropped.token_losses(tokens, targets));
    // Weights of a file, and those of a state that has all of them.
    const auto from_file = [](const Parameter& p, float* values) {
      for (std::int64_t i = 0; i < p.size(); ++i)
        values[i] = 0.05f * irwin_hall_normal(7, static_cast<std::uint64_t>(p.in_model + i));
    };
    for (TestStep* step : {&kept, &dropped}) step->parameters().load_frozen(from_file);
    const std::vector<float> of_file = kept.token_losses(tokens, targets);
    CHECK(dropped.token_losses(tokens, targets) == of_file);
    std::map<std::string, std::vector<std::byte>> saved;
    kept.parameters().save_state([&](const StateTensor& part, std::vector<std::byte>& bytes) {
      std::vector<std::byte>& whole = saved[part.name];
      whole.insert(whole.end(), bytes.begin(), bytes.end());
    });
    dropped.parameters().initialize(1, 0.02f);
    CHECK(dropped.token_losses(tokens, targets) != of_file);
    dropped.parameters().load_state(
        [&](const StateTensor& part, std::vector<std::byte>& bytes) {
          const std::vector<std::byte>& whole = saved.at(part.name);
          std::copy_n(whole.begin() + bytes_of(part.values.dtype, part.place.first), bytes.size(),
                      bytes.begin());
        },
        false);
    CHECK(dropped.token_losses(tokens, targets) == of_file);
  }
}

TEST_CASE("LoRA: an MoE model trains adapters beside frozen experts in every kind of recipe", "[moe]") {
  StepSetup setup;
  setup.model = find_model("tiny-moe-shared");
  setup.T = 128, setup.lora = {8, 16};
  const std::vector<std::int32_t> tokens = random_tokens(2, setup.T, setup.model.vocab),
                                  targets = random_tokens(3, setup.T, setup.model.vocab);
  for (const char* recipe : {"bf16", "mxfp8", "fp8_weights", "nf4_weights"}) {
    INFO(recipe);
    setup.recipe = find_recipe(recipe);
    std::vector<double> losses;
    Named first;
    for (const bool keep : {true, false}) {
      setup.keep_frozen = keep;
      TestStep step(setup);
      step.parameters().initialize(1, 0.02f);
      losses.push_back(step.forward_backward(tokens, targets));
      if (keep) first = step.gradients();
      CHECK(first_difference(step.gradients(), first) == "");
      for (const auto& [name, values] : step.weights()) CHECK(name.find(".experts.") == std::string::npos);
      CHECK(step.update({.lr = 0.01f}) > 0);
      losses.push_back(step.forward_backward(tokens, targets));
    }
    CHECK(losses[1] < losses[0]);
    CHECK((losses[2] == losses[0] && losses[3] == losses[1]));
  }
}

TEST_CASE("LoRA: a saved state continues with the same bits") {
  StepSetup setup;
  setup.model = find_model("tiny");
  setup.T = 128, setup.lora = {8, 16}, setup.recipe = find_recipe("tensorwise");
  const std::vector<std::int32_t> tokens = random_tokens(2, setup.T, setup.model.vocab),
                                  targets = random_tokens(3, setup.T, setup.model.vocab);
  const auto train = [&](TestStep& step, std::int64_t at) {
    step.forward_backward(tokens, targets);
    step.update({.lr = 0.01f}, at);
  };
  TestStep first(setup), second(setup);
  first.parameters().initialize(1, 0.02f);
  second.parameters().initialize(2, 0.02f);
  train(first, 0);
  std::map<std::string, std::vector<std::byte>> parts;
  first.parameters().save_state([&](const StateTensor& part, std::vector<std::byte>& bytes) {
    parts[part.name + "@" + std::to_string(part.place.first)] = bytes;
  });
  CHECK(parts.count("frozen/model.norm.weight@0") == 1);
  second.parameters().load_state([&](const StateTensor& part, std::vector<std::byte>& bytes) {
    bytes = parts.at(part.name + "@" + std::to_string(part.place.first));
  });
  train(first, 1);
  train(second, 1);
  CHECK(first_difference(first.weights(), second.weights()) == "");
  CHECK(first.token_losses(tokens, targets) == second.token_losses(tokens, targets));
}

TEST_CASE("LoRA: changes of the model's weights reach the step and are taken back", "[weights]") {
  StepSetup setup;
  setup.model = find_model("tiny");
  setup.T = 128, setup.lora = {8, 16}, setup.recipe = find_recipe("mxfp8");
  const std::vector<std::int32_t> tokens = random_tokens(2, setup.T, setup.model.vocab);
  TestStep step(setup);
  step.parameters().initialize(1, 0.02f);
  const std::vector<float> before = step.token_losses(tokens, tokens);
  Parameters::Replaced replaced;
  step.parameters().change(
      [](const Parameter& p) -> Parameters::ElementChange {
        if (!p.name.ends_with("layers.0.mlp.up_proj.weight")) return nullptr;
        return [](std::int64_t, float x) { return 8 * x; };
      },
      &replaced);
  CHECK(step.token_losses(tokens, tokens) != before);
  step.parameters().restore(replaced);
  CHECK(step.token_losses(tokens, tokens) == before);
}

TEST_CASE("LoRA: FLOPs of a step have no wgrad of frozen weights") {
  const ModelConfig model = find_model("tiny");
  const FlopCount all = flops_per_token(model, 128),
                  lora = flops_per_token(model, 128, FlopConvention::causal, 8);
  CHECK(lora_parameter_count(model, 8) == 8 * 4 * (3 * 128 + 2 * 64 + 128 + 128 + 128 + 3 * 128 + 3 * 384));
  CHECK(lora.gemm == all.gemm / 3 * 2 + 6 * lora_parameter_count(model, 8));
  CHECK(lora.head == all.head / 3 * 2);
  CHECK(lora.attention == all.attention);
}

// The FP32 reference model is the truth, and the CPU device's error against it bounds the GPU's, as for whole models.
TEST_CASE("LoRA: a step on a GPU is as exact as the CPU's", "[gpu]") {
  if (!gpu_or_skip()) return;
  StepSetup setup;
  setup.model = find_model("tiny");
  setup.T = 128, setup.lora = {8, 12};
  const std::int64_t n = 2 * setup.T;
  const std::vector<std::int32_t> tokens = random_tokens(2, n, setup.model.vocab),
                                  targets = random_tokens(3, n, setup.model.vocab);
  const auto outcome_of = [&](std::unique_ptr<Device> device) {
    TestStep step(setup, std::move(device));
    step.parameters().initialize(1, 0.05f);
    step.parameters().load([](const Parameter& p, float* values) {
      for (std::int64_t i = 0; i < p.size(); ++i)
        values[i] = 0.05f * irwin_hall_normal(5, static_cast<std::uint64_t>(p.in_model + i));
    });
    StepOutcome outcome;
    outcome.loss = step.forward_backward(tokens, targets);
    outcome.gradients = step.gradients();
    outcome.grad_norm = step.update({});
    outcome.weights = step.weights();
    return outcome;
  };
  for (const int micro_steps : {1, 2}) {
    setup.accumulation = micro_steps, setup.B = 2 / micro_steps;
    setup.recipe = find_recipe("bf16"), setup.reference = true;
    const StepOutcome truth = outcome_of(make_cpu_device(2));
    setup.reference = false;
    for (const char* recipe : {"bf16", "rowwise", "tensorwise", "mxfp8", "blockwise", "nvfp4"}) {
      INFO(recipe << ", micro-steps " << micro_steps);
      setup.recipe = find_recipe(recipe);
      const StepOutcome cpu = outcome_of(make_cpu_device(2)), gpu = outcome_of(make_gpu_device(0));
      CHECK(std::fabs(gpu.loss - truth.loss) <= 2 * std::fabs(cpu.loss - truth.loss) + 1e-3 * truth.loss);
      CHECK(std::fabs(gpu.grad_norm - truth.grad_norm) <=
            2 * std::fabs(cpu.grad_norm - truth.grad_norm) + 5e-3 * truth.grad_norm);
      for (const auto& [name, expected] : truth.gradients) {
        INFO(name);
        CHECK(distance(gpu.gradients.at(name), expected) <=
              2 * distance(cpu.gradients.at(name), expected) + 1e-3);
      }
      CHECK(farthest(gpu.weights, cpu.weights).distance < 0.02);
    }
  }
}
