// Tensor parallelism over a case's ranks: recipes, memory, FLOPs, held-out losses and failures.
#include <fmt/format.h>

#include <atomic>
#include <tuple>

#include "bench/case/plan.h"
#include "bench/step/rank_setup_testing.h"

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

/// Largest relative difference of losses, gradients and weights.
double tensor_difference(const Trained& x, const Trained& y) {
  double most =
      std::max(farthest(x.gradients, y.gradients).distance, farthest(x.weights, y.weights).distance);
  for (int i = 0; i < kSteps; ++i) most = std::max(most, std::fabs(x.losses[i] / y.losses[i] - 1));
  return most;
}

/// The same sequences on one rank.
Setup whole_on_one(Setup setup) {
  setup.batch *= setup.ranks / (setup.context * setup.tensor);
  setup.ranks = setup.context = setup.tensor = setup.shard_group = 1;
  setup.parallel = "ddp";
  return setup;
}

/// Throws when a step's communication begins for the n-th time.
class CommBreaks final : public OpObserver {
 public:
  explicit CommBreaks(int at) : at_(at) {}
  void begin(const OpCost&) override {
    if (number_++ == at_) throw std::runtime_error("the cable is out");
  }
  void end(const OpCost&) override {}
  int number() const { return number_; }

 private:
  int at_, number_ = 0;
};

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
    const Trained many = train(setup), one = train(whole_on_one(setup));
    // Partial outputs are rounded to BF16 before they are summed; tensor_parallel_test.cpp compares in FP32.
    for (int i = 0; i < kSteps; ++i) CHECK(std::fabs(many.losses[i] / one.losses[i] - 1) <= 5e-4);
    CHECK(tensor_difference(many, one) <= 5e-2);
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

TEST_CASE("Rank: recipes over tensor ranks are as far from one rank as BF16 is, or as another rank's scales",
          "[rank][tensor]") {
  for (const char* recipe : {"tensorwise", "tensorwise_delayed", "rowwise", "blockwise", "mxfp8", "nvfp4"}) {
    Setup setup = tensor_setup(recipe);
    setup.model = kDividedBlocks, setup.seq = 128, setup.amax = "on", setup.steps = 100,
    setup.keep_bf16 = "none";
    REQUIRE(unsupported_reason(plan_of(setup)).value_or("") == "");
    const Trained many = train(setup), one = train(whole_on_one(setup));
    double loss = 0;
    for (int i = 0; i < kSteps; ++i) loss = std::max(loss, std::fabs(many.losses[i] / one.losses[i] - 1));
    INFO(recipe << ": losses " << loss << ", all " << tensor_difference(many, one));
    CHECK(loss <= 2e-3);
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
    const Plan plan = plan_of(setup);
    const DryRun accounts = dry_run(plan, nullptr);
    std::vector<std::int64_t> peaks(plan.ranks);
    with_ranks(plan, [&](Rank& rank, const DataSource& data) {
      rank.parameters().initialize(plan.seed, kInitialDeviation);
      step(rank, data, 0);
      peaks[rank.comm().rank()] = rank.arena().peak().total();
    });
    for (const std::int64_t peak : peaks) CHECK(peak == accounts.peak.total());
  }
}

TEST_CASE("Rank: tensor ranks divide the model FLOPs and the state of a step", "[rank][tensor]") {
  const Setup setup = tensor_setup();
  const DryRun many = dry_run(plan_of(setup), nullptr), one = dry_run(plan_of(whole_on_one(setup)), nullptr);
  CHECK(many.model_flops() * setup.ranks == Approx(one.model_flops()).epsilon(1e-9));
  CHECK(plan_of(setup).tokens_per_step() == plan_of(whole_on_one(setup)).tokens_per_step());
  CHECK(static_cast<double>(many.peak.total()) < 0.75 * static_cast<double>(one.peak.total()));
}

TEST_CASE("Rank: a rank that fails in any exchange of a step over tensor ranks releases the others",
          "[rank][tensor]") {
  Setup setup = tensor_setup();
  setup.ranks = 4, setup.parallel = "fsdp";
  setup.model =
      R"({"layers": 1, "width": 32, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 100})";
  const Plan plan = plan_of(setup);
  int exchanges = 1;
  for (int at = 0; at < exchanges; ++at) {
    std::string error;
    std::atomic<int> finished = 0, seen = 0;
    try {
      with_ranks(plan, [&](Rank& rank, const DataSource& data) {
        rank.parameters().initialize(plan.seed, kInitialDeviation);
        const bool bad = rank.comm().rank() == at % plan.ranks;
        CommBreaks breaks(at == 0 ? -1 : at - 1);
        if (bad) rank.comm().set_observer(&breaks);
        step(rank, data, 0);
        if (bad) seen = breaks.number();
        ++finished;
      });
    } catch (const std::runtime_error& e) {
      error = e.what();
    }
    if (at == 0) {  // without a failure: counts the exchanges
      exchanges = seen + 1;
      CHECK(exchanges > 15);
      CHECK(finished == plan.ranks);
      continue;
    }
    INFO("exchange " << at - 1);
    CHECK(error == fmt::format("rank {}: the cable is out", at % plan.ranks));
    CHECK(finished == 0);
  }
}
