// An MoE model trained over ranks equals one rank's step, however parameters and experts are sharded.
#include "bench/step/rank_setup_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Uses every router feature. Untied, so that sums over ranks equal those over micro-steps.
constexpr const char* kMixture = R"({"layers": 2, "width": 128, "ffn": 128, "heads": 2, "kv_heads": 1,
  "head_dim": 64, "vocab": 256, "qk_norm": true, "tied": false, "experts": 8, "top_k": 2, "expert_ffn": 128,
  "shared_ffn": 128, "score": "sigmoid", "normalise": true, "route_scale": 2.5, "route_bias": true})";

Setup moe_on(int ranks, const char* recipe = "bf16") {
  Setup setup;
  setup.recipe = recipe;
  setup.model = kMixture;
  setup.ranks = ranks;
  return setup;
}

std::string text(const Setup& setup) {
  return fmt::format(
      "{} ranks, {}, groups of {}, reshard {}, ep {}, accumulation {}, {}, master {}, moments {}, grads {}",
      setup.ranks, setup.parallel, setup.shard_group, setup.reshard, setup.ep, setup.accumulation,
      setup.recipe, setup.master, setup.moments, setup.grads);
}

/// For runs in which ranks sum their experts' outputs in BF16. Measured relative differences: losses 3.1e-4
/// (blockwise FP8 6.0e-4, in a ThreadSanitizer build, whose sums round differently), norms 3.4e-3, weights
/// 0.019, gradients of the last step 0.038 (blockwise FP8 0.173, of k, which is small beside q and v).
void check_alike(const Trained& x, const Trained& y, double of_gradient = 0.06, double of_loss = 5e-4) {
  for (int i = 0; i < kSteps; ++i) {
    CHECK(std::fabs(x.losses[i] / y.losses[i] - 1) <= of_loss);
    CHECK(std::fabs(x.norms[i] / y.norms[i] - 1) <= 5e-3);
  }
  Named weights = x.weights, expected = y.weights;
  for (const std::int64_t layer : {0, 1}) {  // with balanced routing they stay 0
    CHECK(weights.at(route_bias_name({}, layer)) == expected.at(route_bias_name({}, layer)));
    weights.erase(route_bias_name({}, layer)), expected.erase(route_bias_name({}, layer));
  }
  const Farthest of_gradients = farthest(x.gradients, y.gradients), of_weights = farthest(weights, expected);
  INFO(of_gradients.name << ", " << of_weights.name);
  CHECK(of_gradients.distance <= of_gradient);
  CHECK(of_weights.distance <= 0.03);
}

}  // namespace

TEST_CASE("Rank: N ranks with an MoE model equal one rank with N micro-steps including route biases",
          "[rank][moe]") {
  for (const int ranks : {2, 3})
    for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
      Setup one = moe_on(1, recipe), many = moe_on(ranks, recipe);
      one.accumulation = ranks;
      INFO(text(many));
      const Trained ddp = train(many);
      check_same_bits(ddp, train(one));
      many.parallel = "fsdp";
      check_same_bits(train(many), ddp);
    }
}

TEST_CASE("Rank: expert-parallel ranks train like ranks with all experts", "[rank][moe][ep]") {
  for (const int accumulation : {1, 2})
    for (const char* recipe : {"bf16", "blockwise"}) {
      Setup setup = moe_on(4, recipe);
      setup.routing = "balanced";  // else a token close to a tie switches experts
      setup.accumulation = accumulation;
      setup.clip = 0.5;
      const Trained all = train(setup);
      for (const double norm : all.norms) CHECK(norm > setup.clip);
      for (const auto& [parallel, shard_group, ep] : {std::tuple{"ddp", 1, 2},
                                                      {"ddp", 1, 4},
                                                      {"fsdp", 1, 2},
                                                      {"fsdp", 1, 4},
                                                      {"hsdp", 2, 2},
                                                      {"hsdp", 2, 4}}) {
        setup.parallel = parallel, setup.shard_group = shard_group, setup.ep = ep;
        INFO(text(setup));
        const bool fp8 = setup.recipe != "bf16";
        check_alike(train(setup), all, fp8 ? 0.25 : 0.06, fp8 ? 1e-3 : 5e-4);
      }
    }
}

TEST_CASE("Rank: with reduce_amax an MoE model is quantized as on one rank", "[rank][moe][ep][amax]") {
  Setup setup = moe_on(1, "tensorwise");
  setup.routing = "balanced";
  setup.aux = 0;  // its f is computed from one rank's tokens
  setup.batch = 4;
  const Trained one = train(setup);
  setup.ranks = 2, setup.batch = 2;
  for (const char* parallel : {"ddp", "fsdp"}) {
    setup.parallel = parallel;
    setup.reduce_amax = true;
    INFO(text(setup));
    setup.ep = 1;
    const Trained shared = train(setup);
    CHECK(std::fabs(shared.losses[0] / one.losses[0] - 1) <= 1e-6);
    CHECK(std::fabs(shared.norms[0] / one.norms[0] - 1) <= 1e-6);
    setup.ep = 2;
    check_alike(train(setup), one, 0.25, 1e-3);
    setup.ep = 1, setup.reduce_amax = false;
    CHECK(std::fabs(train(setup).norms[0] / one.norms[0] - 1) > 1e-6);
  }
}

TEST_CASE("Rank: expert-parallel ranks update every kind of optimizer state", "[rank][moe][ep]") {
  std::vector<Setup> setups(7, moe_on(2));
  setups[6].recompute = "attention+ffn+norm";
  setups[0].master = "bf16";
  setups[1].master = "bf16_sr";
  setups[2].moments = "bf16";
  setups[3].grads = "bf16";
  setups[4].recompute = "block";
  setups[5].clip = 0;
  for (Setup& setup : setups) {
    setup.routing = "balanced";
    if (&setup != &setups[5]) setup.clip = 0.5;
    const Trained all = train(setup);
    setup.ep = 2;
    const Trained ddp = train(setup);
    INFO(text(setup));
    check_alike(ddp, all);
    for (const char* reshard : {"on", "off"}) {
      setup.parallel = "fsdp", setup.reshard = reshard;
      INFO(text(setup));
      // The sharding of the other parameters changes no bit, except through the clipping norm.
      const Trained fsdp = train(setup);
      if (setup.clip == 0)
        check_same_bits(fsdp, ddp);
      else
        check_alike(fsdp, ddp);
    }
  }
}
