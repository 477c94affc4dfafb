// Delayed scaling in a run: it starts as current scaling; its state does not depend on ranks, accumulation or
// recomputation; it is saved and restored; and only training changes it.
#include "models/transformer/linear/delayed_scaling.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "bench/step/delayed_testing.h"

using namespace precbench;
using namespace precbench::testing;
using namespace precbench::testing::delayed;

namespace {

/// Returns the same sequences in every step.
class Repeated final : public DataSource {
 public:
  Repeated(const DataSource& data, std::int64_t sequences) : data_(data), sequences_(sequences) {}
  std::int64_t vocab() const override { return data_.vocab(); }
  std::int64_t sequences(std::int64_t T) const override { return data_.sequences(T); }
  std::int64_t skipped() const override { return data_.skipped(); }
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const override {
    data_.sequence(index % static_cast<std::uint64_t>(sequences_), T, tokens);
  }
  std::optional<double> entropy_nats() const override { return data_.entropy_nats(); }
  std::string describe() const override { return data_.describe(); }

 private:
  const DataSource& data_;
  std::int64_t sequences_;
};

}  // namespace

TEST_CASE("delayed scaling: equals current scaling when nothing changes between steps", "[delayed]") {
  const auto repeated = [](const char* recipe, const char* gather, Kind kind = Kind::dense) {
    DelayedSetup setup{.kind = kind, .recipe = recipe, .lr = 0};
    if (gather == std::string("fp8")) setup.ranks = 2, setup.parallel = "fsdp", setup.gather = gather;
    const Plan plan = delayed_plan(setup);
    std::vector<double> results;
    run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
      rank.parameters().initialize(plan.seed, kInitialDeviation);
      const Repeated same(data, setup.batch * setup.ranks);
      for (int step = 0; step < 4; ++step) {
        rank.prepare(same, step, 0);
        rank.enqueue();
        const StepResult result = rank.finish();
        if (rank.comm().rank() == 0) results.push_back(result.loss), results.push_back(result.grad_norm);
      }
    });
    return results;
  };
  for (const char* gather : {"bf16", "fp8"}) {
    const std::vector<double> delayed = repeated("tensorwise_delayed", gather);
    CHECK((delayed[0] == delayed[2] && delayed[1] == delayed[7]));
    CHECK(repeated("tensorwise_delayed_recent", gather) == delayed);
    // Ranks with tensorwise have a scale each, with delayed scaling a common one.
    if (gather == std::string("bf16")) CHECK(repeated("tensorwise", gather) == delayed);
    CHECK(repeated("bf16", "bf16") != delayed);
  }
  for (const Kind kind : kMixtures) {
    const std::vector<double> delayed = repeated("tensorwise_delayed", "bf16", kind);
    CHECK((delayed[0] == delayed[2] && delayed[1] == delayed[7]));
    CHECK(repeated("tensorwise_delayed_recent", "bf16", kind) == delayed);
    CHECK(repeated("tensorwise", "bf16", kind) == delayed);
    CHECK(repeated("bf16", "bf16", kind) != delayed);
  }
}

TEST_CASE("delayed scaling: the first step equals tensorwise and the second does not", "[delayed]") {
  for (const Kind kind : kKinds) {
    const DelayedOutcome current = run({.kind = kind, .recipe = "tensorwise"}, 2),
                         delayed = run({.kind = kind}, 2);
    CHECK(current.losses[0] == delayed.losses[0]);
    CHECK(current.losses[1] != delayed.losses[1]);
  }
}

TEST_CASE("delayed scaling: each expert's weights have a scale of their own", "[delayed]") {
  const Plan plan = delayed_plan({.kind = Kind::moe});
  const std::int64_t products = 2 * 4 + 1,
                     stacks = 2 * 2 * 4;  // both layers' gate_up and down, of four experts
  REQUIRE(DelayedScaling::slots_of(plan.model) == 3 * products + stacks);
  run(plan, 2, [&](Rank& rank, const DataSource&, int step) {
    if (step > 0) return;
    const std::vector<float> known = scales_of(rank).at("scales/known");
    // The first step's amax is of the weights before its update, which hardly changes them.
    for (std::int64_t layer = 0; layer < 2; ++layer)
      for (const LinearRole role : {LinearRole::gate_up, LinearRole::down}) {
        const LinearSlots slots = rank.parameters().delayed()->slots(layer, role);
        REQUIRE(slots.w.known.size() == 4);
        const std::vector<LinearMatrix>& linears = rank.parameters().layout().block_linears(layer);
        const LinearMatrix& m = *std::find_if(linears.begin(), linears.end(),
                                              [role](const LinearMatrix& of) { return of.role == role; });
        REQUIRE(m.experts == 4);
        const Tensor weights = rank.parameters().shard(rank.parameters().layout().block_unit(layer)).weights;
        for (std::int64_t e = 0; e < 4; ++e) {
          float largest = 0;
          for (std::int64_t i = 0; i < m.size() / 4; ++i)
            largest = std::max(
                largest,
                std::fabs(bf16_decode(weights.as<std::uint16_t>()[m.offset + e * m.size() / 4 + i])));
          CHECK(std::fabs(slots.w.known.as<float>()[e] / largest - 1) < 0.02);
          for (std::int64_t other = 0; other < e; ++other)
            CHECK(slots.w.known.as<float>()[e] != slots.w.known.as<float>()[other]);
        }
      }
  });
}

TEST_CASE("delayed scaling: experts' GEMMs use the known scales and record amaxes", "[delayed]") {
  for (const Kind kind : kMixtures) {
    const Plan plan = delayed_plan({.kind = kind});
    // Losses of three steps. With `change`, the known amax of a slot (an expert stack's first) becomes huge
    // after step 0.
    const auto losses = [&](LinearRole role, LinearOperand operand, bool change) {
      return run(plan, 3,
                 [&](Rank& rank, const DataSource&, int step) {
                   const LinearSlots slots = rank.parameters().delayed()->slots(1, role);
                   const OperandSlot& slot = operand == LinearOperand::x   ? slots.x
                                             : operand == LinearOperand::w ? slots.w
                                                                           : slots.dy;
                   if (step == 0 && change) *slot.known.as<float>() *= 5000;
                   if (step == 1) CHECK(*slot.known.as<float>() < 100);  // back to the recorded amax
                 })
          .losses;
    };
    const std::vector<double> plain = losses(LinearRole::down, LinearOperand::x, false);
    for (const LinearRole role : {LinearRole::gate_up, LinearRole::down})
      for (const LinearOperand operand : {LinearOperand::x, LinearOperand::w, LinearOperand::dy}) {
        INFO(name_of(role) << " " << name_of(operand) << " of kind " << static_cast<int>(kind));
        const std::vector<double> changed = losses(role, operand, true);
        CHECK(changed[0] == plain[0]);
        CHECK((changed[1] == plain[1]) == (operand == LinearOperand::dy));
        CHECK(changed[2] != plain[2]);
      }
  }
}

TEST_CASE("delayed scaling: amaxes do not depend on the split into ranks and micro-steps", "[delayed]") {
  const DelayedOutcome one = run(DelayedSetup{.batch = 4}, 1);
  REQUIRE(one.scales.at("scales/known").size() ==
          static_cast<std::size_t>(DelayedScaling::slots_of(delayed_plan({}).model)));
  for (const DelayedSetup& other : {DelayedSetup{.ranks = 2, .batch = 2},
                                    {.ranks = 4, .batch = 1},
                                    {.ranks = 2, .batch = 2, .parallel = "fsdp"}}) {
    INFO(other.ranks << " ranks, " << other.parallel);
    CHECK(run(other, 1).scales == one.scales);
  }
  // In the first step each micro-step has its own current scales, so that amaxes differ by rounding, except
  // those of the first layer's input and of the weights.
  const std::vector<float> parts =
                               run(DelayedSetup{.batch = 2, .accumulation = 2}, 1).scales.at("scales/known"),
                           &whole = one.scales.at("scales/known");
  const std::size_t linears = whole.size() / 3;
  CHECK(parts[0] == whole[0]);
  for (std::size_t slot = 0; slot < linears; ++slot) {
    CHECK(parts[2 * linears + slot] == whole[2 * linears + slot]);
    CHECK(std::fabs(parts[slot] / whole[slot] - 1) < 0.1);
  }
  for (const Kind kind : kMixtures)
    CHECK(run(DelayedSetup{.kind = kind, .ranks = 2, .batch = 2}, 1).scales ==
          run(DelayedSetup{.kind = kind, .batch = 4}, 1).scales);
}

TEST_CASE("delayed scaling: every rank has the same amaxes in every step", "[delayed]") {
  for (const DelayedSetup& setup :
       {DelayedSetup{.ranks = 2, .batch = 1},
        {.ranks = 2, .parallel = "fsdp"},
        {.ranks = 2, .parallel = "fsdp", .gather = "fp8"},
        {.kind = Kind::moe, .ranks = 2},
        {.kind = Kind::weighted_rows, .ranks = 2, .parallel = "fsdp"},
        {.kind = Kind::moe, .ranks = 2, .ep = 2},
        {.kind = Kind::weighted_rows, .ranks = 2, .ep = 2, .dispatch = "fp8"},
        {.kind = Kind::moe, .ranks = 4, .batch = 1, .ep = 2, .exchange = "sync"}}) {
    INFO(setup.parallel << " " << setup.gather);
    std::mutex mutex;
    std::map<int, std::vector<State>> seen;
    run(delayed_plan(setup), 3, [&](Rank& rank, const DataSource&, int step) {
      State scales = scales_of(rank);
      const std::lock_guard lock(mutex);
      seen[step].push_back(std::move(scales));
    });
    for (const auto& [step, states] : seen) CHECK(states.at(0) == states.at(1));
    CHECK(seen[0][0] != seen[1][0]);
  }
}

TEST_CASE("delayed scaling: expert-parallel ranks have the scales of ranks with all experts",
          "[delayed][ep]") {
  for (const Kind kind : kMixtures) {
    const DelayedOutcome one = run({.kind = kind, .ranks = 2}, 3);
    for (const char* exchange : {"gather", "slots", "sync"})
      for (const char* dispatch : {"bf16", "fp8"}) {
        if (std::string(exchange) == "sync" && std::string(dispatch) == "fp8") continue;  // not supported
        INFO(exchange << " " << dispatch << " of kind " << static_cast<int>(kind));
        const DelayedOutcome apart =
            run({.kind = kind, .ranks = 2, .ep = 2, .exchange = exchange, .dispatch = dispatch}, 3);
        // Sums over experts are rounded in a different order.
        for (std::size_t step = 0; step < 3; ++step)
          CHECK(std::fabs(apart.losses[step] / one.losses[step] - 1) < 1e-3);
        const std::vector<float>&known = apart.scales.at("scales/known"),
              &want = one.scales.at("scales/known");
        REQUIRE(known.size() == want.size());
        for (std::size_t slot = 0; slot < want.size(); ++slot) {
          INFO("slot " << slot);
          CHECK(std::fabs(known[slot] / want[slot] - 1) < 0.1);
        }
      }
  }
}

TEST_CASE("delayed scaling: recomputation uses the scales of its step", "[delayed]") {
  for (const Kind kind : kKinds) {
    const DelayedOutcome plain = run({.kind = kind}, 3);
    for (const char* recompute : {"block", "norm", "attention+ffn", "attention+ffn+norm"}) {
      INFO(recompute);
      const DelayedOutcome again = run({.kind = kind, .recompute = recompute}, 3);
      CHECK(plain.losses == again.losses);
      CHECK(plain.scales == again.scales);
    }
  }
}

TEST_CASE("delayed scaling: held-out evaluation changes no amax", "[delayed]") {
  for (const Kind kind : kKinds) {
    const Plan plan = delayed_plan({.kind = kind});
    const DelayedOutcome plain = run({.kind = kind}, 4);
    const DelayedOutcome watched = run(plan, 4, [](Rank& rank, const DataSource& data, int) {
      rank.parameters().begin_step();
      rank.token_losses(rank.transformer(), data, {100, 101});
    });
    CHECK(watched.losses == plain.losses);
    CHECK(watched.scales == plain.scales);
  }
}

TEST_CASE("delayed scaling: most_recent knows the last amax and max the largest of the history",
          "[delayed]") {
  std::vector<State> recent, largest;
  run(delayed_plan({.recipe = "tensorwise_delayed_recent"}), 3,
      [&](Rank& rank, const DataSource&, int) { recent.push_back(scales_of(rank)); });
  CHECK(recent[0].count("scales/history") == 0);
  run(delayed_plan({}), 3, [&](Rank& rank, const DataSource&, int) { largest.push_back(scales_of(rank)); });
  const std::vector<float>& known = largest[2].at("scales/known");
  const std::vector<float>& history = largest[2].at("scales/history");
  const std::size_t kept = history.size() / known.size();
  REQUIRE(kept == 1023);
  for (std::size_t slot = 0; slot < known.size(); ++slot) {
    const float* end = history.data() + (slot + 1) * kept;
    CHECK(known[slot] == std::max({end[-1], end[-2], end[-3]}));
    CHECK(end[-4] == 0);
    CHECK(end[-3] == largest[0].at("scales/known")[slot]);
  }
}
