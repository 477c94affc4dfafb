// A mixture of experts trained over ranks: however they share it, and whoever has the experts, it is the step of one.
#include "bench/step/rank_setup_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Setup mixture_on(int ranks, const char* recipe = "bf16", const char* model = "tiny-moe-shared") {
  Setup setup;
  setup.recipe = recipe;
  setup.model = model;
  setup.ranks = ranks;
  setup.clip = 1;
  return setup;
}

std::string ranks_text(const Setup& setup) {
  return fmt::format("{} on {} ranks, {}, groups of {}, ep {}, accumulation {}, {} {}", setup.model,
                     setup.ranks, setup.parallel, setup.shard_group, setup.ep, setup.accumulation,
                     setup.recipe, setup.master);
}

/// For runs that sum in other orders. A weight at the edge between two BF16 values may round to the other, and a token
/// between two experts may choose the other.
void check_alike(const Trained& x, const Trained& y) {
  for (int i = 0; i < kSteps; ++i) {
    CHECK(std::fabs(x.losses[i] / y.losses[i] - 1) <= 2e-5);
    CHECK(std::fabs(x.norms[i] / y.norms[i] - 1) <= 2e-3);
  }
  const Farthest weights = farthest(x.weights, y.weights);
  INFO(weights.name);
  CHECK(weights.distance <= 2e-3);
}

}  // namespace

TEST_CASE("N ranks with a mixture are one that accumulates N micro-steps, biases too", "[rank][moe]") {
  for (const char* model : {"tiny-moe", "tiny-moe-shared"})
    for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
      Setup one = mixture_on(1, recipe, model), many = mixture_on(2, recipe, model);
      one.accumulation = 2;
      INFO(ranks_text(many));
      const Trained whole = train(one), ddp = train(many);
      // The tied embedding's gradient has two parts in each micro-step; the presets tie it.
      check_alike(ddp, whole);
      Named experts, of_one;
      for (const auto& [name, values] : ddp.weights)
        if (name.ends_with("bias")) CHECK(values == whole.weights.at(name));
      many.parallel = "fsdp";
      const Trained fsdp = train(many);
      CHECK(first_difference(fsdp.gradients, ddp.gradients) == "");
      check_alike(fsdp, ddp);
    }
}

TEST_CASE("ranks with different experts train like ranks that have all", "[rank][moe][ep]") {
  for (const int accumulation : {1, 2})
    for (const char* recipe : {"bf16", "blockwise"}) {
      Setup setup = mixture_on(4, recipe);
      setup.accumulation = accumulation;
      const Trained all = train(setup);
      for (const auto& [parallel, shard_group, ep] : {std::tuple{"ddp", 1, 2},
                                                      {"ddp", 1, 4},
                                                      {"fsdp", 1, 2},
                                                      {"fsdp", 1, 4},
                                                      {"hsdp", 2, 2},
                                                      {"hsdp", 2, 4}}) {
        setup.parallel = parallel, setup.shard_group = shard_group, setup.ep = ep;
        INFO(ranks_text(setup));
        check_alike(train(setup), all);
      }
      setup = mixture_on(4, recipe);
    }
}

TEST_CASE("experts on several ranks are updated in every kind of state that they may have",
          "[rank][moe][ep]") {
  std::vector<Setup> setups(6, mixture_on(2));
  setups[0].master = "bf16";
  setups[1].master = "bf16_sr";
  setups[2].moments = "bf16";
  setups[3].grads = "bf16";
  setups[4].recompute = true;
  setups[5].clip = 0;
  for (Setup& setup : setups) {
    const Trained all = train(setup);
    for (const char* parallel : {"ddp", "fsdp"})
      for (const char* reshard : {"on", "off"}) {
        if (std::string(parallel) == "ddp" && std::string(reshard) == "off") continue;
        setup.ep = 2, setup.parallel = parallel, setup.reshard = reshard;
        INFO(ranks_text(setup));
        check_alike(train(setup), all);
      }
  }
}
