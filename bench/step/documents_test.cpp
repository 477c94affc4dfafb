// Training on documents of prompt and answer: the loss is the mean over all answers of a step, however ranks and
// micro-steps divide them.
#include <fmt/format.h>

#include "bench/step/fidelity.h"
#include "bench/step/held_out.h"
#include "bench/step/rank_setup_testing.h"
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
