// The held-out loss: its value, its memory, and that ranks, recipe and sharding do not change the evaluated
// tokens.
#include "bench/step/held_out.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "bench/case/plan.h"
#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/statistics.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr int kT = 32;

/// Returns tokens of a vocabulary of 100 without repeated passages.
std::string tokens_of(int sequences) {
  std::string bytes;
  std::uint32_t state = 7;
  for (int i = 0; i <= sequences * kT; ++i) {
    state = state * 1664525u + 1013904223u;
    bytes += {static_cast<char>((state >> 16) % 100), '\0'};
  }
  return bytes;
}

class HeldOutFiles {
  TempDirectory directory_;

 public:
  std::string tokens = directory_.write("held.u16", tokens_of(12));

  /// Uses dimensions that every recipe can run; holds out 7 sequences, in batches of 2.
  Case case_of(const std::string& recipe, int ranks, const std::string& parallel) {
    Case c;
    c.model = directory_.write("small.json", R"({"layers": 2, "width": 128, "ffn": 256, "heads": 2,
        "kv_heads": 1, "head_dim": 64, "vocab": 100, "qk_norm": true})");
    c.recipe = recipe;
    c.seq = kT;
    c.batch = 2;
    c.gpus = ranks;
    c.parallel = parallel;
    c.shard_group = parallel == "hsdp" ? 2 : 1;
    c.eval_data = tokens;
    c.eval_tokens = 7 * kT;
    return c;
  }
};

/// Evaluates the initial weights on every rank. Checks that no more memory than a step's is used.
Evaluation evaluated(const Plan& plan) {
  const HeldOut held_out(plan);
  const DryRun accounts = dry_run(plan, nullptr);
  std::vector<Evaluation> results(plan.ranks);
  std::vector<MemoryUse> highest(plan.ranks);
  run_cpu_ranks(plan, accounts.extent, [&](Rank& rank, const DataSource&) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    results[rank.comm().rank()] = held_out.evaluate(rank, 1);
    highest[rank.comm().rank()] = rank.arena().highest();
  });
  for (const Evaluation& other : results) {
    CHECK(other.loss == results[0].loss);
    CHECK(other.bf16_loss == results[0].bf16_loss);
  }
  for (const MemoryUse& use : highest)
    for (int segment = 0; segment < kSegments; ++segment) {
      INFO(name_of(static_cast<Segment>(segment)));
      CHECK(use.bytes[segment] <= accounts.highest.bytes[segment]);
    }
  return results[0];
}

}  // namespace

TEST_CASE("HeldOut: the loss equals that of a training step on the same sequences", "[held_out]") {
  HeldOutFiles files;
  for (const char* recipe : {"bf16", "tensorwise", "blockwise", "mxfp8"})
    for (const auto& [recompute, head] : {std::pair{"none", "bf16"},
                                          {"none", "recipe"},
                                          {"block", "recipe"},
                                          {"block:1", "bf16"},
                                          {"attention+ffn+norm", "bf16"}}) {
      INFO(recipe << ", recompute " << recompute << ", head " << head);
      Case c = files.case_of(recipe, 1, "ddp");
      c.recompute = recompute;
      c.model = "tiny";  // a vocabulary size that a quantized head supports
      c.head = head;
      c.eval_tokens = 2 * kT;  // one batch
      const Plan plan = validate(c);
      const Evaluation evaluation = evaluated(plan);
      CHECK((evaluation.step == 1 && evaluation.tokens == 2 * kT));
      const std::unique_ptr<DataSource> data = open_data(held_out_options(plan.fields, plan.model));
      double loss = 0;
      run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource&) {
        rank.parameters().initialize(plan.seed, kInitialDeviation);
        rank.prepare(*data, 0, 0);
        rank.enqueue();
        loss = rank.finish().loss;
      });
      CHECK(std::fabs(*evaluation.loss - loss) < 1e-6);  // a different order of summation
      // bf16_loss uses the same weights in BF16 and equals the loss of the recipe bf16.
      c.recipe = "bf16", c.head = "bf16";
      CHECK(evaluation.bf16_loss == evaluated(validate(c)).loss);
      CHECK((evaluation.bf16_loss == evaluation.loss) == (std::string(recipe) == "bf16"));
    }
}

TEST_CASE("HeldOut: neither the number of ranks nor the sharding changes a bit of the loss", "[held_out]") {
  HeldOutFiles files;
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
    const Evaluation one = evaluated(validate(files.case_of(recipe, 1, "ddp")));
    CHECK(one.tokens == 7 * kT);
    for (const auto& [ranks, parallel] :
         {std::pair{2, "ddp"}, {2, "fsdp"}, {3, "ddp"}, {3, "fsdp"}, {4, "hsdp"}, {8, "ddp"}}) {
      INFO(recipe << ", " << ranks << " ranks, " << parallel);
      const Evaluation many = evaluated(validate(files.case_of(recipe, ranks, parallel)));
      CHECK(many.tokens == one.tokens);
      CHECK(many.loss == one.loss);
      CHECK(many.loss_error == one.loss_error);
      CHECK(many.bf16_loss == one.bf16_loss);
    }
  }
}

TEST_CASE("HeldOut: ranks that share sequences evaluate the same ones", "[held_out][context]") {
  HeldOutFiles files;
  for (const char* recipe : {"bf16", "tensorwise"}) {
    Case c = files.case_of(recipe, 1, "ddp");
    const Evaluation one = evaluated(validate(c));
    for (const auto& [ranks, context, parallel] :
         {std::tuple{2, 2, "ddp"}, {2, 2, "fsdp"}, {4, 4, "fsdp"}, {4, 2, "ddp"}, {8, 2, "hsdp"}}) {
      INFO(recipe << ", " << ranks << " ranks, " << parallel << ", context " << context);
      c = files.case_of(recipe, ranks, parallel);
      c.context = context;
      const Evaluation many = evaluated(validate(c));
      CHECK(many.tokens == one.tokens);
      // Tensors are scaled by the amax of a rank's own tokens: measured 2e-3.
      const double bound = std::string(recipe) == "bf16" ? 1e-6 : 5e-3;
      CHECK(std::fabs(*many.loss - *one.loss) <= bound);
      CHECK(std::fabs(*many.bf16_loss - *one.bf16_loss) <= 1e-6);
    }
  }
}

TEST_CASE("HeldOut: losses of tensor ranks count once", "[held_out][tensor]") {
  HeldOutFiles files;
  Case c = files.case_of("bf16", 1, "ddp");
  c.model = "tiny";
  const Evaluation one = evaluated(validate(c));
  for (const auto& [ranks, parallel] : {std::tuple{2, "ddp"}, {4, "fsdp"}}) {
    Case divided = files.case_of("bf16", ranks, parallel);
    divided.model = "tiny", divided.tensor = 2;
    const Evaluation many = evaluated(validate(divided));
    CHECK(many.tokens == one.tokens);
    CHECK(std::fabs(*many.loss - *one.loss) <= 5e-3);  // partial outputs are rounded to BF16
    CHECK(*many.bf16_loss == *many.loss);
  }
}

TEST_CASE("HeldOut: every seed and recipe reads the same sequences", "[held_out]") {
  HeldOutFiles files;
  Case c = files.case_of("bf16", 1, "ddp");
  const auto first_tokens = [&] {
    const Plan plan = validate(c);
    std::vector<std::int32_t> tokens(kT + 1);
    open_data(held_out_options(plan.fields, plan.model))->sequence(0, kT, tokens.data());
    return tokens;
  };
  const std::vector<std::int32_t> tokens = first_tokens();
  c.seed = 4711;
  c.recipe = "mxfp8";
  CHECK(first_tokens() == tokens);
}

TEST_CASE("HeldOut: the standard error is taken over sequences", "[held_out]") {
  HeldOutFiles files;
  Case c = files.case_of("bf16", 1, "ddp");
  c.eval_tokens = 1;  // rounded up to a whole sequence
  const Evaluation one = evaluated(validate(c));
  CHECK(one.tokens == kT);
  CHECK(!one.loss_error.has_value());
  c.eval_tokens = kT + 1;
  const Evaluation two = evaluated(validate(c));
  CHECK(two.tokens == 2 * kT);
  // The standard error of two values is half their distance, which is the distance of each from the mean.
  REQUIRE(two.loss_error.has_value());
  CHECK(std::fabs(*two.loss_error - std::fabs(*two.loss - *one.loss)) < 1e-9);
  CHECK(*two.loss_error > 1e-4);
}

namespace {

/// Reads the initial weights on every rank. The arena throws if it needs more memory than a dry run found.
std::vector<Reading> readings_of(const Plan& plan) {
  const HeldOut held_out(plan);
  std::vector<std::vector<Reading>> results(plan.ranks);
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource&) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    results[rank.comm().rank()] = held_out.read(rank).value();
  });
  for (const std::vector<Reading>& other : results)
    for (std::size_t i = 0; i < results[0].size(); ++i) CHECK(other.at(i).groups == results[0][i].groups);
  return results[0];
}

}  // namespace

TEST_CASE("HeldOut: read() evaluates the same weights in BF16 and in other recipes", "[held_out]") {
  HeldOutFiles files;
  std::vector<std::vector<Reading>> all;
  for (const char* recipe : {"bf16", "mxfp8", "tensorwise_delayed"}) {
    INFO(recipe);
    Case c = files.case_of(recipe, 1, "ddp");
    c.eval_recipes = "rowwise_e5m2,mxfp8,tensorwise_delayed";
    const Plan plan = validate(c);
    const std::vector<Reading>& readings = all.emplace_back(readings_of(plan));
    REQUIRE(readings.size() == 4);
    CHECK((readings[0].recipe == "bf16" && readings[1].recipe == "rowwise_e5m2" &&
           readings[2].recipe == "mxfp8"));
    const Evaluation evaluation = evaluated(plan);
    CHECK(readings[0].loss == evaluation.bf16_loss);
    CHECK_FALSE(readings[0].outputs.has_value());
    for (const Reading& reading : readings) {
      CHECK(reading.groups.size() == 7);  // one for each sequence
      CHECK(std::fabs(mean_and_spread(reading.groups).mean - *reading.loss) < 1e-7);
      // Logits are in FP32 where outputs are compared, but in BF16 in the step.
      if (reading.recipe == recipe) CHECK(std::fabs(*reading.loss - *evaluation.loss) < 2e-3);
      if (!reading.outputs) continue;
      CHECK((reading.outputs->tokens == 7 * kT && reading.outputs->held_out));  // none that wrapped around
      CHECK(*reading.outputs->divergence.mean > 0);
      // The mean of the signed differences cannot exceed that of their sizes.
      CHECK(std::fabs(*reading.loss - *readings[0].loss) <= *reading.outputs->log_probability.mean * 1.2);
    }
    // Two mantissa bits are further from BF16 than three.
    CHECK(*readings[1].outputs->divergence.mean > 2 * *readings[2].outputs->divergence.mean);
  }
  // Readings depend on the weights alone, not on the recipe in which they were trained.
  for (const std::vector<Reading>& readings : all)
    for (std::size_t i = 0; i < readings.size(); ++i) CHECK(readings[i].groups == all[0][i].groups);
}

TEST_CASE("HeldOut: neither the number of ranks nor the sharding changes a bit of a reading", "[held_out]") {
  HeldOutFiles files;
  const auto case_of = [&](int ranks, const char* parallel) {
    Case c = files.case_of("bf16", ranks, parallel);
    c.eval_recipes = "rowwise,mxfp8";
    return validate(c);
  };
  const std::vector<Reading> one = readings_of(case_of(1, "ddp"));
  for (const auto& [ranks, parallel] : {std::pair{2, "fsdp"}, {3, "ddp"}, {4, "hsdp"}}) {
    INFO(ranks << " ranks, " << parallel);
    const std::vector<Reading> many = readings_of(case_of(ranks, parallel));
    for (std::size_t i = 0; i < one.size(); ++i) {
      CHECK(many.at(i).groups == one[i].groups);
      if (!one[i].outputs) continue;
      CHECK(many[i].outputs->tokens == one[i].outputs->tokens);
      CHECK(many[i].outputs->largest_divergence == one[i].outputs->largest_divergence);
    }
  }
}

TEST_CASE("HeldOut: weights gathered in FP8 have no BF16 loss", "[held_out]") {
  HeldOutFiles files;
  Case c = files.case_of("tensorwise", 2, "fsdp");
  c.gather = "fp8";
  const Evaluation evaluation = evaluated(validate(c));
  CHECK(evaluation.loss.has_value());
  CHECK(!evaluation.bf16_loss.has_value());
}

TEST_CASE("HeldOut: overlap() counts held-out sequences that training has seen", "[held_out]") {
  HeldOutFiles files;
  const TempDirectory directory;
  Case c = files.case_of("bf16", 1, "ddp");
  const std::string all = tokens_of(12);
  int files_written = 0;  // each file needs a new name: a process reads a name only once
  const auto overlap = [&](const std::string& training, std::size_t steps) {
    c.data = directory.write(fmt::format("{}.u16", ++files_written), training);
    const Plan plan = validate(c);
    return HeldOut(plan).overlap(*open_data(data_options(plan.fields, plan.model)), steps);
  };
  CHECK(overlap(all, 1) ==
        std::vector<std::string>{"--eval-data: holds what --data holds: its loss is one of "
                                 "text that was trained on"});
  std::string more;  // makes the file differ from the held-out one
  for (int i = 0; i < kT; ++i) more += {'\1', '\0'};
  CHECK(overlap(all + more, 6).size() == 1);
  CHECK(overlap(more + all + more, 7)[0] ==
        "--eval-data: 7 of 7 sequences begin with 16 tokens in a row that were trained on");
  CHECK(overlap(more + all + more, 0).empty());
  std::string reversed(all.rbegin(), all.rend());
  reversed.erase(0, 1), reversed += '\0';
  CHECK(overlap(reversed, 6).empty());
}
