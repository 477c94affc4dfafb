// Which uses of ranks run together: every pair either trains like one rank or is refused with a reason.
#include <functional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kDense =
    R"({"layers": 2, "width": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "head_dim": 16,
  "vocab": 128})";
constexpr const char* kExperts =
    R"({"layers": 2, "width": 64, "ffn": 128, "heads": 2, "kv_heads": 1, "head_dim": 32,
  "vocab": 128, "experts": 4, "top_k": 2, "expert_ffn": 64})";

constexpr const char* kLatent =
    R"({"layers": 2, "width": 64, "ffn": 128, "heads": 2, "head_dim": 48, "vocab": 128, "q_lora_rank": 32,
  "kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 32})";

/// A use of ranks, as flags of a case on four of them.
struct Use {
  const char* name;
  std::function<void(Case&)> set;
};

const std::vector<Use>& uses() {
  static const std::vector<Use> kUses = {
      {"ddp", [](Case& c) { c.parallel = "ddp"; }},
      {"fsdp", [](Case& c) { c.parallel = "fsdp"; }},
      {"hsdp", [](Case& c) { c.parallel = "hsdp", c.shard_group = 2; }},
      {"context", [](Case& c) { c.context = 2; }},
      {"all ranks on one sequence", [](Case& c) { c.context = 4; }},
      {"a ring of keys", [](Case& c) { c.context = 2, c.context_exchange = "ring"; }},
      {"tensor", [](Case& c) { c.tensor = 2; }},
      {"experts", [](Case& c) { c.model = kExperts, c.ep = 2; }},
      {"experts over slots", [](Case& c) { c.model = kExperts, c.ep = 4, c.exchange = "slots"; }},
      {"latent attention", [](Case& c) { c.model = kLatent; }},
      {"FP8 gather", [](Case& c) { c.recipe = "tensorwise", c.gather = "fp8"; }},
      {"FP8 weights", [](Case& c) { c.recipe = "tensorwise", c.weights = "e4m3"; }},
      {"FP8 gradients", [](Case& c) { c.grads = "e4m3"; }},
      {"amaxes over all ranks", [](Case& c) { c.recipe = "tensorwise", c.reduce_amax = "on"; }},
      {"amaxes over a sequence", [](Case& c) { c.recipe = "tensorwise", c.reduce_amax = "group"; }},
      {"resharding off", [](Case& c) { c.reshard = "off"; }},
      {"recomputation", [](Case& c) { c.recompute = "block"; }},
      {"muon", [](Case& c) { c.optimizer = "muon"; }},
      {"adafactor", [](Case& c) { c.optimizer = "adafactor"; }},
      {"adapters", [](Case& c) { c.lora_rank = 8; }},
      {"adapters beside experts", [](Case& c) { c.model = kExperts, c.lora_rank = 8; }}};
  return kUses;
}

Case case_with(const Use& a, const Use& b, const TempDirectory& directory) {
  Case c;
  c.device = "cpu";
  c.model = kDense;
  c.seq = 64;
  c.batch = 1;
  c.gpus = 4;
  c.lr = 1e-3;
  a.set(c);
  b.set(c);
  c.model = directory.write("model.json", c.model);
  return c;
}

/// The same sequences on one rank.
Case on_one(Case c) {
  c.batch = c.gpus / (c.context * c.tensor);
  c.gpus = c.context = c.tensor = c.shard_group = c.ep = 1;
  c.parallel = "ddp", c.gather = "bf16", c.reshard = "on", c.exchange = "gather", c.reduce_amax = "off";
  c.context_exchange = "auto";
  return c;
}

/// Returns the loss of the second step, after one update.
double loss_of(const Plan& plan) {
  std::vector<double> losses(plan.ranks);
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    for (int step = 0; step < 2; ++step) {
      rank.prepare(data, step, 0);
      rank.enqueue();
      losses[rank.comm().rank()] = rank.finish().loss;
    }
  });
  for (const double loss : losses) CHECK(loss == losses[0]);
  return losses[0];
}

}  // namespace

TEST_CASE("unsupported_reason: every pair of uses of ranks trains like one rank or is refused",
          "[rank][context]") {
  const TempDirectory directory;
  int runs = 0, refusals = 0;
  for (std::size_t i = 0; i < uses().size(); ++i)
    for (std::size_t j = i + 1; j < uses().size(); ++j) {
      const Use &a = uses()[i], &b = uses()[j];
      INFO(a.name << " with " << b.name);
      const Case c = case_with(a, b, directory);
      std::string why;
      try {
        why = unsupported_reason(validate(c)).value_or("");
      } catch (const InvalidInput& error) {
        why = error.what();
      }
      if (!why.empty()) {
        INFO(why);
        CHECK(why.find(": ") != std::string::npos);  // the flag or the feature, then the reason
        ++refusals;
        continue;
      }
      ++runs;
      CHECK(std::fabs(loss_of(validate(c)) / loss_of(validate(on_one(c))) - 1) <= 5e-4);  // measured: 1.3e-4
    }
  CHECK(runs > 60);
  CHECK(refusals > 5);
}
