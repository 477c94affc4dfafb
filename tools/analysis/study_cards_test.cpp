// Cards from rows whose truth is known: what is paired with what, which tests decide, and how far ladders go.
#include "tools/analysis/study_cards.h"

#include <cmath>
#include <functional>

#include "tools/analysis/study_samples.h"
#include "tools/testing/catch.h"
#include "tools/testing/text.h"

using namespace precbench;
using namespace precbench::study_samples;

namespace {

/// BF16's mean loss over its forks: trunks 1 to 3, and the sine's mean over the last half.
double bf16_loss() {
  constexpr int kHalf = kSteps / 2;
  double sine = 0;
  for (int step = kHalf; step < kSteps; ++step) sine += std::sin(step) / 10 / kHalf;
  return kLoss + 0.2 + sine;
}

}  // namespace

TEST_CASE("a card has the difference of paired forks, and its verdict", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  rows.add_forks("tensorwise", 0.02, 1e-5, Rows::ask);
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 2);
  const StudyCard& good = cards[0];
  CHECK(good.verdict.recipe == "blockwise");
  CHECK(good.model == "llama3.2-1b");
  CHECK(good.machine == "NVIDIA H200");
  CHECK(good.verdict.outcome == ForkOutcome::equivalent);
  CHECK_THAT(good.verdict.difference->mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
  // t of two degrees of freedom times 1e-5 over the root of three
  CHECK_THAT(good.verdict.difference->high - good.verdict.difference->mean,
             Catch::Matchers::WithinRel(4.302652730 * 1e-5 / std::sqrt(3.0), 1e-6));
  CHECK_THAT(good.bf16_loss, Catch::Matchers::WithinAbs(bf16_loss(), 1e-12));
  CHECK_THAT(good.margin, Catch::Matchers::WithinRel(kMargin * bf16_loss(), 1e-12));
  CHECK(good.verdict.trunks == 3);
  CHECK(good.fork_steps == kSteps);
  REQUIRE(good.floor);
  CHECK(*good.floor < good.margin / 10);
  for (const ControlResult& control : good.controls) CHECK(control.found == true);
  REQUIRE(good.curve.size() == 10);
  CHECK_THAT(good.curve.back().difference.mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
  CHECK(good.controls.size() == 2);
  CHECK(cards[1].verdict.outcome == ForkOutcome::worse);
}

TEST_CASE("without a control that is found, nothing is equivalent", "[study]") {
  Rows rows;
  rows.add_forks("bf16", 0, 0);
  rows.add_forks("bf16", 1e-6, 1e-6, Rows::perturb);
  rows.add_forks("rowwise", 0.001);
  SECTION("one is no worse than what it must be told apart from") {
    rows.add_forks("rowwise_e5m2", 0.001, 2e-4, [](Record& row) { row.study->apart_from = "rowwise"; });
    rows.add_forks("rowwise_e4m1", 0.1, 1e-5, [](Record& row) { row.study->breaks = true; });
  }
  SECTION("one is within the margin") {
    rows.add_forks("rowwise_e5m2", 0.003, 1e-5, [](Record& row) { row.study->apart_from = "rowwise"; });
    rows.add_forks("rowwise_e4m1", 0.003, 1e-5, [](Record& row) { row.study->breaks = true; });
  }
  SECTION("one kind did not run") {
    rows.add_forks("rowwise_e5m2", 0.003, 1e-5, [](Record& row) { row.study->apart_from = "rowwise"; });
    rows.add_forks("rowwise_e4m1", 0.1, 1e-5, [](Record& row) {
      row.study->breaks = true;
      row.status = Status::unsupported;
      row.training.reset();
    });
  }
  SECTION("there is none") {}
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK(cards[0].verdict.outcome == ForkOutcome::inconclusive);
  CHECK(cards[0].verdict.reason.find("control") != std::string::npos);
}

TEST_CASE("a study that cannot see harm says what would help", "[study]") {
  const auto reason_with = [](const std::function<void(Rows&)>& controls, double noise = 1e-6) {
    Rows rows;
    rows.add_forks("bf16", 0, 0);
    rows.add_forks("bf16", noise, noise, Rows::perturb);
    rows.add_forks("rowwise", 0.001);
    controls(rows);
    rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
    return study_cards(rows.refs()).at(0).verdict.reason;
  };
  const auto with = [](double e5m2, double e4m1, double spread) {
    return [=](Rows& rows) {
      rows.add_forks("rowwise_e5m2", e5m2, spread, [](Record& row) { row.study->apart_from = "rowwise"; });
      rows.add_forks("rowwise_e4m1", e4m1, spread, [](Record& row) { row.study->breaks = true; });
    };
  };
  // Half of the margin is 0.0052 nats.
  CHECK(contains(reason_with(with(0.003, 0.006, 1e-3)), "rowwise_e4m1 beyond half the margin (about "));
  CHECK(contains(reason_with(with(0.003, 0.003, 1e-4)),
                 "rowwise_e4m1 beyond half the margin (no number of trunks would; "
                 "more tokens a step or longer forks may)"));
  CHECK(contains(reason_with(with(0.0012, 0.1, 1e-3)), "rowwise_e5m2 apart from rowwise (about "));
  const std::string loud = reason_with(with(0.003, 0.1, 1e-5), 5e-4);
  INFO(loud);
  CHECK((contains(loud, "above a tenth of the margin") && contains(loud, "(about ")));
  CHECK(contains(reason_with(with(0.003, 0.1, 1e-5), 2e-3),
                 "(no number of trunks would; more tokens a step may)"));
}

TEST_CASE("a row is compared with BF16 of its own trunk, age and seed only", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  // Lower by far, and without a partner.
  Rows::ask(rows.add("blockwise", StudyPart::fork, 4, 100, -3));
  rows.add("blockwise", StudyPart::fork, 1, 100, -3).study->seed = 2;
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK_THAT(cards[0].verdict.difference->mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
}

TEST_CASE("a difference that grows with the fork has a trend", "[study]") {
  Rows rows;
  rows.add_frame();
  // By 1e-4 with each doubling: the last halves of 12, 24 and 48 steps.
  rows.add_forks("blockwise", 0, 1e-6, [](Record& row) {
    Rows::ask(row);
    for (int step = 0; step < kSteps; ++step)
      row.training->loss[step] += step < 12 ? 1e-4 : step < 24 ? 2e-4 : 3e-4;
  });
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards[0].verdict.trend);
  CHECK_THAT(cards[0].verdict.trend->mean, Catch::Matchers::WithinAbs(1e-4, 1e-9));
  CHECK(cards[0].verdict.trend->low > 0);
}

TEST_CASE("a recipe whose forks end while BF16's do not has diverged", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  Record& bad = rows.add("mxfp8", StudyPart::fork, 1, 100, 0);
  Rows::ask(bad);
  bad.status = Status::diverged;
  bad.training->loss.back() = NAN;
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 2);
  CHECK(cards[1].verdict.outcome == ForkOutcome::diverged);
}

TEST_CASE("a card has the gradient's distance from BF16's, by age and by block", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, [](Record& row) {
    Rows::ask(row);
    const double error = row.study->age == 100 ? 0.04 : 0.05 + 0.01 * static_cast<double>(row.study->trunk);
    const WholeFidelity whole{{error, {}, {}}, {0.99, {}, {}}, {-0.01, {}, {}}};
    row.fidelity = {
        {"none", 2, 4.0, {}, whole, {}, {{"0", error, 0.99, -0.02}, {"1", 2 * error, 0.99, 0.03}}},
        {"ffn:8:4", 2, 4.0, {}, {{9.0, {}, {}}, {0.1, {}, {}}, {5.0, {}, {}}}, {}, {}}};
  });
  const StudyCard card = study_cards(rows.refs()).at(0);
  REQUIRE(card.fidelity.size() == 2);
  CHECK((card.fidelity[0].age == 100 && card.fidelity[0].error == Approx(0.04)));
  CHECK((card.fidelity[1].age == 200 && card.fidelity[1].error == Approx(0.07)));
  CHECK(card.fidelity[1].bias == Approx(-0.01));
  REQUIRE(card.layers.size() == 2);
  CHECK((card.layers[1].error == Approx(0.14) && card.layers[1].bias == Approx(0.03)));
}

TEST_CASE("a place that no study gives is none", "[study]") {
  const double nan = std::nan("");
  for (const auto& spoil : std::vector<std::function<void(StudyPlace&)>>{
           [&](StudyPlace& place) { place.rung = nan; }, [&](StudyPlace& place) { place.margin = nan; },
           [](StudyPlace& place) { place.margin = -1; }, [](StudyPlace& place) { place.level = 0; },
           [](StudyPlace& place) { place.level = 1; }}) {
    Rows rows;
    rows.add_frame();
    rows.add_forks("blockwise", 0.0012, 1e-5, [&](Record& row) {
      Rows::ask(row);
      spoil(*row.study);
    });
    CHECK(study_cards(rows.refs()).empty());
  }
}

TEST_CASE("rows of a trunk that was run again are paired with BF16 of the same state only", "[study]") {
  const auto fork_another = [](Record& row) {
    auto init = *row.definition->init;
    init["fingerprint"] = "fedcba9876543210";
    row.definition->init = std::make_shared<const nlohmann::ordered_json>(init);
  };
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  rows.add_forks("blockwise", -3, 1e-5, fork_another);  // no BF16 fork of that state
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK_THAT(cards[0].verdict.difference->mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
}

TEST_CASE("a recipe that could not run says why", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0, 0, [](Record& row) {
    Rows::ask(row);
    row.status = Status::unsupported;
    row.error = "K=96 is not a multiple of 128";
    row.training.reset();
  });
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK(cards[0].verdict.outcome == ForkOutcome::inconclusive);
  CHECK(cards[0].verdict.reason == "it does not run here: K=96 is not a multiple of 128");
}

TEST_CASE("cards.json has the keys that its readers know", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  const auto json = cards_to_json(study_cards(rows.refs()));
  REQUIRE(json.size() == 1);
  const auto keys_of = [](const nlohmann::ordered_json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys;
  };
  using Keys = std::vector<std::string>;
  CHECK(keys_of(json[0]) == Keys{"model", "recipe", "verdict", "reason", "fork", "trend", "fidelity",
                                 "ladders", "controls", "machine", "study"});
  CHECK(keys_of(json[0]["fork"]) == Keys{"difference", "low", "high", "age", "ages", "floor", "margin",
                                         "bf16_loss", "trunks", "seeds", "steps"});
  CHECK(keys_of(json[0]["trend"]) == Keys{"slope", "low", "high"});
  CHECK(keys_of(json[0]["ladders"]) ==
        Keys{"outlier_ffn", "outlier_norm", "outlier_vo", "learning_rate", "bits", "exponent_bits", "batch"});
  CHECK(json[0]["controls"][0]["found"] == true);
}
