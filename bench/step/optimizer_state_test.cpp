// Every optimizer, and every dtype of AdamW's state, on several ranks: sharding changes no bit, except the
// rounding of Adafactor's sums; runs resume from checkpoints; and memory is as predicted.
#include <cmath>

#include "bench/case/plan.h"
#include "bench/predict/predict.h"
#include "bench/step/checkpoint.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct OptimizerSetup {
  std::string optimizer = "adamw", moments = "fp32", second = "same";
  int ranks = 1;
  std::string parallel = "ddp";
  int shard_group = 1;
  std::string master = "fp32", grads = "fp32", weights = "bf16", recipe = "bf16";
  double clip = 0;  ///< 0: the norm is a sum whose order depends on the sharding
  double lr = 1e-3;
};

/// Units have 12,320 (a block) and 3,200 or 3,232 elements, not divisible into two or three shards without
/// padding.
Plan optimizer_plan(const OptimizerSetup& setup, const std::string& checkpoints = "") {
  const TempDirectory directory;
  Case c;
  c.model = directory.write("uneven.json", R"({"layers": 2, "width": 32, "ffn": 96, "heads": 2, "kv_heads": 1,
                                              "head_dim": 16, "vocab": 100})");
  c.seq = 32;
  c.batch = 1;
  c.optimizer = setup.optimizer;
  c.moments = setup.moments;
  c.second_moment = setup.second;
  c.gpus = setup.ranks;
  c.parallel = setup.parallel;
  c.shard_group = setup.shard_group;
  c.master = setup.master;
  c.grads = setup.grads;
  c.weights = setup.weights;
  c.recipe = setup.recipe;
  c.clip = setup.clip;
  c.lr = setup.lr;
  c.steps = 4;
  c.checkpoint_every = 2;
  c.checkpoint_dir = checkpoints;
  return validate(c);
}

std::string words_of(const OptimizerSetup& s) {
  return s.optimizer + ", moments " + s.moments + " and " + s.second + ", " + std::to_string(s.ranks) +
         " ranks " + s.parallel + ", master " + s.master + ", gradients " + s.grads + ", weights " +
         s.weights + ", " + s.recipe;
}

struct OptimizerOutcome {
  std::vector<double> losses;
  Named weights;
};

/// Runs steps [from, 4), from the checkpoint after step `from` if that is above 0. `write`: writes one after
/// step 2.
OptimizerOutcome train(const Plan& plan, std::int64_t from = 0, bool write = false) {
  std::vector<OptimizerOutcome> results(plan.ranks);
  std::unique_ptr<Checkpoint> checkpoint;
  if (from > 0) {
    checkpoint = std::make_unique<Checkpoint>(checkpoint_at(plan, from));
    checkpoint->check_continues(plan);
  }
  // The arena holds exactly the predicted memory.
  run_cpu_ranks(
      plan, dry_run(plan, nullptr).extent + watching_bytes(plan), [&](Rank& rank, const DataSource& data) {
        OptimizerOutcome& mine = results[rank.comm().rank()];
        if (checkpoint)
          rank.continue_from(checkpoint->position(), checkpoint->reader());
        else
          rank.parameters().initialize(plan.seed, kInitialDeviation);
        for (std::int64_t step = from; step < 4; ++step) {
          rank.prepare(data, step, 0);
          rank.enqueue();
          mine.losses.push_back(rank.finish().loss);
          if (write && step == 1) {
            const auto why = write_checkpoint(rank, plan, 2, {mine.losses, mine.losses, mine.losses, {}});
            if (why) throw InvalidInput(*why);
          }
        }
        mine.weights = saved(rank.parameters(), Parameters::Kind::weights);
      });
  for (const OptimizerOutcome& other : results) {
    CHECK(other.losses == results[0].losses);
    CHECK(first_difference(other.weights, results[0].weights) == "");
  }
  return results[0];
}

std::vector<OptimizerSetup> kinds() {
  return {{.optimizer = "lion"},
          {.optimizer = "lion", .moments = "bf16"},
          {.optimizer = "adafactor"},
          {.optimizer = "muon"},
          {.optimizer = "muon", .moments = "bf16"},
          {.moments = "fp32", .second = "bf16"},
          {.moments = "fp16"},
          {.moments = "e4m3", .second = "fp16"},
          {.moments = "coat"},
          {.moments = "e4m3", .second = "coat"},
          {.master = "fp16"},
          {.grads = "e4m3"},
          {.moments = "coat", .grads = "e4m3"},
          {.weights = "e4m3", .recipe = "tensorwise"},
          {.master = "fp16", .weights = "e4m3", .recipe = "tensorwise"},
          {.recipe = "msamp_o1"},
          {.recipe = "msamp_o2"},
          {.recipe = "msamp_o3"}};
}

}  // namespace

TEST_CASE("Rank: sharding changes no bit of any optimizer's steps", "[rank][optimizer]") {
  for (OptimizerSetup setup : kinds())
    for (const int ranks : {2, 3}) {
      setup.ranks = ranks;
      if (setup.master == "fp32" && setup.weights == "bf16" && ranks == 3) setup.master = "bf16_sr";
      INFO(words_of(setup));
      const OptimizerOutcome whole = train(optimizer_plan(setup));
      setup.parallel = "fsdp";
      const Plan plan = optimizer_plan(setup);
      REQUIRE(!unsupported_reason(plan));
      const OptimizerOutcome sharded = train(plan);
      CHECK(sharded.losses.back() != sharded.losses.front());
      if (setup.optimizer == "adafactor") {
        // Two ranks add Adafactor's sums over rows and columns in another order, which also changes
        // stochastic roundings.
        const Farthest off = farthest(sharded.weights, whole.weights);
        INFO(off.name);
        CHECK(off.distance <= (ranks == 2 ? 1e-5 : 3e-4));
        continue;
      }
      CHECK(sharded.losses == whole.losses);
      CHECK(first_difference(sharded.weights, whole.weights) == "");
    }
}

TEST_CASE("Checkpoint: a run of any optimizer resumes with the same bits", "[state][optimizer]") {
  for (OptimizerSetup setup : kinds())
    for (const char* parallel : {"ddp", "fsdp", "hsdp"}) {
      setup.parallel = parallel;
      setup.ranks = setup.parallel == "ddp" ? 1 : setup.parallel == "fsdp" ? 2 : 4;
      setup.shard_group = setup.parallel == "hsdp" ? 2 : 1;
      setup.clip = 1;
      INFO(words_of(setup));
      const TempDirectory directory;
      const Plan plan = optimizer_plan(setup, directory.path().string());
      if (setup.parallel == "hsdp" && plan.parameters.gradients == DType::e4m3) {
        CHECK(unsupported_reason(plan).value_or("").starts_with("--grads e4m3: hsdp"));
        continue;
      }
      REQUIRE(!unsupported_reason(plan));
      const OptimizerOutcome straight = train(plan, 0, true), rest = train(plan, 2);
      CHECK(std::vector(straight.losses.begin() + 2, straight.losses.end()) == rest.losses);
      CHECK(first_difference(straight.weights, rest.weights) == "");
    }
}

TEST_CASE("optimizer: norm gains beside an FP16 master keep updates that FP16 would lose", "[optimizer]") {
  // AdamW moves a gain by about the learning rate. FP16's neighbors of 1 are 0.0005 below and 0.001 above it.
  for (const char* recipe : {"msamp_o1", "msamp_o2", "msamp_o3"}) {
    const OptimizerSetup setup{.recipe = recipe, .lr = 1e-5};
    INFO(words_of(setup));
    for (const auto& [name, values] : train(optimizer_plan(setup)).weights) {
      if (name.find("norm") == std::string::npos) continue;
      INFO(name);
      std::int64_t moved = 0;
      for (const float x : values) {
        CHECK(std::fabs(x - 1) < 1e-4);
        moved += x != 1;
      }
      CHECK(moved * 10 >= 9 * static_cast<std::int64_t>(values.size()));  // E4M3 rounds some gradients to 0
    }
  }
}

TEST_CASE("dry_run: optimizer state takes the bytes of its dtypes", "[memory][optimizer]") {
  const auto bytes = [](OptimizerSetup setup, int ranks) {
    setup.ranks = ranks;
    setup.parallel = ranks == 1 ? "ddp" : "fsdp";
    Case c = optimizer_plan(setup).fields;
    c.model = "tiny";
    const Plan plan = validate(c);
    const std::int64_t moments = dry_run(plan, nullptr).highest.bytes[static_cast<int>(Segment::moments)];
    return static_cast<double>(moments) * ranks / static_cast<double>(parameter_count(plan.model));
  };
  for (const int ranks : {1, 4}) {
    const auto is = [&](const OptimizerSetup& setup, double want) {
      INFO(words_of(setup) << ", " << ranks << " ranks");
      const double got = bytes(setup, ranks);
      CHECK(got >= want);
      CHECK(got <= want * 1.03);
    };
    is({}, 8);
    is({.optimizer = "lion"}, 4);
    is({.moments = "bf16"}, 4);
    is({.moments = "e4m3", .second = "fp16"}, 3);
    is({.moments = "fp32", .second = "e4m3"}, 5);
    is({.moments = "coat"}, 2 + 2 * 12.0 / 128);
  }
  CHECK(bytes({.optimizer = "adafactor"}, 1) < 0.1);
  const double muon = bytes({.optimizer = "muon"}, 1);
  CHECK((muon > 4 && muon < 7));  // v of embedding, head and gains only
}

TEST_CASE("dry_run: state of MS-AMP's levels takes the bytes of its dtypes", "[memory][optimizer]") {
  struct Level {
    const char* recipe;
    double weights, master, moments, gradients;  // bytes per parameter
  };
  for (const auto& [recipe, weights, master, moments, gradients] : {Level{"bf16", 2, 4, 8, 4},
                                                                    {"msamp_o1", 0, 2, 8, 1},
                                                                    {"msamp_o2", 0, 2, 3, 1},
                                                                    {"msamp_o3", 1, 2, 3, 1}})
    for (const int ranks : {1, 8}) {
      INFO(recipe << ", " << ranks << " ranks");
      Case c;
      c.model = "llama3.2-3b";
      c.recipe = recipe;
      c.seq = 16;  // short, so that no activation hides the weights' buffers
      c.batch = 1;
      c.gpus = ranks;
      c.parallel = ranks == 1 ? "ddp" : "fsdp";
      const Plan plan = validate(c);
      REQUIRE(!unsupported_reason(plan));
      const MemoryUse use = dry_run(plan, nullptr).highest;
      const auto bytes = [&](Segment segment) {
        return static_cast<double>(use.bytes[static_cast<int>(segment)]) * ranks;
      };
      const auto all = static_cast<double>(parameter_count(plan.model));
      const Layout layout(plan.model, 1);
      const auto edges = static_cast<double>(layout.units()[layout.head_unit()].size);
      const auto block = static_cast<double>(layout.units()[layout.block_unit(0)].size);
      const auto is = [](double got, double want) {
        CHECK(got >= want * 0.999);
        CHECK(got <= want * 1.01);
      };
      is(bytes(Segment::master), master * all);
      is(bytes(Segment::moments), moments * all);
      // With FP8 gradients the backward pass holds a block and the edges (embedding, head) in BF16 on every
      // rank.
      is(bytes(Segment::gradients), gradients * all + (gradients == 1 ? 2 * (block + edges) * ranks : 0));
      if (plan.fp8_weights) {  // plus dgrad's copy of one matrix of a block
        CHECK(bytes(Segment::quantized_weights) >= 0.999 * (all - edges));
        CHECK(bytes(Segment::quantized_weights) <= all - edges + block * ranks);
      }
      if (ranks > 1) continue;
      // One rank rounds an FP16 master to BF16 in a buffer for the edges and, unless blocks are FP8, for one
      // block.
      if (master == 2) is(bytes(Segment::weights), 2 * (edges + (plan.fp8_weights ? 0 : block)));
      if (master == 4) is(bytes(Segment::weights), weights * all);
    }
}

TEST_CASE("validate: a recipe's master and weights and gradients apply unless the case sets them",
          "[case][optimizer]") {
  const auto kept = [](const nlohmann::ordered_json& fields) {
    const Plan plan = validate(case_from_json(fields));
    return std::pair(plan.parameters.master, plan.parameters.gradients);
  };
  CHECK(kept({{"recipe", "msamp_o1"}}) == std::pair(Master::fp16, DType::e4m3));
  CHECK(kept({{"recipe", "msamp_o1"}, {"master", "bf16_sr"}}) == std::pair(Master::bf16_sr, DType::e4m3));
  CHECK(kept({{"recipe", "msamp_o1"}, {"grads", "bf16"}}) == std::pair(Master::fp16, DType::bf16));
  CHECK(kept({{"recipe", "tensorwise"}}) == std::pair(Master::fp32, DType::f32));
  CHECK(validate(case_from_json({{"recipe", "msamp_o3"}})).fp8_weights);
  CHECK(!validate(case_from_json({{"recipe", "msamp_o2"}})).fp8_weights);
}

TEST_CASE("validate: a recipe's moment formats apply unless the case sets them", "[case][optimizer]") {
  const auto formats = [](const nlohmann::ordered_json& fields) {
    const MomentFormats f = validate(case_from_json(fields)).parameters.moments;
    return std::string(name_of(f.m)) + " " + name_of(f.v);
  };
  CHECK(formats({{"recipe", "bf16"}}) == "fp32 fp32");
  CHECK(formats({{"recipe", "coat"}}) == "coat coat");
  CHECK(formats({{"recipe", "bf16_moments"}}) == "bf16 bf16");
  CHECK(formats({{"recipe", "coat"}, {"moments", "bf16"}}) == "bf16 bf16");
  CHECK(formats({{"recipe", "coat"}, {"second_moment", "fp16"}}) == "fp32 fp16");
  CHECK(formats({{"moments", "e4m3"}, {"second_moment", "fp16"}}) == "e4m3 fp16");

  // The first recipe's formats hold for the whole run; a later recipe must have the same.
  const auto switched = [&](const std::string& recipe, const std::string& moments, const std::string& to) {
    return formats({{"recipe", recipe}, {"moments", moments}, {"switch_recipe", to}, {"steps", 10}});
  };
  CHECK(switched("coat", "fp32", "mxfp8@5") == "coat coat");
  CHECK(switched("bf16", "coat", "coat@5") == "coat coat");
  CHECK_THROWS_WITH(
      switched("bf16", "fp32", "coat@5"),
      "--switch-recipe: coat@5: its optimizer state is in coat and coat, the run's in fp32 and fp32");
  CHECK_THROWS_WITH(
      switched("coat", "fp32", "bf16_moments@5"),
      "--switch-recipe: bf16_moments@5: its optimizer state is in bf16 and bf16, the run's in coat and coat");
}
