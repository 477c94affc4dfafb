// A step with experts on one CPU rank that has all tokens, and on several that divide them, for comparison in
// tests.
#pragma once

#include <string>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "models/transformer/step_compare.h"

namespace precbench::testing {

inline constexpr std::int64_t kSequences = 4, kLength = 128;

struct Outcome {
  std::vector<float> losses;  // per token
  Named gradients;
  std::vector<double> dropped = {};  ///< slots, per rank and layer
  double rows = 0;                   ///< of all experts
};

/// "flow": blockwise_pow2, with columns made by transposing FP8 data.
inline StepSetup setup_of(const char* model, const std::string& recipe = "bf16") {
  StepSetup setup{.model = find_model(model),
                  .B = kSequences,
                  .T = kLength,
                  .recipe = find_recipe(recipe == "flow" ? "blockwise_pow2" : recipe)};
  setup.recipe.flow = recipe == "flow";
  setup.model.layers = 3;
  return setup;
}

/// Returns an MoE model like Llama 4's: one expert per token, whose input the routing weight multiplies.
inline ModelConfig weighted_input() {
  ModelConfig model = find_model("tiny-moe-shared");
  model.moe.rule = {.experts = 8, .top_k = 1, .score = RouterScore::sigmoid, .normalise = false};
  model.moe.route_bias = false;
  model.moe.weight_at = WeightAt::input;
  return model;
}

inline Outcome outcome_of(TestStep& step, Routing routing, const std::vector<std::int32_t>& tokens,
                          const std::vector<std::int32_t>& targets) {
  step.parameters().initialize(1, 0.05f);
  if (routing != Routing::learned) step.force_experts(routing);
  Outcome outcome;
  outcome.losses = step.token_losses(tokens, targets);
  step.forward_backward(tokens, targets);
  step.parameters().complete_all();
  outcome.gradients = step.gradients();
  for (const RouterLoad& layer : step.parameters().routers()->load()) {
    outcome.dropped.push_back(layer.dropped);
    outcome.rows += layer.rows;
  }
  return outcome;
}

inline Outcome on_one_rank(const StepSetup& setup, Routing routing = Routing::learned) {
  const std::int64_t n = kSequences * kLength;
  TestStep step(setup);
  return outcome_of(step, routing, random_tokens(2, n, setup.model.vocab),
                    random_tokens(3, n, setup.model.vocab));
}

/// Runs the same tokens on `ranks` ranks and checks that all save the same gradients.
inline Outcome on_ranks(StepSetup setup, int ranks, Routing routing = Routing::learned) {
  setup.B = kSequences / ranks;
  const std::int64_t n = setup.B * kLength;
  std::vector<Outcome> by_rank(ranks);
  on_cpu_ranks(ranks, [&](Device&, Comm& comm) {
    const auto mine = [&](std::uint64_t seed) {
      const auto all = random_tokens(seed, kSequences * kLength, setup.model.vocab);
      return std::vector<std::int32_t>(all.begin() + comm.rank() * n, all.begin() + (comm.rank() + 1) * n);
    };
    TestStep step(setup, make_cpu_device(1), &comm);
    by_rank[comm.rank()] = outcome_of(step, routing, mine(2), mine(3));
  });
  Outcome together = by_rank[0];
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(first_difference(by_rank[rank].gradients, by_rank[0].gradients) == "");
    const Outcome& next = by_rank[rank];
    together.losses.insert(together.losses.end(), next.losses.begin(), next.losses.end());
    together.dropped.insert(together.dropped.end(), next.dropped.begin(), next.dropped.end());
    together.rows += next.rows;
  }
  return together;
}

inline Named experts_of(const Named& tensors) {
  Named experts;
  for (const auto& [name, values] : tensors)
    if (name.find(".experts.") != std::string::npos) experts[name] = values;
  return experts;
}

inline constexpr ExchangeOptions kGather{}, kSync{.mode = ExchangeOptions::Mode::sync};

inline ExchangeOptions slots_of(std::int64_t slots) {
  return {.mode = ExchangeOptions::Mode::slots, .slots = slots};
}

}  // namespace precbench::testing
