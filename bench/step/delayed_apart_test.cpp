// Delayed scaling without amax reduction: each rank's scales come from its own tensors, in every kind of
// parallelism.
#include <cmath>
#include <mutex>

#include "bench/case/plan.h"
#include "bench/step/delayed_testing.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;
using namespace precbench::testing::delayed;

namespace {

const nlohmann::json kApart = {{"reduce", false}};

/// Returns the scales of every rank after `steps` steps.
std::vector<State> scales_of_ranks(const DelayedSetup& setup, int steps) {
  std::mutex mutex;
  std::vector<State> all(setup.ranks);
  run(delayed_plan(setup), steps, [&](Rank& rank, const DataSource&, int) {
    State scales = scales_of(rank);
    const std::lock_guard lock(mutex);
    all[rank.comm().rank()] = std::move(scales);
  });
  return all;
}

/// Returns the known amaxes of one operand of all linear layers; the model has `linears` of them.
std::vector<float> known(const State& state, LinearOperand operand, std::size_t linears) {
  const auto begin = state.at("scales/known").begin() +
                     static_cast<std::ptrdiff_t>(static_cast<std::size_t>(operand) * linears);
  return {begin, begin + static_cast<std::ptrdiff_t>(linears)};
}

constexpr std::size_t kDenseLinears = 2 * 4 + 1;

}  // namespace

TEST_CASE("delayed scaling: on one rank `reduce` makes no difference", "[delayed]") {
  const DelayedOutcome plain = run(DelayedSetup{}, 3), apart = run({.history = kApart}, 3);
  CHECK(plain.losses == apart.losses);
  CHECK(plain.scales == apart.scales);
}

TEST_CASE("delayed scaling without reduction: current steps have tensorwise losses on every rank",
          "[delayed]") {
  const nlohmann::json window = {{"reduce", false}, {"first", "window"}};
  for (const Kind kind : kKinds)
    for (const char* parallel : {"ddp", "fsdp"}) {
      INFO(parallel << " of kind " << static_cast<int>(kind));
      DelayedSetup setup{.kind = kind, .recipe = "tensorwise", .ranks = 2, .parallel = parallel};
      const DelayedOutcome current = run(setup, 3);
      setup.recipe = "tensorwise_delayed";
      setup.history = window;
      CHECK(run(setup, 3).losses == current.losses);
      setup.history = {{"first", "window"}};
      CHECK(run(setup, 3).losses != current.losses);
    }
}

TEST_CASE("delayed scaling without reduction: ranks differ in the amaxes of X and dY but not of W",
          "[delayed]") {
  for (const auto& [parallel, accumulation] : {std::pair{"ddp", 1}, {"fsdp", 1}, {"ddp", 2}}) {
    INFO(parallel << " " << accumulation);
    DelayedSetup setup{.history = kApart, .ranks = 2, .accumulation = accumulation, .parallel = parallel};
    if (accumulation > 1) setup.history["update"] = "micro";
    const std::vector<State> ranks = scales_of_ranks(setup, 3);
    for (const LinearOperand operand : {LinearOperand::x, LinearOperand::dy})
      CHECK(known(ranks[0], operand, kDenseLinears) != known(ranks[1], operand, kDenseLinears));
    CHECK(known(ranks[0], LinearOperand::w, kDenseLinears) ==
          known(ranks[1], LinearOperand::w, kDenseLinears));
  }
}

TEST_CASE("delayed scaling without reduction: a rank knows the amaxes of its own experts only",
          "[delayed][ep]") {
  DelayedSetup setup{.kind = Kind::moe, .history = kApart, .ranks = 2, .ep = 2};
  const std::vector<State> ranks = scales_of_ranks(setup, 2);
  setup.history = {};
  const std::vector<State> common = scales_of_ranks(setup, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<float>&mine = ranks[rank].at("scales/known"), &all = common[0].at("scales/known");
    REQUIRE(mine.size() == all.size());
    // After the linear layers' slots come those of both layers' gate_up and down: four experts each, two per
    // rank.
    const std::size_t stacks = mine.size() - 16;
    for (std::size_t slot = stacks; slot < mine.size(); ++slot) {
      INFO("rank " << rank << ", slot " << slot);
      const bool own = static_cast<int>((slot - stacks) % 4 / 2) == rank;
      if (own)
        CHECK(std::fabs(mine[slot] / all[slot] - 1) < 0.02);
      else
        CHECK(mine[slot] == 448);  // the initial value
    }
  }
}
