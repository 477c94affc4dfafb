// The training step of an MoE model: against Hugging Face's own modules
// (tools/goldens/make_moe_goldens.py), against an equivalent dense model, and against itself where two
// settings must agree.
#include <functional>
#include <numeric>

#include "kernels/base/errors.h"
#include "kernels/gpu/gpu_testing.h"
#include "models/transformer/step_compare.h"
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

const std::string kMixtureGoldens = PRECBENCH_SOURCE_DIR "/models/transformer/golden";

StepSetup moe_setup(const char* model, const char* recipe = "bf16") {
  StepSetup setup{.model = find_model(model), .B = 4, .T = 32, .recipe = find_recipe(recipe)};
  setup.model.layers = 3;
  return setup;
}

/// Returns all recipes that experts support, with and without flow where possible.
std::vector<Recipe> expert_recipes_and_flows() {
  std::vector<Recipe> all;
  for (const Recipe& recipe : builtin_recipes()) {
    if (experts_unsupported_reason(recipe)) continue;
    all.push_back(recipe);
    if (flow_unsupported_reason(recipe)) continue;
    all.push_back(recipe);
    all.back().flow = true;
  }
  return all;
}

/// Returns `moe` with the weights of the dense model in every expert; routers are unchanged.
Named as_experts(const Named& dense, const Named& moe) {
  Named result = moe;
  for (auto& [name, values] : result) {
    if (name.ends_with("mlp.gate.weight")) continue;
    const std::size_t at = name.find("experts.");
    std::string source = name;
    if (at != std::string::npos) source.erase(at, name.find('.', at + 8) + 1 - at);
    values = dense.at(source);
  }
  return result;
}

/// Returns tiny with experts as wide as its dense layer.
ModelConfig tiny_with_experts(std::int64_t experts, std::int64_t top_k) {
  ModelConfig model = find_model("tiny");
  model.moe.rule = {.experts = experts, .top_k = top_k};
  model.moe.expert_ffn = model.ffn;
  return model;
}

struct Pair {
  Result dense, moe;
  Named dense_weights, moe_weights;  ///< after the update
};

using MakeDevice = std::function<std::unique_ptr<Device>()>;

/// Runs both models with the same weights and tokens.
Pair run_pair(
    StepSetup setup, const ModelConfig& moe, const MakeDevice& device = [] { return make_cpu_device(1); }) {
  const std::int64_t n = setup.B * setup.T;
  const auto tokens = random_tokens(2, n, setup.model.vocab),
             targets = random_tokens(3, n, setup.model.vocab);
  TestStep dense(setup, device());
  dense.parameters().initialize(1, 0.05f);
  const Named weights = dense.weights();
  setup.model = moe;
  TestStep with_experts(setup, device());
  with_experts.parameters().initialize(1, 0.05f);
  with_experts.load(as_experts(weights, with_experts.weights()));
  Pair pair;
  const auto run = [&](TestStep& step, Result& result, Named& after) {
    result.loss = step.forward_backward(tokens, targets);
    result.gradients = step.gradients();
    step.update({.lr = 1e-3f, .max_norm = 0});  // unclipped, because the norm's order of summation differs
    after = step.weights();
  };
  run(dense, pair.dense, pair.dense_weights);
  run(with_experts, pair.moe, pair.moe_weights);
  return pair;
}

/// Compares the MoE model of one expert with `tiny`.
void check_one_expert(
    const Recipe& recipe, const MakeDevice& device = [] { return make_cpu_device(1); }) {
  INFO(recipe.name << (recipe.flow ? " with flow" : ""));
  const StepSetup setup{.model = find_model("tiny"), .B = 4, .T = 32, .recipe = recipe};
  const Pair pair = run_pair(setup, tiny_with_experts(1, 1), device);
  CHECK(pair.moe.loss == pair.dense.loss);
  Named expected = as_experts(pair.dense.gradients, pair.moe.gradients);
  for (auto& [name, values] : expected)  // a constant routing weight of 1 gives the router no gradient
    if (name.ends_with("mlp.gate.weight")) std::fill(values.begin(), values.end(), 0.0f);
  CHECK(first_difference(pair.moe.gradients, expected) == "");
  CHECK(first_difference(pair.moe_weights, as_experts(pair.dense_weights, pair.moe_weights)) == "");
}

}  // namespace

TEST_CASE("MoE step: FP32 matches Hugging Face", "[moe]") {
  for (const char* name : kGoldenMixtures) {
    INFO(name);
    const Golden golden(kMixtureGoldens, name);
    check_fp32_step(golden, run_step(golden, true));
  }
}

TEST_CASE("MoE step: BF16 matches PyTorch with the same roundings", "[moe]") {
  for (const char* name : kGoldenMixtures) {
    INFO(name);
    const Golden golden(kMixtureGoldens, name);
    check_bf16_step(golden, run_step(golden, false));
  }
}

TEST_CASE("MoE step: one expert equals the dense model bit for bit in every recipe", "[moe]") {
  for (const Recipe& recipe : expert_recipes_and_flows()) check_one_expert(recipe);
}

TEST_CASE("MoE step on a GPU: one expert equals the dense model bit for bit", "[gpu][moe]") {
  if (!gpu_here()) return;
  // "loop" runs the dense model's GEMMs expert by expert; "own" runs grouped kernels, for which the dense
  // model needs the same kernels.
  for (const char* grouped : {"loop", "own"})
    for (const Recipe& recipe : expert_recipes_and_flows()) {
      if (grouped == std::string("own") && recipe.fprop.b.granularity != Granularity::block_128x128) continue;
      INFO(grouped);
      check_one_expert(recipe, [&] {
        return make_gpu_device(0, {.autotune = false,
                                   .deterministic = true,
                                   .attention = "own",
                                   .gemm = grouped == std::string("own") ? "own" : "cublaslt",
                                   .grouped = grouped});
      });
    }
}

TEST_CASE("MoE step: identical experts equal the dense model and sum to its gradient", "[moe]") {
  StepSetup setup{.model = find_model("tiny"), .B = 4, .T = 32, .reference = true};
  setup.model.layers = 2;
  ModelConfig moe = tiny_with_experts(8, 3);
  moe.layers = 2;
  const Pair pair = run_pair(setup, moe);
  CHECK(std::fabs(pair.moe.loss / pair.dense.loss - 1) <= 4 * kRoundoff);
  Named sums;
  for (const auto& [name, values] : pair.moe.gradients) {
    if (name.ends_with("mlp.gate.weight")) continue;
    std::string source = name;
    if (const std::size_t at = name.find("experts."); at != std::string::npos)
      source.erase(at, name.find('.', at + 8) + 1 - at);
    std::vector<float>& sum = sums[source];
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  const Farthest farthest_sum = farthest(sums, pair.dense.gradients);
  INFO(farthest_sum.name);
  CHECK(farthest_sum.distance <= 64 * kRoundoff);
}

TEST_CASE("MoE step: recomputation gives the same bits", "[moe]") {
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "rowwise_gw_hp", "blockwise", "mxfp8"}) {
    INFO(recipe);
    const StepSetup shared = moe_setup("tiny-moe-shared", recipe), routed = moe_setup("tiny-moe", recipe);
    check_recomputed(shared, random_step(shared));
    check_recomputed(routed, random_step(routed), kFullRecomputeKinds);
    StepSetup gated = shared;
    gated.model.moe.shared_gate = true;
    check_recomputed(gated, random_step(gated));
    StepSetup biased = shared;
    biased.model = like_gpt_oss();
    check_recomputed(biased, random_step(biased));
  }
}

TEST_CASE("MoE step: recomputation with biases of experts that are not 0 gives the same bits", "[moe]") {
  const Golden golden(kMixtureGoldens, "gpt-oss");
  StepSetup setup{.model = golden.model, .B = golden.B, .T = golden.T};
  const auto run = [&] {
    TestStep step(setup);
    step.load(golden.weights());
    const double loss = step.forward_backward(golden.tokens, golden.targets);
    return Result{loss, step.gradients()};
  };
  const Result kept = run();
  for_each_recompute(setup, kRecomputeKinds, [&] {
    const Result again = run();
    CHECK(again.loss == kept.loss);
    CHECK(first_difference(again.gradients, kept.gradients) == "");
  });
}

TEST_CASE("MoE step: expert weights are quantized once for both copies", "[moe]") {
  struct Counter final : OpObserver {
    std::int64_t count = 0;
    void begin(const OpCost& cost) override { count += std::string(cost.name) == "quantize_experts"; }
    void end(const OpCost&) override {}
  } counter;
  for (const bool recompute : {false, true}) {
    StepSetup setup = moe_setup("tiny-moe", "rowwise");
    setup.recompute = recompute ? kRecomputeBlocks : Recompute{};
    TestStep step(setup);
    step.parameters().initialize(1, 0.02f);
    const std::int64_t n = setup.B * setup.T;
    const std::vector<std::int32_t> tokens = random_tokens(2, n, setup.model.vocab);
    step.device().set_observer(&counter);
    counter.count = 0;
    step.forward_backward(tokens, tokens);
    // gate_up and down. With recomputation: both in forward, gate_up again with its columns, and down's
    // columns.
    CHECK(counter.count == setup.model.layers * (recompute ? 4 : 2));
    step.device().set_observer(nullptr);
  }
}

TEST_CASE("MoE step: accumulated micro-steps equal one larger batch", "[moe]") {
  for (const char* model : {"tiny-moe", "tiny-moe-shared", "like gpt-oss"}) {
    StepSetup setup = moe_setup("tiny-moe");
    setup.model = std::string(model) == "like gpt-oss" ? like_gpt_oss() : find_model(model);
    setup.model.layers = 3;
    setup.reference = true;
    const Result whole = random_step(setup);
    setup.B = 2;
    setup.accumulation = 2;
    const Result parts = random_step(setup);
    check_close(parts, whole, 4 * kRoundoff, 64 * kRoundoff);
  }
}

TEST_CASE("MoE step: gradients of every recipe are close to BF16", "[moe]") {
  for (const char* model : {"tiny-moe", "tiny-moe-shared", "like gpt-oss"}) {
    StepSetup setup = moe_setup("tiny-moe");
    setup.model = std::string(model) == "like gpt-oss" ? like_gpt_oss() : find_model(model);
    setup.model.layers = 3;
    setup.T = 64;
    const std::int64_t n = setup.B * setup.T;
    const auto run = [&](const Recipe& recipe) {
      setup.recipe = recipe;
      TestStep step(setup);
      step.force_experts(Routing::zipf, 1);  // routing must not depend on the recipe's noise
      step.parameters().initialize(1, 0.02f);
      const double loss = step.forward_backward(random_tokens(2, n, setup.model.vocab),
                                                random_tokens(3, n, setup.model.vocab));
      return Result{loss, step.gradients()};
    };
    const Result reference = run(find_recipe("bf16"));
    for (const Recipe& recipe : expert_recipes_and_flows()) {
      if (!recipe.quantized()) continue;
      INFO(model << " " << recipe.name << (recipe.flow ? " with flow" : ""));
      const Result result = run(recipe);
      CHECK(std::fabs(result.loss / reference.loss - 1) <= 1e-3);
      const bool e5m2 = recipe.dgrad.a.dtype == DType::e5m2;
      for (const auto& [name, expected] : reference.gradients) {
        INFO(name);
        const Likeness likeness = compare(result.gradients.at(name), expected);
        // Errors of the four sinks of a layer do not average out.
        const double few = name.ends_with("self_attn.sinks") ? 2 : 1;
        CHECK(1 - likeness.cosine <= few * (e5m2 ? 0.06 : 0.045));
        CHECK(std::fabs(likeness.norm_ratio - 1) <= few * 0.15);
      }
    }
  }
}

TEST_CASE("experts_unsupported_reason: unsupported recipes are refused by name", "[moe]") {
  CHECK(experts_unsupported_reason(find_recipe("nvfp4")) == "experts: nvfp4 is not grouped yet: FP4");
  CHECK(experts_unsupported_reason(find_recipe("mxfp8_w2d")) ==
        "experts: mxfp8_w2d is not grouped yet: scales of 32x32 blocks");
  Recipe again = find_recipe("mxfp8");
  again.wgrad.b.from_fprop = true;
  CHECK(experts_unsupported_reason(again) == "experts: mxfp8 is not grouped yet: wgrad from the data of fprop");
  for (const char* name :
       {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "blockwise", "blockwise_pow2", "mxfp8"})
    CHECK(!experts_unsupported_reason(find_recipe(name)));
  CHECK(group_padding(find_recipe("bf16")) == 1);
  CHECK(group_padding(find_recipe("rowwise")) == 16);
  CHECK(group_padding(find_recipe("blockwise")) == 128);
  CHECK(group_padding(find_recipe("mxfp8")) == 32);
}

TEST_CASE("forced_experts: experts of a token are distinct and occur with the requested frequency", "[moe]") {
  const RoutingRule rule{.experts = 8, .top_k = 2};
  constexpr std::int64_t kTokens = 4000;
  CHECK(forced_experts(Routing::learned, 0, rule, kTokens).empty());
  const auto counts_of = [&](Routing routing, double exponent) {
    const std::vector<std::int32_t> index = forced_experts(routing, exponent, rule, kTokens);
    REQUIRE(index.size() == kTokens * 2);
    std::vector<std::int64_t> counts(8);
    for (std::size_t slot = 0; slot < index.size(); ++slot) {
      ++counts.at(index[slot]);
      if (slot % 2 == 0) CHECK(index[slot] != index[slot + 1]);
    }
    return counts;
  };
  CHECK(counts_of(Routing::balanced, 0) == std::vector<std::int64_t>(8, kTokens / 4));
  CHECK(counts_of(Routing::one, 0) == std::vector<std::int64_t>{kTokens, kTokens, 0, 0, 0, 0, 0, 0});
  const std::vector<std::int64_t> zipf = counts_of(Routing::zipf, 1);
  CHECK(std::is_sorted(zipf.rbegin(), zipf.rend()));
  CHECK(zipf[0] > 3 * zipf[7]);
  CHECK(counts_of(Routing::zipf, 16)[0] == kTokens);  // nearly certain, and still two experts per token
}

namespace {

/// Checks the routers' statistics. `causal`: the device's attention spreads NaN to later tokens only; else to
/// the whole sequence.
void check_books(std::unique_ptr<Device> device, bool causal) {
  StepSetup setup = moe_setup("tiny-moe-shared", "blockwise");
  setup.accumulation = 2;
  setup.capacity = 0.75;
  const std::int64_t n = 2 * setup.B * setup.T, E = 8, K = 2;
  TestStep step(setup, std::move(device));
  step.parameters().initialize(1, 0.05f);
  auto tokens = random_tokens(2, n, setup.model.vocab);
  const auto targets = random_tokens(3, n, setup.model.vocab);
  CHECK(std::isfinite(step.forward_backward(tokens, targets)));
  const Routers& routers = *step.parameters().routers();
  const std::vector<RouterLoad> load = routers.load();
  REQUIRE(load.size() == 3);
  const std::int64_t slots = n / 2 * K;  // of a micro-step
  const double most = std::ceil(0.75 * static_cast<double>(slots) / static_cast<double>(E));
  for (const RouterLoad& layer : load) {
    CHECK(std::accumulate(layer.slots.begin(), layer.slots.end(), 0.0) == static_cast<double>(n * K));
    CHECK(layer.rows <= 2 * most * static_cast<double>(E));
    CHECK(layer.dropped == static_cast<double>(n * K) - layer.rows);
    CHECK(layer.dropped > 0);
    CHECK(layer.padded >= layer.rows);
    CHECK(std::fmod(layer.padded, 128) == 0);
    CHECK(layer.balance > 0.9);
  }
  CHECK_FALSE(routers.bad_token());

  const auto comm = make_dry_comm(0, 1);
  step.parameters().routers()->update(*comm);
  const Named after = step.weights();
  for (const RouterLoad& layer : load) {
    const std::vector<float>& bias = after.at(route_bias_name(setup.model, layer.layer));
    const double mean = static_cast<double>(n * K) / static_cast<double>(E);
    for (std::int64_t e = 0; e < E; ++e)
      CHECK(bias[e] == (layer.slots[e] < mean ? 1e-3f : layer.slots[e] > mean ? -1e-3f : 0.0f));
  }

  Named broken = after;
  constexpr std::int32_t kWord = 7;
  std::fill_n(broken.at("model.embed_tokens.weight").begin() + kWord * setup.model.width, setup.model.width,
              NAN);
  std::replace(tokens.begin(), tokens.end(), kWord, kWord + 1);
  step.load(broken);
  const std::int64_t begin = 2 * setup.T;  // first token of a sequence of the second micro-step
  for (const std::int64_t bad_one : {begin, begin + 1, begin + 17, begin + setup.T - 1}) {
    INFO("token " << bad_one);
    auto with_bad_one = tokens;
    with_bad_one[n / 2 + bad_one] = kWord;
    CHECK(std::isnan(step.forward_backward(with_bad_one, targets)));
    const std::optional<BadToken> bad = routers.bad_token();
    REQUIRE(bad);
    CHECK(bad->micro_step == 1);
    CHECK(bad->layer == 0);
    CHECK(bad->token >= (causal ? bad_one : begin));
    CHECK(bad->token <= bad_one);
  }
}

void check_crowded_steps(const std::function<std::unique_ptr<Device>()>& make_device) {
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "blockwise_pow2", "mxfp8"})
    for (const auto& [B, T] : {std::pair<std::int64_t, std::int64_t>{1, 128}, {4, 96}}) {
      INFO(recipe << " " << B << " x " << T);
      StepSetup setup = moe_setup("tiny-moe", recipe);
      setup.B = B, setup.T = T;
      const std::int64_t n = B * T;
      TestStep step(setup, make_device());
      step.parameters().initialize(1, 0.02f);
      step.force_experts(Routing::one);
      CHECK(std::isfinite(step.forward_backward(random_tokens(2, n, setup.model.vocab),
                                                random_tokens(3, n, setup.model.vocab))));
      for (const auto& [name, values] : step.gradients()) {
        INFO(name);
        CHECK(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
        if (name.find("experts.5.") != std::string::npos)
          CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; }));
      }
      const std::vector<double> slots = step.parameters().routers()->load()[0].slots;
      CHECK(std::count(slots.begin(), slots.end(), 0.0) == 6);
    }
}

}  // namespace

TEST_CASE("Routers: load and drops and biases and the first bad token are recorded", "[moe]") {
  check_books(make_cpu_device(1), true);
}

TEST_CASE("Routers on a GPU: load and drops and biases and the first bad token are recorded", "[gpu][moe]") {
  if (auto device = gpu_or_skip()) check_books(std::move(device), false);
}

TEST_CASE("MoE step: all tokens on the same experts give finite gradients", "[moe]") {
  check_crowded_steps([] { return make_cpu_device(1); });
}

TEST_CASE("MoE step on a GPU: all tokens on the same experts give finite gradients", "[gpu][moe]") {
  if (gpu_here()) check_crowded_steps([] { return make_gpu_device(0); });
}

TEST_CASE("MoE step: gradients with weights at the input equal finite differences", "[moe]") {
  StepSetup setup{.model = find_model("tiny"), .B = 1, .T = 16, .reference = true};
  ModelConfig& model = setup.model;
  model.layers = 1, model.width = 16, model.heads = 2, model.kv_heads = 2, model.head_dim = 8,
  model.vocab = 16;
  model.moe.rule = {.experts = 4, .top_k = 1, .score = RouterScore::sigmoid, .normalise = false};
  model.moe.expert_ffn = model.ffn = 16;
  model.moe.shared_ffn = 16;
  model.moe.weight_at = WeightAt::input;
  TestStep step(setup);
  step.parameters().initialize(1, 0.3f);
  const auto tokens = random_tokens(2, 16, model.vocab), targets = random_tokens(3, 16, model.vocab);
  Named weights = step.weights();
  step.forward_backward(tokens, targets);
  const Named gradients = step.gradients();
  const auto derivative = [&](float& x) {
    constexpr float kStep = 4e-3f;
    const float at = x;
    double losses[2];
    for (const int side : {0, 1}) {
      x = side ? at - kStep : at + kStep;
      step.load(weights);
      losses[side] = step.forward_backward(tokens, targets);
    }
    x = at;
    return (losses[0] - losses[1]) / (2.0 * kStep);
  };
  for (auto& [name, values] : weights) {
    INFO(name);
    const std::vector<float>& gradient = gradients.at(name);
    const auto largest = std::max_element(gradient.begin(), gradient.end(),
                                          [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    if (*largest == 0) continue;  // an unused expert
    const double difference = derivative(values[largest - gradient.begin()]);
    // Error of the difference of FP32 losses: 1e-7 of the loss divided by the step.
    CHECK(std::fabs(difference - *largest) <= 0.02 * std::fabs(*largest) + 1e-4);
  }
}
