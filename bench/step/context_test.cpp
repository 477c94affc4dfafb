// Context parallelism over a case's ranks: data, sharding, memory, FLOPs and failures.
#include <fmt/format.h>

#include <atomic>
#include <tuple>

#include "bench/case/plan.h"
#include "bench/step/rank_setup_testing.h"
#include "kernels/device/device.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Largest relative difference of losses, gradients and weights.
double difference(const Trained& x, const Trained& y) {
  double most =
      std::max(farthest(x.gradients, y.gradients).distance, farthest(x.weights, y.weights).distance);
  for (int i = 0; i < kSteps; ++i) most = std::max(most, std::fabs(x.losses[i] / y.losses[i] - 1));
  return most;
}

/// The same sequences on one rank.
Setup on_one(Setup setup) {
  setup.batch *= setup.ranks / setup.context;
  setup.ranks = setup.context = setup.shard_group = setup.ep = 1;
  setup.parallel = "ddp";
  return setup;
}

/// Throws when a step's communication begins for the n-th time.
class Breaks final : public OpObserver {
 public:
  explicit Breaks(int at) : at_(at) {}
  void begin(const OpCost&) override {
    if (number_++ == at_) throw std::runtime_error("the cable is out");
  }
  void end(const OpCost&) override {}
  int number() const { return number_; }

 private:
  int at_, number_ = 0;
};

}  // namespace

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
      const Trained many = train(setup), one = train(on_one(setup));
      // Gradients of keys and values are rounded to BF16 on each rank. Measured: losses 2e-5, the rest 0.022 (a
      // gradient of the third step); context_parallel_test.cpp compares in FP32.
      for (int i = 0; i < kSteps; ++i) CHECK(std::fabs(many.losses[i] / one.losses[i] - 1) <= 2e-4);
      CHECK(difference(many, one) <= 5e-2);
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
  const Trained context = train(setup), one = train(on_one(setup));
  Setup other = on_one(setup);
  other.batch = 1, other.ranks = 2;
  const double to_one = difference(context, one), to_ranks = difference(train(other), one);
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
    const Plan plan = plan_of({.recipe = recipe,
                               .ranks = 4,
                               .parallel = parallel,
                               .batch = 2,
                               .recompute = recompute,
                               .context = 2,
                               .seq = 128});
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

TEST_CASE("Rank: context ranks divide the model FLOPs of a step", "[rank][context]") {
  const Setup setup{.ranks = 4, .batch = 2, .context = 4, .seq = 64};
  const DryRun many = dry_run(plan_of(setup), nullptr), one = dry_run(plan_of(on_one(setup)), nullptr);
  CHECK(many.model_flops() * setup.ranks == Approx(one.model_flops()).epsilon(1e-9));
  CHECK(plan_of(setup).tokens_per_step() == plan_of(on_one(setup)).tokens_per_step());
  CHECK(plan_of(setup).tokens_per_micro_step() * 4 == plan_of(on_one(setup)).tokens_per_micro_step());
}

TEST_CASE("Rank: a rank that fails in any exchange of a step over context ranks releases the others",
          "[rank][context]") {
  const Plan plan = plan_of({.ranks = 4, .parallel = "fsdp", .batch = 1, .layers = 1, .context = 2});
  int exchanges = 1;
  for (int at = 0; at < exchanges; ++at) {
    std::string error;
    std::atomic<int> finished = 0, seen = 0;
    try {
      with_ranks(plan, [&](Rank& rank, const DataSource& data) {
        rank.parameters().initialize(plan.seed, kInitialDeviation);
        const bool bad = rank.comm().rank() == at % plan.ranks;
        Breaks breaks(at == 0 ? -1 : at - 1);
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
      CHECK(exchanges > 10);
      CHECK(finished == plan.ranks);
      continue;
    }
    INFO("exchange " << at - 1);
    CHECK(error == fmt::format("rank {}: the cable is out", at % plan.ranks));
    CHECK(finished == 0);
  }
}
