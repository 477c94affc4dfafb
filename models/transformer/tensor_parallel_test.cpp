// Tensor parallelism: ranks that divide all matrices train like one rank. Planted faults show that the comparison would
// notice targets and tokens of another rank's part of the vocabulary.
#include <string>

#include "models/transformer/divided_step_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// A rank takes its part of the vocabulary for the first: targets are off, or it embeds other ranks' tokens.
struct TargetOff : NoFault {
  using NoFault::plant;
  ops::LogitStats plant(ops::LogitStats op) const {
    op.first = 0;
    return op;
  }
};
struct ForeignTokens : NoFault {
  using NoFault::plant;
  ops::Embedding plant(ops::Embedding op) const {
    op.first = 0;
    return op;
  }
};

ModelConfig divisible_model() {
  ModelConfig model = find_model("tiny");
  model.layers = 2, model.heads = 8, model.kv_heads = 4, model.head_dim = 16;
  return model;
}

StepSetup fp32_setup(const ParallelDims& parallel, std::int64_t B = 1) {
  StepSetup setup{.model = divisible_model(), .B = B, .T = 32};
  setup.reference = true;
  setup.parallel = parallel;
  return setup;
}

void check_fp32(const StepSetup& setup) {
  INFO(text_of(setup.parallel));
  CHECK(excess(run_divided(setup), run_divided(undivided(setup)), kFp32) <= 1);
}

}  // namespace

TEST_CASE("tensor: an FP32 model trains like on one rank in every layout", "[tensor]") {
  for (const ParallelDims& parallel : {ParallelDims{.tensor = 2},
                                       {.tensor = 4},
                                       {.data = 2, .tensor = 2},
                                       {.shard = 2, .tensor = 2},
                                       {.data = 2, .shard = 2, .tensor = 2},
                                       {.context = 2, .tensor = 2},
                                       {.shard = 2, .context = 2, .tensor = 2, .context_shards = true}})
    check_fp32(fp32_setup(parallel));
}

TEST_CASE("tensor: model variants train like on one rank", "[tensor]") {
  StepSetup setup = fp32_setup({.tensor = 2}, 3);
  setup.model.tied = !setup.model.tied;
  check_fp32(setup);
  setup.model.qk_norm = true;
  setup.model.kv_heads = setup.model.heads;
  check_fp32(setup);
  setup.accumulation = 2;
  check_fp32(setup);
  setup.parallel = {.shard = 2, .tensor = 2};
  check_fp32(setup);
  setup.recompute = kRecomputeBlocks;
  check_fp32(setup);
}

TEST_CASE("tensor: with shared amaxes or whole blocks an FP32 model has one rank's scales", "[tensor]") {
  // With the same scales, rounding of sums may change a code here and there: measured 5e-7, and 0.16 without.
  constexpr double kFewCodes = 2e-2;
  for (const char* recipe : {"tensorwise", "mxfp8"}) {
    StepSetup setup = fp32_setup({.tensor = 2});
    setup.T = 128, setup.recipe = find_recipe(recipe), setup.model.layers = 1;
    setup.reduce_amax = true;
    const DividedRun one = run_divided(undivided(setup));
    const auto first_apart = [&] {
      return farthest(run_divided(setup).first_gradients, one.first_gradients).distance;
    };
    const double shared = first_apart();
    setup.reduce_amax = false;  // slices of inputs and weights have scales of their own
    const double own = first_apart();
    INFO(recipe << ": " << shared << ", without shared amaxes " << own);
    CHECK(shared <= kFewCodes);
    CHECK((own > 5 * kFewCodes) == (recipe == std::string("tensorwise")));
  }
}

TEST_CASE("tensor: a fault in one rank's part of the vocabulary would be noticed", "[tensor]") {
  const StepSetup setup = fp32_setup({.tensor = 2});
  const DividedRun one = run_divided(undivided(setup));
  CHECK(loss_difference(run_divided(setup, TargetOff{}), one) > 1e-3);
  CHECK(loss_difference(run_divided(setup, ForeignTokens{}), one) > 1e-4);
}
