// The three answers of a study by deployment, on synthetic rows of known truth.
#include "tools/analysis/deployment.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/analysis/study_cards.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using study_samples::Rows;

namespace {

/// Losses of a recipe's forks: in their weights, and by reading weights in it.
struct Truth {
  double weights = 0, reading = 0, own_reading = 0;
};

/// Loss of BF16's forks read in BF16, nats; a margin of 0.25% of it is 0.01.
constexpr double kHeldOut = 4;

/// Adds an evaluation with the readings `recipes` to a row. `weights`: loss of its weights read in BF16, minus BF16's.
/// `reading(recipe)`: the cost of reading them in a recipe.
template <class Cost>
void add_readings(Record& row, double weights, const std::vector<std::string>& recipes, const Cost& reading) {
  const double trunk = 0.01 * static_cast<double>(row.study->trunk);  // common to all forks of a trunk
  Evaluation last;
  last.step = study_samples::kSteps, last.tokens = 4096;
  last.readings.emplace();
  const auto add = [&](const std::string& recipe, double cost) {
    const double loss = kHeldOut + trunk + weights + cost;
    Reading& one = last.readings->emplace_back(Reading{recipe, loss, {loss - 0.5, loss + 0.5}});
    if (recipe != "bf16")
      one.outputs = OutputDistance{4096, true, {0.01, 0.01, 0.01}, 1 + cost, {cost / 2, {}, {}}, 3.0};
  };
  add("bf16", 0);
  for (const std::string& recipe : recipes) add(recipe, reading(recipe));
  last.bf16_loss = last.readings->front().loss;
  row.training->evaluations = {last};
}

/// Adds the frame of a study and forks of one recipe with this truth.
Rows study_of(const Truth& truth, double spread = 1e-6) {
  Rows rows;
  const std::vector<std::string> read = {"blockwise"};
  rows.add_forks("bf16", 0, 0,
                 [&](Record& row) { add_readings(row, 0, read, [&](auto&) { return truth.reading; }); });
  rows.add_forks("bf16", 1e-6, 1e-6, [&](Record& row) {
    Rows::perturb(row);
    add_readings(row, 1e-6 * static_cast<double>(row.study->trunk), read,
                 [&](auto&) { return truth.reading; });
  });
  rows.add_forks("rowwise", 0.001);
  rows.add_forks("rowwise_e5m2", 0.003, 1e-5, [](Record& row) { row.study->apart_from = "rowwise"; });
  rows.add_forks("rowwise_e4m1", 0.1, 1e-5, [](Record& row) { row.study->breaks = true; });
  rows.add_forks("blockwise", 0.02, 1e-5, [&](Record& row) {
    Rows::ask(row);
    add_readings(row, truth.weights + spread * static_cast<double>(row.study->trunk - 2), read,
                 [&](auto&) { return truth.own_reading; });
  });
  return rows;
}

bool is_near(double a, double b) { return std::fabs(a - b) < 1e-6; }

}  // namespace

TEST_CASE("Deployment: each answer compares equal readings and has a verdict of its own",
          "[study][deployment]") {
  // As FP8 costs a trained model: little in the weights, more in reading, which hurts BF16's weights more.
  const Rows rows = study_of({.weights = 0.002, .reading = 0.022, .own_reading = 0.012});
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  REQUIRE(cards[0].deployment);
  const Deployment& one = *cards[0].deployment;
  CHECK((one.in_bf16 && one.in_recipe && one.raw));
  CHECK(is_near(one.in_bf16->verdict.difference->mean, 0.002));
  CHECK(is_near(one.in_recipe->verdict.difference->mean, 0.002 + 0.012 - 0.022));
  CHECK(is_near(one.raw->verdict.difference->mean, 0.002 + 0.012));
  CHECK(one.in_bf16->verdict.outcome == ForkOutcome::equivalent);  // within half of 0.01 nats
  CHECK(one.in_recipe->verdict.outcome == ForkOutcome::better);
  CHECK(one.raw->verdict.outcome == ForkOutcome::worse);
  CHECK(is_near(one.bf16_loss, kHeldOut + 0.02));
  CHECK(one.tokens == 4096);
  // The groups of a text of equal differences say that the text adds no error.
  REQUIRE(one.raw->text);
  CHECK(*one.raw->text < 1e-9);
  REQUIRE((one.of_bf16_weights && one.of_recipe_weights));
  CHECK(is_near(one.of_bf16_weights->kl, 0.011));
  CHECK(is_near(one.of_recipe_weights->kl, 0.006));
  CHECK(is_near(one.of_recipe_weights->largest_log_probability, 1.012));
}

TEST_CASE("Deployment: a difference is also a share of BF16's loss and in nats per byte of known tokens",
          "[study][deployment]") {
  Rows rows;
  double length = 4;
  const auto evaluated = [&](double loss) {
    return [&, loss](Record& row) {
      // Older, BF16's loss and the difference are smaller.
      const double own = kHeldOut + (row.study->age == 200 ? loss / 2 - 1 : loss);
      row.training->evaluations = {{study_samples::kSteps, 4096, own, {}, own}};
      row.training->held_out_bytes_per_token = length;
      if (loss != 0) Rows::ask(row);
    };
  };
  rows.add_forks("bf16", 0, 0, evaluated(0));
  rows.add_forks("mxfp8", 0, 0, evaluated(0.02));
  const DeploymentAnswer answer = *study_cards(rows.refs())[0].deployment.value().in_bf16;
  CHECK(answer.verdict.age == 100);
  CHECK(is_near(answer.share.value().mean, 0.02 / kHeldOut));
  CHECK(is_near(answer.share->high, answer.verdict.difference->high / kHeldOut));
  CHECK(is_near(answer.per_byte.value().mean, 0.005));
  Rows mixed;
  mixed.add_forks("bf16", 0, 0, [&](Record& row) { length = row.study->trunk == 1 ? 4 : 3, evaluated(0)(row); });
  mixed.add_forks("mxfp8", 0, 0, evaluated(0.02));
  CHECK_FALSE(study_cards(mixed.refs())[0].deployment->in_bf16->per_byte);
}

TEST_CASE("Deployment: few trunks and a loud floor settle nothing", "[study][deployment]") {
  const auto outcome_of = [](double spread) {
    return study_cards(study_of({.weights = 0.002}, spread).refs())[0].deployment->in_bf16->verdict.outcome;
  };
  CHECK(outcome_of(1e-6) == ForkOutcome::equivalent);
  CHECK(outcome_of(0.01) == ForkOutcome::inconclusive);
}

TEST_CASE("Deployment: a recipe that reads BF16's weights loudly leaves the others' verdicts alone",
          "[study][deployment]") {
  Rows rows;
  const std::vector<std::string> read = {"blockwise", "mxfp8"};
  const auto add = [&](Record& row, double loud) {
    add_readings(row, 0, read, [&](const std::string& recipe) {
      return recipe == "mxfp8" ? loud * static_cast<double>(row.study->trunk - 2) : 0.02;
    });
  };
  rows.add_forks("bf16", 0, 0, [&](Record& row) { add(row, 0); });
  rows.add_forks("bf16", 1e-6, 1e-6, [&](Record& row) { Rows::perturb(row), add(row, 0.01); });
  rows.add_forks("rowwise", 0.001);
  rows.add_forks("rowwise_e5m2", 0.003, 1e-5, [](Record& row) { row.study->apart_from = "rowwise"; });
  rows.add_forks("rowwise_e4m1", 0.1, 1e-5, [](Record& row) { row.study->breaks = true; });
  for (const std::string& recipe : read)
    rows.add_forks(recipe, 0.02, 1e-5, [&](Record& row) { Rows::ask(row), add(row, 0); });
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 2);
  const auto in_recipe = [&](std::size_t i) { return cards[i].deployment.value().in_recipe.value().verdict; };
  CHECK(in_recipe(0).outcome == ForkOutcome::equivalent);
  CHECK(in_recipe(1).outcome == ForkOutcome::inconclusive);
  CHECK(contains(in_recipe(1).reason, "the noise floor"));
}

TEST_CASE("Deployment: older records answer for BF16 and the raw gap, not for the recipe",
          "[study][deployment]") {
  Rows rows;
  const auto evaluated = [](double loss, double bf16_loss) {
    return [=](Record& row) {
      row.training->evaluations = {{study_samples::kSteps, 4096, kHeldOut + loss, {}, kHeldOut + bf16_loss}};
      if (loss != bf16_loss) Rows::ask(row);
    };
  };
  rows.add_forks("bf16", 0, 0, evaluated(0, 0));
  rows.add_forks("mxfp8", 0.02, 1e-5, evaluated(0.0149, 0.007));
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  const Deployment& one = cards[0].deployment.value();
  CHECK(is_near(one.in_bf16->verdict.by_age[0].mean.value(), 0.007));
  CHECK(is_near(one.raw->verdict.by_age[0].mean.value(), 0.0149));
  CHECK_FALSE(one.in_recipe);
  CHECK_FALSE(one.in_bf16->text);
  CHECK_FALSE(one.of_bf16_weights);
  // Without the noise floor nothing may be called equivalent.
  CHECK(one.in_bf16->verdict.outcome != ForkOutcome::equivalent);
}

TEST_CASE("Deployment: there is none without held-out losses, nor of a run that ended early",
          "[study][deployment]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.001, 1e-5, Rows::ask);
  CHECK_FALSE(study_cards(rows.refs())[0].deployment);
  Rows early;
  const auto at_step = [](std::int64_t step) {
    return [=](Record& row) { row.training->evaluations = {{step, 4096, kHeldOut, {}, kHeldOut}}; };
  };
  early.add_forks("bf16", 0, 0, at_step(study_samples::kSteps));
  early.add_forks("blockwise", 0.001, 1e-5, [&](Record& row) {
    Rows::ask(row);
    at_step(study_samples::kSteps / 2)(row);
  });
  CHECK_FALSE(study_cards(early.refs())[0].deployment);
}

TEST_CASE("cards_to_json: a deployment has its documented keys", "[study][deployment]") {
  const auto json =
      cards_to_json(study_cards(study_of({.weights = 0.002, .reading = 0.02, .own_reading = 0.01}).refs()));
  const auto& deployment = json.at(0).at("deployment");
  std::vector<std::string> keys;
  for (const auto& [key, value] : deployment.items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"tokens", "bf16_loss", "bytes_per_token", "in_bf16", "in_recipe", "raw",
                                         "across", "same_weights"});
  CHECK(std::fabs(deployment["raw"]["share"]["mean"].get<double>() - 0.012 / (kHeldOut + 0.02)) < 1e-6);
  CHECK(deployment["raw"]["per_byte"]["mean"].is_null());
  CHECK(deployment["in_recipe"]["verdict"] == "better");
  CHECK(deployment["raw"]["ages"].size() == 2);
  CHECK(deployment["same_weights"]["trained_in_bf16"]["kl"] == 0.01);
}
