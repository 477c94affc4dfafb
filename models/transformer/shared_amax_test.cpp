// Amaxes of experts' operands shared over all ranks (--reduce-amax on): the ranks quantize like one rank with
// all tokens, for every distribution of the experts and every exchange.
#include <algorithm>

#include "models/transformer/expert_parallel_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kModels[] = {"tiny-moe", "tiny-moe-shared", "weighted input"};

ModelConfig model_of(const std::string& name) {
  ModelConfig model = name == "weighted input" ? weighted_input() : find_model(name);
  model.layers = 3;
  return model;
}

/// "columns": rowwise scales, but per-tensor scales in wgrad. "dY's columns": per-tensor scales, with dgrad
/// in BF16.
Recipe recipe_of(const std::string& name) {
  const Recipe one_scale = find_recipe("tensorwise");
  if (name == "tensorwise") return one_scale;
  Recipe mixed = name == "columns" ? find_recipe("rowwise") : one_scale;
  mixed.wgrad = one_scale.wgrad;
  if (name == "dY's columns") mixed.dgrad = find_recipe("bf16").dgrad;
  return mixed;
}

StepSetup shared_setup(const std::string& model, const std::string& recipe = "tensorwise") {
  StepSetup setup = setup_of("tiny-moe");
  setup.model = model_of(model);
  setup.recipe = recipe_of(recipe);
  setup.reduce_amax = true;
  return setup;
}

StepSetup apart(StepSetup setup, int ranks) {
  setup.parallel = {.data = ranks};
  setup.expert_ranks = ranks;
  return setup;
}

void check_same(const Outcome& x, const Outcome& y) {
  CHECK((x.losses == y.losses));
  CHECK(first_difference(x.gradients, y.gradients) == "");
}

}  // namespace

TEST_CASE("reduce_amax: divided experts equal one rank's bit for bit", "[moe][ep][amax]") {
  for (const char* recipe : {"tensorwise", "columns", "dY's columns"})
    for (const char* model : kModels) {
      const StepSetup setup = shared_setup(model, recipe);
      const Outcome one = on_one_rank(setup);
      for (const int ranks : {2, 4})
        for (const bool codes : {false, true}) {
          // FP8 dispatch uses the scale of the sent values. Weighted rows and columns are quantized again
          // from the decoded values.
          if (codes && (std::string(recipe) != "tensorwise" || setup.model.moe.weight_at == WeightAt::input))
            continue;
          INFO(model << " " << recipe << " on " << ranks << " ranks" << (codes ? ", as codes" : ""));
          StepSetup many = apart(setup, ranks);
          many.slots_come_back = true;
          many.exchange.codes = codes;
          const Outcome shared = on_ranks(many, ranks);
          CHECK((shared.losses == one.losses));
          CHECK(first_difference(experts_of(shared.gradients), experts_of(one.gradients)) == "");
        }
    }
}

TEST_CASE("reduce_amax: losses equal one rank's with it and differ without it", "[moe][ep][amax]") {
  for (const char* model : kModels)
    for (const bool divided : {false, true}) {
      INFO(model << (divided ? ", experts apart" : ""));
      StepSetup setup = shared_setup(model);
      setup.roles = {LinearRole::gate_up, LinearRole::down};
      const Outcome one = on_one_rank(setup);
      setup = divided ? apart(setup, 2) : setup;
      setup.parallel = {.data = 2};
      setup.slots_come_back = divided;
      CHECK((on_ranks(setup, 2).losses == one.losses));
      setup.reduce_amax = false;
      CHECK((on_ranks(setup, 2).losses != one.losses));
    }
}

TEST_CASE("reduce_amax: replicas and shards without expert parallelism equal one rank", "[moe][amax]") {
  for (const char* model : kModels) {
    StepSetup setup = shared_setup(model);
    const Outcome one = on_one_rank(setup);
    for (const ParallelDims& parallel : {ParallelDims{.data = 2}, {.shard = 2}, {.data = 2, .shard = 2}}) {
      INFO(model << " on " << parallel.data << " x " << parallel.shard << " ranks");
      setup.parallel = parallel;
      setup.reduce_amax = true;
      const Outcome many = on_ranks(setup, parallel.ranks());
      CHECK((many.losses == one.losses));
      // Gradients are sums of the ranks' sums, in another order.
      const Farthest gradient = farthest(many.gradients, one.gradients);
      INFO(gradient.name);
      CHECK(gradient.distance <= 64 * kRoundoff);
      setup.reduce_amax = false;
      CHECK(farthest(on_ranks(setup, parallel.ranks()).gradients, one.gradients).distance > 1e-3);
    }
  }
}

TEST_CASE("reduce_amax: every exchange gives the same bits", "[moe][ep][amax]") {
  for (const char* model : kModels)
    for (const int ranks : {2, 4}) {
      INFO(model << " on " << ranks << " ranks");
      StepSetup setup = apart(shared_setup(model), ranks);
      setup.reference = true;  // in BF16 partial sums would be rounded at different places
      const Outcome gathered = on_ranks(setup, ranks);
      setup.exchange = slots_of(kSequences / ranks * kLength);
      check_same(on_ranks(setup, ranks), gathered);
      setup.exchange = kSync;
      check_same(on_ranks(setup, ranks), gathered);
    }
}

TEST_CASE("reduce_amax: FP8 dispatch gives the same bits as BF16 dispatch", "[moe][ep][amax]") {
  for (const char* model : {"tiny-moe", "tiny-moe-shared"})
    for (const bool slots : {false, true}) {
      INFO(model << (slots ? " in slots" : " gathered"));
      StepSetup setup = apart(shared_setup(model), 2);
      if (slots) setup.exchange = slots_of(kSequences / 2 * kLength);
      const Outcome values = on_ranks(setup, 2);
      setup.exchange.codes = true;
      check_same(on_ranks(setup, 2), values);
    }
}

TEST_CASE("reduce_amax: requantized values of FP8 dispatch share an amax over all ranks", "[moe][ep][amax]") {
  for (const char* recipe : {"tensorwise", "columns"}) {
    INFO(recipe);
    StepSetup setup = shared_setup("weighted input", recipe);
    setup.slots_come_back = setup.exchange.codes = true;
    const Outcome two = on_ranks(apart(setup, 2), 2), four = on_ranks(apart(setup, 4), 4);
    CHECK((two.losses == four.losses));
    CHECK(first_difference(experts_of(two.gradients), experts_of(four.gradients)) == "");
    setup.reduce_amax = false;
    const Named own = experts_of(on_ranks(apart(setup, 2), 2).gradients);
    CHECK(first_difference(own, experts_of(on_ranks(apart(setup, 4), 4).gradients)) != "");
  }
  for (const char* model : {"tiny-moe", "tiny-moe-shared"})
    for (const bool slots : {false, true}) {
      INFO(model << (slots ? " in slots" : " gathered"));
      StepSetup setup = apart(shared_setup(model, "columns"), 2);
      if (slots) setup.exchange = slots_of(kSequences / 2 * kLength);
      const Outcome values = on_ranks(setup, 2);
      setup.exchange.codes = true;
      const Outcome codes = on_ranks(setup, 2);
      CHECK((codes.losses == values.losses));
      const Farthest gradient = farthest(codes.gradients, values.gradients);
      INFO(gradient.name);
      CHECK(gradient.distance <= 0.1);  // both operands are rounded differently, to three bits
    }
}

TEST_CASE("reduce_amax: a rank whose experts get no token takes part in every collective",
          "[moe][ep][amax]") {
  for (const char* model : {"tiny-moe", "weighted input"}) {
    INFO(model);
    StepSetup setup = shared_setup(model);
    const Outcome one = on_one_rank(setup, Routing::one);
    setup = apart(setup, 4);
    setup.slots_come_back = true;
    const Named many = experts_of(on_ranks(setup, 4, Routing::one).gradients);
    CHECK(first_difference(many, experts_of(one.gradients)) == "");
    for (const auto& [name, values] : many)
      if (name.find("experts.7.") != std::string::npos)
        CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; }));
    setup.slots_come_back = false;
    for (const ExchangeOptions& exchange : {kGather, slots_of(kLength), kSync}) {
      setup.exchange = exchange;
      for (const float loss : on_ranks(setup, 4, Routing::one).losses) CHECK(std::isfinite(loss));
    }
  }
}

TEST_CASE("reduce_amax: recomputation of a MoE step gives the same bits", "[moe][ep][amax]") {
  for (const char* model : kModels)
    for (const int experts : {1, 2}) {
      INFO(model << ", ep " << experts);
      StepSetup setup = shared_setup(model);
      setup.parallel = {.data = 2};
      setup.expert_ranks = experts;
      const Outcome kept = on_ranks(setup, 2);
      const bool has_shared = setup.model.moe.shared_ffn > 0;
      const auto kinds = has_shared ? std::span<const RecomputeKind>(kRecomputeKinds) : kFullRecomputeKinds;
      for_each_recompute(setup, kinds, [&] { check_same(on_ranks(setup, 2), kept); });
    }
}
