// For tests: trains a small model of uneven sizes for a few steps in any setup and collects the results.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/predict/predict.h"
#include "bench/step/rank.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/testing/temp_directory.h"

namespace precbench::testing {

inline constexpr int kSteps = 3;

struct Setup {
  std::string recipe = "bf16";
  bool tied = false;
  int ranks = 1;
  std::string parallel = "ddp";
  int shard_group = 1;
  std::string gather = "bf16";
  bool reduce_amax = false;
  bool whole_blocks = false;  ///< a model whose matrices are whole 128x128 blocks
  int batch = 2;              ///< sequences per rank
  int accumulation = 1;
  double clip = 0;  ///< 0: the gradient norm is the one sum whose order depends on the sharding
  std::string grads = "fp32", master = "fp32", moments = "fp32";
  std::string recompute = "none";
  std::string keep_bf16 = "";
  int layers = 2;
  std::string reshard = "on", grad_sync = "every";
  std::string model = "";  ///< JSON of a model with experts to use instead
  std::string routing = "learned";
  double aux = Case{}.aux;
  int ep = 1;
  int context = 1, tensor = 1;
  std::string context_exchange = "auto", tensor_gather = "auto";
  std::int64_t seq = 0;    ///< tokens per sequence; 0: the model's
  std::int64_t steps = 0;  ///< --steps; 0: auto
  std::string amax = "";   ///< --reduce-amax; empty: as reduce_amax says
  std::string data = "synthetic", packing = "off";
};

/// Returns the plan of a setup. Units have 12,384 (a block) and 3,200 or 3,232 (embedding and head) elements,
/// none of which is divisible by two or three shards without padding. The linear layers' dimensions are
/// multiples of 32, so that every recipe below can run them.
inline Plan plan_of(const Setup& setup) {
  const TempDirectory directory;
  Case c;
  c.model = directory.write("uneven.json",
                            fmt::format(R"({{"layers": {}, "width": 32, "ffn": 96, "heads": 2, "kv_heads": 1,
                                      "head_dim": 16, "vocab": 100, "qk_norm": true, "tied": {}}})",
                                        setup.layers, setup.tied));
  c.recipe = setup.recipe;
  if (setup.whole_blocks)
    c.model =
        directory.write("blocks.json", R"({"layers": 2, "width": 128, "ffn": 256, "heads": 2, "kv_heads": 1,
                                      "head_dim": 64, "vocab": 100})");
  if (!setup.model.empty()) c.model = directory.write("experts.json", setup.model);
  c.routing = setup.routing;
  c.aux = setup.aux;
  c.ep = setup.ep;
  c.context = setup.context;
  c.tensor = setup.tensor;
  c.tensor_gather = setup.tensor_gather;
  c.context_exchange = setup.context_exchange;
  c.steps = setup.steps;
  c.seq = setup.seq ? setup.seq : setup.whole_blocks ? 64 : 32;
  c.batch = setup.batch;
  c.gather = setup.gather;
  c.reduce_amax = !setup.amax.empty() ? setup.amax : setup.reduce_amax ? "on" : "off";
  c.gpus = setup.ranks;
  c.parallel = setup.parallel;
  c.shard_group = setup.shard_group;
  c.accumulation = setup.accumulation;
  c.clip = setup.clip;
  c.grads = setup.grads;
  c.master = setup.master;
  c.moments = setup.moments;
  c.recompute = setup.recompute;
  c.reshard = setup.reshard;
  c.grad_sync = setup.grad_sync;
  c.keep_bf16 = setup.keep_bf16;
  c.lr = 1e-3;
  c.data = setup.data;
  c.packing = setup.packing;
  return validate(c);
}

/// Runs body(rank, data) on every rank of the plan, in exactly the predicted amount of memory.
template <class Body>
void with_ranks(const Plan& plan, Body&& body) {
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent + watching_bytes(plan), body);
}

inline StepResult step(Rank& rank, const DataSource& data, std::int64_t number) {
  rank.prepare(data, number, 0);
  rank.enqueue();
  return rank.finish();
}

/// Results and final state of kSteps steps from one initialization; the same on every rank.
struct Trained {
  std::vector<double> losses, norms;
  Named gradients, weights;  ///< gradients of the last step
};

inline Trained train(const Setup& setup) {
  const Plan plan = plan_of(setup);
  std::vector<Trained> results(plan.ranks);
  with_ranks(plan, [&](Rank& rank, const DataSource& data) {
    Trained& mine = results[rank.comm().rank()];
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    for (int i = 0; i < kSteps; ++i) {
      const StepResult result = step(rank, data, i);
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    mine.gradients = saved(rank.parameters(), Parameters::Kind::gradients);
    mine.weights = saved(rank.parameters(), Parameters::Kind::weights);
  });
  for (const Trained& other : results) {
    CHECK(other.losses == results[0].losses);
    CHECK(other.norms == results[0].norms);
    CHECK(first_difference(other.gradients, results[0].gradients) == "");
    CHECK(first_difference(other.weights, results[0].weights) == "");
  }
  return results[0];
}

inline void check_same_bits(const Trained& x, const Trained& y) {
  CHECK(x.losses == y.losses);
  CHECK(first_difference(x.gradients, y.gradients) == "");
  CHECK(first_difference(x.weights, y.weights) == "");
}

}  // namespace precbench::testing
