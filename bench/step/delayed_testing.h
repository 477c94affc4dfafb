// For tests: small models with delayed scaling, trained for a few steps on CPU ranks, and the resulting
// scales.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/testing/temp_directory.h"
#include "models/transformer/linear/delayed_scaling.h"

namespace precbench::testing::delayed {

/// Kind of feed-forward block of the test model.
enum class Kind : std::uint8_t { dense, moe, weighted_rows, weighted_alone };
inline constexpr Kind kMixtures[] = {Kind::moe, Kind::weighted_rows, Kind::weighted_alone};
inline constexpr Kind kKinds[] = {Kind::dense, kMixtures[0], kMixtures[1], kMixtures[2]};

/// Returns the model's JSON keys for experts: like Qwen3's, or like Llama 4's with or without a shared
/// expert.
inline const char* keys_of(Kind kind) {
  if (kind == Kind::dense) return "";
  if (kind == Kind::moe)
    return R"(, "experts": 4, "top_k": 2, "expert_ffn": 64, "score": "softmax", "normalise": true)";
  if (kind == Kind::weighted_alone)
    return R"(, "experts": 4, "top_k": 1, "expert_ffn": 64, "score": "sigmoid", "normalise": false, "weight_at": "input")";
  return R"(, "experts": 4, "top_k": 1, "expert_ffn": 64, "score": "sigmoid", "normalise": false, "shared_ffn": 48,
              "weight_at": "input")";
}

/// Returns a recipe in JSON in which some keys of every history are replaced: {"update": "micro"}.
inline nlohmann::json with_history(const std::string& recipe, const nlohmann::json& keys) {
  nlohmann::json row = recipe_to_json(find_recipe(recipe));
  row["name"] = "mine";
  for (const char* gemm : {"fprop", "dgrad", "wgrad"})
    for (const char* operand : {"a", "b"}) row[gemm][operand]["history"].update(keys);
  return row;
}

struct DelayedSetup {
  Kind kind = Kind::dense;
  std::string recipe = "tensorwise_delayed";
  nlohmann::json history = {};  ///< keys that differ from the recipe's history
  int ranks = 1;
  std::int64_t batch = 2, accumulation = 1;
  std::string parallel = "ddp", gather = "bf16", recompute = "none", head = "recipe";
  std::int64_t ep = 1;
  std::string exchange = "gather", dispatch = "bf16";
  float lr = 1e-3f;
};

inline Plan delayed_plan(const DelayedSetup& setup) {
  const TempDirectory directory;
  Case c;
  c.model = directory.write("small.json", std::string(R"({"layers": 2, "width": 32, "ffn": 96, "heads": 2,
    "kv_heads": 1, "head_dim": 16, "vocab": 112, "qk_norm": true)") +
                                              keys_of(setup.kind) + "}");
  if (setup.kind != Kind::dense) c.aux = 0;  // the auxiliary loss depends on each rank's share of the tokens
  c.recipe = setup.recipe;
  if (!setup.history.empty())
    c.recipe = directory.write("mine.json", with_history(setup.recipe, setup.history).dump());
  c.seq = 32;
  c.batch = setup.batch;
  c.gpus = setup.ranks;
  c.accumulation = setup.accumulation;
  c.parallel = setup.parallel;
  c.gather = setup.gather;
  c.recompute = setup.recompute;
  c.head = setup.head;
  c.ep = setup.ep;
  c.exchange = setup.exchange;
  c.dispatch = setup.dispatch;
  c.clip = 0;
  c.lr = 1e-3;
  Plan plan = validate(c);
  REQUIRE(!unsupported_reason(plan));
  plan.optimizer.lr = setup.lr;
  return plan;
}

using State = std::map<std::string, std::vector<float>>;

/// Returns this rank's delayed scales.
inline State scales_of(Rank& rank) {
  State state;
  for (const StateTensor& tensor : rank.parameters().delayed()->state()) {
    std::vector<float>& values = state[tensor.name];
    values.resize(static_cast<std::size_t>(tensor.values.size()));
    rank.device().download(values.data(), tensor.values);
  }
  return state;
}

struct DelayedOutcome {
  std::vector<double> losses;
  State scales;  ///< of rank 0 after the last step
};

/// Trains for `steps` steps and calls body(rank, data, step) after each.
template <class Body>
DelayedOutcome run(const Plan& plan, int steps, Body&& body) {
  DelayedOutcome outcome;
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    for (int step = 0; step < steps; ++step) {
      rank.prepare(data, step, 0);
      rank.enqueue();
      const StepResult result = rank.finish();
      if (rank.comm().rank() == 0) outcome.losses.push_back(result.loss);
      body(rank, data, step);
    }
    if (rank.comm().rank() == 0 && rank.parameters().delayed()) outcome.scales = scales_of(rank);
  });
  return outcome;
}

inline DelayedOutcome run(const DelayedSetup& setup, int steps) {
  return run(delayed_plan(setup), steps, [](Rank&, const DataSource&, int) {});
}

}  // namespace precbench::testing::delayed
