// Training on documents of prompt and answer: the loss is the mean over all answers of a step, however ranks and
// micro-steps divide them.
#include <fmt/format.h>

#include "bench/step/fidelity.h"
#include "bench/step/held_out.h"
#include "bench/step/rank_setup_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kLongest = 33;  // of --seq 32

/// Documents with answers of 1 to 28 tokens: means over ranks or micro-steps would weigh their tokens unequally.
std::string documents(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    nlohmann::json prompt = nlohmann::json::array(), answer = nlohmann::json::array();
    for (int t = 0; t < 2 + i % 4; ++t) prompt.push_back((7 * i + t) % 100);
    for (int t = 0; t < 1 + (i * i) % 28; ++t) answer.push_back((5 * i + 3 * t + 1) % 100);
    text += nlohmann::json{{"prompt", prompt}, {"answer", answer}}.dump() + "\n";
  }
  return text;
}

/// Returns the mean loss of the answers of sequences [0, count) at the initial weights, one sequence at a time.
double mean_of_answers(const Plan& plan, std::uint64_t count) {
  double sum = 0, targets = 0;
  with_ranks(plan, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    rank.parameters().begin_step();
    std::vector<std::int32_t> tokens(kLongest);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::vector<float> losses = rank.token_losses(rank.transformer(), data, {i});
      std::vector<std::uint8_t> marks(losses.size());
      data.mark_counted(i, std::ssize(losses), marks.data());
      for (std::size_t t = 0; t < losses.size(); ++t) sum += marks[t] ? losses[t] : 0, targets += marks[t];
    }
  });
  return sum / targets;
}

}  // namespace

TEST_CASE("Rank: the loss of documents is the mean over the answers of all ranks and micro-steps",
          "[rank][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", documents(20));
  Setup one{.batch = 1, .data = path};
  const double expected = mean_of_answers(plan_of(one), 4);
  one.accumulation = 4;
  const Trained whole = train(one);
  CHECK(whole.losses[0] == Approx(expected).epsilon(1e-6));
  for (const Setup& setup :
       {Setup{.batch = 4}, Setup{.batch = 2, .accumulation = 2}, Setup{.ranks = 2, .batch = 2},
        Setup{.ranks = 2, .parallel = "fsdp", .batch = 1, .accumulation = 2}, Setup{.ranks = 4, .batch = 1},
        Setup{.ranks = 4, .batch = 2, .context = 2}}) {
    Setup parts = setup;
    parts.data = path;
    INFO(parts.ranks << " ranks, batch " << parts.batch << ", accumulation " << parts.accumulation
                     << ", context " << parts.context);
    const Trained same = train(parts);
    for (int i = 0; i < kSteps; ++i) CHECK(same.losses[i] == Approx(whole.losses[i]).epsilon(1e-4));
    CHECK(same.losses[0] == Approx(expected).epsilon(1e-6));
    CHECK(same.norms[0] == Approx(whole.norms[0]).epsilon(1e-3));
  }
}

TEST_CASE("HeldOut: the loss of documents is the mean over their answers", "[held_out][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", documents(6));
  for (const int ranks : {1, 2}) {
    Plan plan = plan_of({.ranks = ranks, .batch = 1});
    plan.fields.eval_data = path;
    plan.fields.eval_tokens = 6 * plan.T;
    const HeldOut held_out(plan);
    const Plan training = plan_of({.batch = 1, .data = path});
    std::vector<Evaluation> results(ranks);
    run_cpu_ranks(plan, dry_run(plan, nullptr).extent + watching_bytes(plan),
                  [&](Rank& rank, const DataSource&) {
                    rank.parameters().initialize(plan.seed, kInitialDeviation);
                    results[rank.comm().rank()] = held_out.evaluate(rank, 0);
                  });
    // The order differs, but all six documents are read.
    CHECK(*results[0].loss == Approx(mean_of_answers(training, 6)).epsilon(1e-6));
    std::int64_t answers = 0;
    for (int i = 0; i < 6; ++i) answers += 1 + (i * i) % 28;
    CHECK(results[0].tokens == answers);
    CHECK(*results[0].loss_error > 0);
  }
}

TEST_CASE("fidelity: outputs of documents are compared on their answers", "[fidelity][documents]") {
  const TempDirectory directory;
  const Plan plan =
      plan_of({.recipe = "tensorwise", .batch = 4, .data = directory.write("chat.jsonl", documents(6))});
  with_ranks(plan, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    rank.prepare(data, 0, 0);
    double answers = 0;
    for (std::uint64_t i = 0; i < 4; ++i) answers += static_cast<double>(data.counted_targets(i, plan.T));
    CHECK(answers < 0.9 * 4 * plan.T);
    CHECK(compare_outputs(rank, plan).tokens == answers);
  });
}

namespace {

/// Returns the number of sequences of packed documents.
int packs_of(const std::string& path) {
  const Plan plan = plan_of({.data = path, .packing = "on"});
  return static_cast<int>(tokens_of(plan)->sequences(plan.T));
}

}  // namespace

TEST_CASE("Rank: an epoch of packed documents is a step on each of them alone", "[rank][documents]") {
  const TempDirectory directory;
  constexpr int kCount = 24;
  const std::string path = directory.write("chat.jsonl", documents(kCount));
  const Trained alone = train({.batch = kCount, .data = path});
  // As many sequences as 4 ranks or micro-steps can divide: further ones belong to the next epoch.
  const int packs = packs_of(path);
  REQUIRE(packs < kCount * 3 / 4);
  const auto packed = [&](Setup setup) {
    setup.data = path;
    setup.packing = "on";
    return train(setup);
  };
  const Trained together = packed({.batch = packs});
  // BF16 operands: the same values in other places, whose products are added up in another order.
  CHECK(together.losses[0] == Approx(alone.losses[0]).epsilon(1e-5));
  CHECK(together.norms[0] == Approx(alone.norms[0]).epsilon(1e-3));
  for (int i = 1; i < kSteps; ++i) CHECK(together.losses[i] == Approx(alone.losses[i]).epsilon(1e-3));
  const Trained micro = packed({.batch = 1, .accumulation = packs});
  CHECK(micro.losses[0] == Approx(alone.losses[0]).epsilon(1e-5));
  const Trained whole = packed({.batch = 4});
  for (const Setup& setup :
       {Setup{.ranks = 2, .batch = 2}, Setup{.ranks = 2, .parallel = "fsdp", .batch = 1, .accumulation = 2},
        Setup{.ranks = 2, .batch = 4, .context = 2}, Setup{.ranks = 4, .batch = 2, .context = 2},
        Setup{.ranks = 4, .batch = 4, .context = 4, .context_exchange = "ring"}}) {
    INFO(setup.ranks << " ranks, batch " << setup.batch << ", context " << setup.context);
    const Trained same = packed(setup);
    for (int i = 0; i < kSteps; ++i) CHECK(same.losses[i] == Approx(whole.losses[i]).epsilon(1e-4));
    CHECK(same.norms[0] == Approx(whole.norms[0]).epsilon(1e-3));
  }
}

TEST_CASE("HeldOut: packed documents have the losses that they have alone", "[held_out][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", documents(12));
  const auto evaluated = [&](const std::string& packing, std::int64_t sequences) {
    Plan plan = plan_of({.batch = 1, .data = path, .packing = packing});
    plan.fields.eval_data = path;
    plan.fields.eval_tokens = sequences * plan.T;
    const HeldOut held_out(plan);
    Evaluation result;
    run_cpu_ranks(plan, dry_run(plan, nullptr).extent + watching_bytes(plan),
                  [&](Rank& rank, const DataSource&) {
                    rank.parameters().initialize(plan.seed, kInitialDeviation);
                    result = held_out.evaluate(rank, 0);
                  });
    return result;
  };
  const Evaluation alone = evaluated("off", 12);
  Plan plan = plan_of({.data = path, .packing = "on"});
  plan.fields.eval_data = path;
  const Evaluation packed =
      evaluated("on", open_data(held_out_options(plan.fields, plan.model))->sequences(plan.T));
  CHECK(*packed.loss == Approx(*alone.loss).epsilon(1e-5));
  CHECK(packed.tokens == alone.tokens);
}

TEST_CASE("validate: packed documents are counted by their own lengths", "[plan][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", documents(24));
  const Plan alone = plan_of({.data = path}), packed = plan_of({.data = path, .packing = "on"});
  CHECK(packed.flops_per_token() < alone.flops_per_token());
  CHECK(dry_run(packed, nullptr).model_flops() ==
        Approx(static_cast<double>(packed.flops_per_token() * packed.tokens_per_step())).epsilon(1e-6));
  CHECK(plan_of({.data = "missing.jsonl", .packing = "on"}).packed == nullptr);  // the run says so
  CHECK_THROWS_AS(plan_of({.packing = "on"}), InvalidInput);
}
