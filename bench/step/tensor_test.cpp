// Tensor parallelism over a case's ranks: layouts, recipes, amaxes, FP8 gathers, memory, FLOPs and failures.
#include <tuple>

#include "bench/step/shared_tokens_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// A model whose matrices two ranks divide into whole blocks of every recipe.
constexpr const char* kDividedBlocks =
    R"({"layers": 2, "width": 128, "ffn": 512, "heads": 4, "kv_heads": 4, "head_dim": 64,
  "vocab": 128})";
constexpr const char* kDivisible =
    R"({"layers": 2, "width": 32, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16,
  "vocab": 100, "qk_norm": true})";

Setup tensor_setup(const char* recipe = "bf16") {
  return {.recipe = recipe, .ranks = 2, .batch = 1, .model = kDivisible, .tensor = 2};
}

}  // namespace

TEST_CASE("Rank: tensor ranks train like one rank, in every layout", "[rank][tensor]") {
  for (const auto& [ranks, context, parallel, group] : {std::tuple{2, 1, "ddp", 1},
                                                        {4, 1, "ddp", 1},
                                                        {4, 1, "fsdp", 1},
                                                        {4, 2, "fsdp", 1},
                                                        {8, 1, "hsdp", 2}}) {
    Setup setup = tensor_setup();
    setup.ranks = ranks, setup.context = context, setup.parallel = parallel, setup.shard_group = group;
    INFO(ranks << " ranks " << parallel << ", context " << context);
    const Trained many = train(setup), one = train(on_one_rank(setup));
    // Partial outputs are rounded to BF16 before they are summed; tensor_parallel_test.cpp compares in FP32.
    CHECK(loss_difference(many, one) <= 5e-4);
    CHECK(largest_difference(many, one) <= 5e-2);
  }
}

TEST_CASE("Rank: sharding over tensor ranks changes no bit", "[rank][tensor]") {
  for (const char* recipe : {"bf16", "tensorwise"}) {
    Setup setup = tensor_setup(recipe);
    setup.ranks = 4;
    INFO(recipe);
    const Trained whole = train(setup);
    setup.parallel = "fsdp";
    check_same_bits(train(setup), whole);
  }
}

TEST_CASE("Rank: losses of recipes over tensor ranks are one rank's within 0.2%", "[rank][tensor]") {
  for (const char* recipe : {"tensorwise", "tensorwise_delayed", "rowwise", "blockwise", "mxfp8", "nvfp4"}) {
    Setup setup = tensor_setup(recipe);
    setup.model = kDividedBlocks, setup.seq = 128, setup.amax = "on", setup.steps = 100,
    setup.keep_bf16 = "none";
    REQUIRE(unsupported_reason(plan_of(setup)).value_or("") == "");
    const Trained many = train(setup), one = train(on_one_rank(setup));
    INFO(recipe << ": all " << largest_difference(many, one));
    CHECK(loss_difference(many, one) <= 2e-3);
  }
}

TEST_CASE("Rank: amaxes over tensor ranks are those of whole operands", "[rank][tensor]") {
  Setup setup = tensor_setup("tensorwise");
  setup.amax = "group";
  const Trained grouped = train(setup);
  setup.amax = "on";
  check_same_bits(train(setup), grouped);
  setup.amax = "off";  // slices of o's and down's inputs have scales of their own
  CHECK(train(setup).losses[1] != grouped.losses[1]);
}

TEST_CASE("Rank: an FP8 gather over tensor ranks changes no bit and halves what is sent", "[rank][tensor]") {
  const auto gathered_bytes = [](Setup setup, const char* gather) {
    setup.tensor_gather = gather;
    const Plan plan = plan_of(setup);
    REQUIRE(unsupported_reason(plan).value_or("") == "");
    double bytes = 0;
    with_ranks(plan, [&](Rank& rank, const DataSource& data) {
      rank.parameters().initialize(plan.seed, kInitialDeviation);
      step(rank, data, 0);
      if (rank.comm().rank() > 0) return;
      for (const CollectiveCount& count : rank.comm().counts())
        if (count.name == "all_gather") bytes += count.wire_bytes;
    });
    return bytes;
  };
  for (const auto& [ranks, context, parallel, amax, recompute] :
       {std::tuple{2, 1, "ddp", "off", "none"},
        {4, 1, "fsdp", "on", "block"},
        {4, 2, "ddp", "group", "attention+ffn+norm"}}) {
    Setup setup = tensor_setup("tensorwise");
    setup.ranks = ranks, setup.context = context, setup.parallel = parallel, setup.amax = amax,
    setup.recompute = recompute;
    setup.seq = 128, setup.tensor_gather = "bf16";
    INFO(ranks << " ranks " << parallel << ", context " << context << ", amax " << amax);
    const Trained bf16 = train(setup);
    setup.tensor_gather = "fp8";
    check_same_bits(train(setup), bf16);
    if (std::string(parallel) == "ddp" && context == 1)
      CHECK(gathered_bytes(setup, "auto") <
            0.7 * gathered_bytes(setup, "bf16"));  // the head's and the embedding's stay BF16
  }
}

TEST_CASE("Rank: predicted memory of tensor ranks holds to the byte on every rank", "[rank][tensor]") {
  for (const auto& [recipe, parallel, recompute] : {std::tuple{"bf16", "ddp", "none"},
                                                    {"tensorwise", "fsdp", "block"},
                                                    {"tensorwise", "ddp", "none"},
                                                    {"rowwise", "fsdp", "attention+ffn+norm"}}) {
    Setup setup = tensor_setup(recipe);
    setup.ranks = 4, setup.parallel = parallel, setup.recompute = recompute;
    check_predicted_memory(plan_of(setup));
  }
}

TEST_CASE("Rank: tensor ranks divide the model FLOPs and the state of a step", "[rank][tensor]") {
  const Setup setup = tensor_setup();
  check_divided_flops(setup);
  const auto peak = [](const Setup& of) {
    return static_cast<double>(dry_run(plan_of(of), nullptr).peak.total());
  };
  CHECK(peak(setup) < 0.75 * peak(on_one_rank(setup)));
}

TEST_CASE("Rank: a rank that fails in any exchange of a step over tensor ranks releases the others",
          "[rank][tensor]") {
  Setup setup = tensor_setup();
  setup.ranks = 4, setup.parallel = "fsdp";
  setup.model =
      R"({"layers": 1, "width": 32, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 100})";
  check_failures_release(plan_of(setup), 15);
}
