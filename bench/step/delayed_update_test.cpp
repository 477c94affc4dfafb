// When amaxes enter the history of delayed scaling (every step or every micro-step) and over which ranks they
// are reduced. Checked on scripted amaxes against the rules written out, and in runs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "bench/step/delayed_testing.h"
#include "kernels/comm/comm_testing.h"

using namespace precbench;
using namespace precbench::testing;
using namespace precbench::testing::delayed;

namespace {

const nlohmann::json kMicro = {{"update", "micro"}};

/// Reference for one slot, by the rules of TransformerEngine's update; the new amax counts among the last
/// `length`.
struct Slot {
  float known = kE4m3Max;  ///< its scale is 1
  std::vector<float> amaxes;

  void update(float amax, std::size_t length, HistoryAlgorithm algorithm) {
    if (!(amax > 0) || !std::isfinite(amax)) return;
    amaxes.push_back(amax);
    const std::size_t seen = algorithm == HistoryAlgorithm::most_recent ? 1 : std::min(length, amaxes.size());
    known = *std::max_element(amaxes.end() - static_cast<std::ptrdiff_t>(seen), amaxes.end());
  }
  /// Returns the history as the state stores it.
  std::vector<float> history(std::size_t length) const {
    std::vector<float> kept(length - 1, 0.0f);
    for (std::size_t i = 0; i < std::min(kept.size(), amaxes.size()); ++i)
      kept[kept.size() - 1 - i] = amaxes[amaxes.size() - 1 - i];
    return kept;
  }
};

constexpr int kMicroSteps = 3, kScriptedSteps = 8;
constexpr LinearOperand kOperands[] = {LinearOperand::x, LinearOperand::w, LinearOperand::dy};

/// Amax of an operand. For X and dY it differs in every micro-step and on every rank and includes a spike, a
/// zero and an infinity. W is cast in the first micro-step only.
float scripted(LinearOperand operand, int step, int micro, int rank) {
  if (operand == LinearOperand::w)
    return micro == 0 ? 1.0f + 0.125f * static_cast<float>(step % 3) - 0.01f * static_cast<float>(rank)
                      : 0.0f;
  const int update = step * kMicroSteps + micro;
  if (update == 4) return 1000.0f + static_cast<float>(rank);
  if (update == 7) return 0.0f;
  if (update == 11 && operand == LinearOperand::dy) return std::numeric_limits<float>::infinity();
  return std::ldexp(1.0f + 0.01f * static_cast<float>((update * 7 + rank * 3) % 10), -update % 4);
}

const OperandSlot& of(const LinearSlots& slots, LinearOperand operand) {
  return operand == LinearOperand::x ? slots.x : operand == LinearOperand::w ? slots.w : slots.dy;
}

/// Returns the expected slots. `mine`: rank whose own amaxes count, or -1 for the maximum over all ranks.
std::vector<Slot> expected(const History& history, int ranks, int mine) {
  std::vector<Slot> slots(std::size(kOperands));
  for (std::size_t i = 0; i < slots.size(); ++i)
    for (int step = 0; step < kScriptedSteps; ++step) {
      float seen = 0;
      for (int micro = 0; micro < kMicroSteps; ++micro) {
        for (int rank = 0; rank < ranks; ++rank)
          if (mine < 0 || rank == mine) seen = std::max(seen, scripted(kOperands[i], step, micro, rank));
        if (history.update == HistoryUpdate::step && micro + 1 < kMicroSteps) continue;
        slots[i].update(seen, history.length, history.algorithm);
        seen = 0;
      }
    }
  return slots;
}

/// Runs the script. Returns the number of known amaxes and of histories that differ from `want` (by rank,
/// then operand).
int differences(const History& history, int ranks, const std::vector<std::vector<Slot>>& want) {
  const Plan plan = delayed_plan({});
  Recipe recipe = find_recipe("tensorwise_delayed");
  recipe.fprop.a.history = history;
  std::mutex mutex;
  int different = 0;
  on_cpu_ranks(ranks, [&](Device& device, Comm& comm) {
    std::vector<std::byte> memory(1 << 20, std::byte{0xFF});
    Arena arena(memory.data(), 1 << 20);
    DelayedScaling scales(device, comm, arena, recipe, plan.model);
    scales.reset();
    for (int step = 0; step < kScriptedSteps; ++step) {
      for (int micro = 0; micro < kMicroSteps; ++micro) {
        scales.begin_micro_step(micro);
        for (const LinearOperand operand : kOperands) {
          float& staged = *of(scales.slots(1, LinearRole::o), operand).staged.as<float>();
          staged = std::max(staged, scripted(operand, step, micro, comm.rank()));
        }
      }
      scales.update();
    }
    const std::lock_guard lock(mutex);
    const std::vector<StateTensor> state = scales.state();
    for (std::size_t i = 0; i < std::size(kOperands); ++i) {
      const float* known = of(scales.slots(1, LinearRole::o), kOperands[i]).known.as<float>();
      const std::ptrdiff_t slot = known - state[0].values.as<float>();
      const Slot& wanted = want[comm.rank()][i];
      different += *known != wanted.known;
      if (history.length == 1) continue;
      const float* kept = state[1].values.as<float>() + slot * (history.length - 1);
      different += std::vector<float>(kept, kept + history.length - 1) != wanted.history(history.length);
    }
  });
  return different;
}

/// Returns the known amaxes and histories of one operand in every linear layer of the dense model.
std::vector<float> of_operand(const State& state, LinearOperand operand) {
  std::vector<float> part;
  for (const auto& [name, values] : state) {
    const auto third = static_cast<std::ptrdiff_t>(values.size() / 3);
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(operand) * third;
    part.insert(part.end(), begin, begin + third);
  }
  return part;
}

}  // namespace

TEST_CASE(
    "DelayedScaling: histories of scripted amaxes follow the rules for updates by step and by micro-step",
    "[delayed]") {
  const auto moves = [](HistoryUpdate update, HistoryAlgorithm algorithm, std::uint16_t length) {
    return History{.length = length, .algorithm = algorithm, .update = update};
  };
  const auto common = [](const History& history, int ranks) {
    return std::vector<std::vector<Slot>>(ranks, expected(history, ranks, -1));
  };
  for (const auto& [algorithm, length] :
       {std::pair<HistoryAlgorithm, std::uint16_t>{HistoryAlgorithm::max, 4},
        {HistoryAlgorithm::max, 64},
        {HistoryAlgorithm::most_recent, 1},
        {HistoryAlgorithm::most_recent, 4}})
    for (const int ranks : {1, 2, 4}) {
      INFO(name_of(algorithm) << " of " << length << " on " << ranks << " ranks");
      const History step = moves(HistoryUpdate::step, algorithm, length),
                    micro = moves(HistoryUpdate::micro, algorithm, length);
      CHECK(differences(step, ranks, common(step, ranks)) == 0);
      CHECK(differences(micro, ranks, common(micro, ranks)) == 0);
      CHECK(differences(micro, ranks, common(step, ranks)) > 0);
    }
}

TEST_CASE("DelayedScaling: without reduction every rank has the history of its own amaxes", "[delayed]") {
  for (const HistoryUpdate update : {HistoryUpdate::step, HistoryUpdate::micro})
    for (const int ranks : {1, 2, 4}) {
      INFO(name_of(update) << " on " << ranks << " ranks");
      const History history{.length = 4, .update = update, .reduce = false};
      std::vector<std::vector<Slot>> own;
      for (int rank = 0; rank < ranks; ++rank) own.push_back(expected(history, ranks, rank));
      CHECK(differences(history, ranks, own) == 0);
      if (ranks > 1) CHECK(differences(history, ranks, std::vector(ranks, expected(history, ranks, -1))) > 0);
    }
}

TEST_CASE("delayed scaling: updates by step and by micro-step agree with one micro-step", "[delayed]") {
  for (const Kind kind : kKinds) {
    const DelayedOutcome step = run({.kind = kind}, 3), micro = run({.kind = kind, .history = kMicro}, 3);
    CHECK(step.losses == micro.losses);
    CHECK(step.scales == micro.scales);
  }
  const DelayedSetup two{.batch = 1, .accumulation = 2};
  DelayedSetup two_micro = two;
  two_micro.history = kMicro;
  const DelayedOutcome step = run(two, 3), micro = run(two_micro, 3);
  CHECK(step.losses[0] != micro.losses[0]);  // the second micro-step already has a history
  CHECK(step.scales != micro.scales);
}

TEST_CASE("delayed scaling: micro-step updates equal the steps of a run with constant weights", "[delayed]") {
  for (const char* recipe : {"tensorwise_delayed", "tensorwise_delayed_recent"})
    for (const char* first : {"current", "one", "window"}) {
      INFO(recipe << ", first " << first);
      nlohmann::json history = {{"first", first}};
      if (std::string(recipe) == "tensorwise_delayed") history["length"] = 5;
      DelayedSetup setup{.recipe = recipe, .history = history, .lr = 0};
      const DelayedOutcome steps = run(setup, 8);
      setup.accumulation = 2;
      const DelayedOutcome by_step = run(setup, 4);
      setup.history["update"] = "micro";
      const DelayedOutcome micro = run(setup, 4);
      for (const LinearOperand operand : {LinearOperand::x, LinearOperand::w})
        CHECK(of_operand(micro.scales, operand) == of_operand(steps.scales, operand));
      // The gradient is of the mean loss over a step's tokens, and there are twice as many of them.
      std::vector<float> halves = of_operand(steps.scales, LinearOperand::dy);
      for (float& amax : halves) amax /= 2;
      if (first != std::string("one")) CHECK(of_operand(micro.scales, LinearOperand::dy) == halves);
      CHECK(of_operand(by_step.scales, LinearOperand::x) != of_operand(steps.scales, LinearOperand::x));
      for (std::size_t step = 0; step < 4; ++step)
        CHECK(std::fabs(micro.losses[step] - (steps.losses[2 * step] + steps.losses[2 * step + 1]) / 2) <
              1e-6);
    }
}

TEST_CASE("current_micro_steps: with micro-step updates a window ends inside a step", "[delayed]") {
  const auto plan_with = [](std::int64_t accumulation, nlohmann::json history) {
    history["length"] = 5;
    return delayed_plan({.history = history, .accumulation = accumulation});
  };
  const auto current = [](const Plan& plan) {
    std::vector<int> all;
    for (std::int64_t step = 0; step < 6; ++step)
      all.push_back(current_micro_steps(plan, step, plan.accumulation));
    return all;
  };
  const Plan micro = plan_with(2, {{"first", "window"}, {"update", "micro"}});
  CHECK(current(micro) == std::vector{2, 2, 1, 0, 0, 0});
  CHECK(typical_step(micro, 0, 2) == 3);
  CHECK(current(plan_with(2, {{"first", "window"}})) == std::vector{2, 2, 2, 2, 2, 0});
  CHECK(typical_step(plan_with(2, {{"first", "window"}}), 0, 2) == 5);
  CHECK(current(plan_with(3, kMicro)) == std::vector{1, 0, 0, 0, 0, 0});
  CHECK(typical_step(plan_with(3, kMicro), 0, 3) == 1);
  CHECK(current(plan_with(3, {{"first", "one"}, {"update", "micro"}})) == std::vector{0, 0, 0, 0, 0, 0});
  CHECK(typical_step(plan_with(3, {{"first", "one"}}), 4, 3) == 4);
}

TEST_CASE("delayed scaling: recomputation uses the scales of its micro-step", "[delayed]") {
  for (const Kind kind : kKinds) {
    DelayedSetup setup{.kind = kind, .history = kMicro, .batch = 1, .accumulation = 3};
    const DelayedOutcome plain = run(setup, 3);
    setup.recompute = "block";
    const DelayedOutcome again = run(setup, 3);
    CHECK(plain.losses == again.losses);
    CHECK(plain.scales == again.scales);
  }
}

TEST_CASE("delayed scaling: micro-step updates give the same amaxes on all ranks", "[delayed]") {
  const DelayedOutcome one = run(DelayedSetup{.history = kMicro, .batch = 4, .accumulation = 2}, 1);
  for (const DelayedSetup& other :
       {DelayedSetup{.history = kMicro, .ranks = 2, .batch = 2, .accumulation = 2},
        {.history = kMicro, .ranks = 4, .batch = 1, .accumulation = 2},
        {.history = kMicro, .ranks = 2, .batch = 2, .accumulation = 2, .parallel = "fsdp"}}) {
    INFO(other.ranks << " ranks, " << other.parallel);
    CHECK(run(other, 1).scales == one.scales);
  }
  for (const DelayedSetup& setup :
       {DelayedSetup{.history = kMicro, .ranks = 2, .accumulation = 2, .parallel = "fsdp", .gather = "fp8"},
        {.kind = Kind::moe, .history = kMicro, .ranks = 2, .accumulation = 2, .ep = 2},
        {.kind = Kind::weighted_rows,
        .history = kMicro,
        .ranks = 2,
        .accumulation = 2,
        .ep = 2,
        .dispatch = "fp8"}}) {
    std::mutex mutex;
    std::vector<State> seen;
    run(delayed_plan(setup), 3, [&](Rank& rank, const DataSource&, int step) {
      State scales = scales_of(rank);
      const std::lock_guard lock(mutex);
      if (step == 2) seen.push_back(std::move(scales));
    });
    CHECK(seen.at(0) == seen.at(1));
  }
}

TEST_CASE("delayed scaling: a weight cast once per step enters the history once", "[delayed]") {
  const auto moved = [](const DelayedSetup& setup, LinearOperand operand) {
    const State scales = run(setup, 3).scales;
    const std::size_t slots = scales.at("scales/known").size(),
                      kept = scales.at("scales/history").size() / slots;
    const float* history =
        scales.at("scales/history").data() + static_cast<std::size_t>(operand) * (slots / 3) * kept;
    return kept - static_cast<std::size_t>(std::count(history, history + kept, 0.0f));  // of layer 0's qkv
  };
  DelayedSetup setup{.history = kMicro, .ranks = 2, .batch = 1, .accumulation = 2, .parallel = "fsdp"};
  CHECK(moved(setup, LinearOperand::x) == 6);
  CHECK(moved(setup, LinearOperand::w) == 6);
  setup.gather = "fp8";
  CHECK(moved(setup, LinearOperand::x) == 6);
  CHECK(moved(setup, LinearOperand::w) == 3);
  setup.history = {};
  CHECK(moved(setup, LinearOperand::x) == 3);
}
