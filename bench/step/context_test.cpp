// Context parallelism over a case's ranks: data, sharding, memory, FLOPs and failures.
#include <tuple>

#include "bench/step/shared_tokens_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("Rank: context ranks train like one rank, in every layout", "[rank][context]") {
  for (const auto& [ranks, context, parallel, group] : {std::tuple{2, 2, "ddp", 1},
                                                        {2, 2, "fsdp", 1},
                                                        {4, 4, "fsdp", 1},
                                                        {4, 2, "ddp", 1},
                                                        {4, 2, "fsdp", 1},
                                                        {4, 2, "hsdp", 2},
                                                        {8, 2, "hsdp", 4}})
    for (const int batch : {1, 3}) {
      const Setup setup{
          .ranks = ranks, .parallel = parallel, .shard_group = group, .batch = batch, .context = context};
      INFO(ranks << " ranks " << parallel << ", context " << context << ", batch " << batch);
      const Trained many = train(setup), one = train(on_one_rank(setup));
      // Gradients of keys and values are rounded to BF16 on each rank. Measured: losses 2e-5, the rest 0.022 (a
      // gradient of the third step); context_parallel_test.cpp compares in FP32.
      CHECK(loss_difference(many, one) <= 2e-4);
      CHECK(largest_difference(many, one) <= 5e-2);
    }
}

TEST_CASE("Rank: sharding over context ranks changes no bit", "[rank][context]") {
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"})
    for (const bool tied : {false, true}) {
      Setup setup{.recipe = recipe, .tied = tied, .ranks = 4, .batch = 1, .context = 2, .seq = 128};
      INFO(recipe << (tied ? ", tied" : ""));
      const Trained whole = train(setup);
      setup.parallel = "fsdp";
      check_same_bits(train(setup), whole);
    }
}

TEST_CASE("Rank: an FP8 gather over context ranks changes no bit of BF16 masters", "[rank][context]") {
  Setup setup{
      .recipe = "tensorwise", .ranks = 4, .parallel = "fsdp", .batch = 1, .master = "bf16", .context = 2};
  const Trained bf16 = train(setup);
  setup.gather = "fp8";
  REQUIRE(unsupported_reason(plan_of(setup)).value_or("") == "");
  check_same_bits(train(setup), bf16);
}

TEST_CASE("Rank: NVFP4 over context ranks is as far from one rank as over data ranks", "[rank][context]") {
  // Each rank scales a tensor by its own amax, as ranks with whole sequences do.
  const Setup setup{.recipe = "nvfp4",
                    .ranks = 2,
                    .whole_blocks = true,
                    .batch = 2,
                    .keep_bf16 = "none",
                    .context = 2,
                    .steps = 100};
  const Trained context = train(setup), one = train(on_one_rank(setup));
  Setup other = on_one_rank(setup);
  other.batch = 1, other.ranks = 2;
  const double to_one = largest_difference(context, one), to_ranks = largest_difference(train(other), one);
  INFO(to_one << " over context, " << to_ranks << " over data ranks");
  CHECK(to_one <= 1.5 * to_ranks);
}

TEST_CASE("Rank: amaxes over context ranks alone are those of their sequences", "[rank][context]") {
  Setup setup{.recipe = "tensorwise", .ranks = 4, .batch = 1, .context = 2, .amax = "group"};
  // The same sequences on two ranks that scale by their own amax.
  Setup data = setup;
  data.ranks = 2, data.context = 1, data.amax = "off";
  const Trained grouped = train(setup), reference = train(data);
  CHECK(std::fabs(grouped.losses[0] / reference.losses[0] - 1) <= 1e-6);
  setup.amax = "off";
  CHECK(std::fabs(train(setup).losses[0] / reference.losses[0] - 1) > 1e-6);
}

TEST_CASE("Rank: predicted memory of context ranks holds to the byte on every rank", "[rank][context]") {
  for (const auto& [recipe, parallel, recompute] : {std::tuple{"bf16", "ddp", "none"},
                                                    {"tensorwise", "fsdp", "block"},
                                                    {"rowwise", "fsdp", "attention+ffn+norm"},
                                                    {"mxfp8", "fsdp", "none"}}) {
    for (const char* exchange : {"gather", "ring"})
      check_predicted_memory(plan_of({.recipe = recipe,
                                      .ranks = 4,
                                      .parallel = parallel,
                                      .batch = 2,
                                      .recompute = recompute,
                                      .context = 2,
                                      .context_exchange = exchange,
                                      .seq = 128}));
  }
  check_predicted_memory(plan_of({.ranks = 4, .context = 4, .context_exchange = "ring", .seq = 128}));
}

TEST_CASE("Rank: context ranks divide the model FLOPs of a step", "[rank][context]") {
  Setup setup{.ranks = 4, .batch = 2, .context = 4, .seq = 64};
  for (const char* exchange : {"gather", "ring"}) {
    setup.context_exchange = exchange;
    check_divided_flops(setup);
  }
  CHECK(plan_of(setup).tokens_per_micro_step() * 4 == plan_of(on_one_rank(setup)).tokens_per_micro_step());
}

TEST_CASE("Rank: a rank that fails in any exchange of a step over context ranks releases the others",
          "[rank][context]") {
  for (const char* exchange : {"gather", "ring"})
    check_failures_release(plan_of({.ranks = 4,
                                    .parallel = "fsdp",
                                    .batch = 1,
                                    .layers = 1,
                                    .context = 2,
                                    .context_exchange = exchange}),
                           10);
}
