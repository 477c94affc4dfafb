// Cards from rows whose truth is known: what is paired with what, which tests decide, and how far ladders go.
#include "tools/analysis/study_cards.h"

#include <cmath>
#include <functional>

#include "tools/analysis/study_rows_testing.h"
#include "tools/testing/catch.h"

using namespace precbench;
using namespace precbench::study_rows;

namespace {

/// BF16's mean loss over its forks: trunks 1 to 3, and the sine's mean over the last half.
double bf16_loss() {
  double sine = 0;
  for (int step = kSteps / 2; step < kSteps; ++step) sine += std::sin(step) / 10 / (kSteps / 2);
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

TEST_CASE("ladders end where a recipe breaks", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, [](Record& row) {
    Rows::ask(row);
    const auto at = [](const std::string& stress, double error) {
      const WholeFidelity whole{{error, {}, {}}, {0.99, {}, {}}, {-0.01, {}, {}}};
      return Fidelity{stress, 2, 4.0, {}, whole, {}, {}};
    };
    row.fidelity = {at("none", 0.06), at("ffn:8:4", 0.07), at("ffn:12:4", 0.11), at("ffn:16:4", 3.0),
                    at("norm:8:4", 0.13)};
  });
  for (const double factor : {3.0, 10.0, 30.0}) {
    // BF16 falls by 0.2 within the fork at the first two, and rises at the third, which then says nothing of others.
    Record& bf16 = rows.add("bf16", StudyPart::learning_rate, 1, 200, 0, factor);
    for (int step = 0; step < kSteps; ++step)
      bf16.training->loss[step] += (factor < 30 ? -0.5 : 0.5) * step / kSteps;
    Record& row = rows.add("blockwise", StudyPart::learning_rate, 1, 200, 0, factor);
    row.training->loss = bf16.training->loss;
    for (double& loss : row.training->loss) loss += factor == 10 ? 0.02 : 0.001;
  }
  for (const int bits : {1, 2}) {
    Record& row = rows.add("blockwise_minus", StudyPart::bits, 1, 200, bits == 1 ? 0.004 : 0.03, bits);
    row.study->base = "blockwise";
  }
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  const StudyCard& card = cards[0];
  CHECK((card.outlier_ffn.holds() == 12 && card.outlier_ffn.breaks() == 16));
  CHECK((card.outlier_norm.holds() == std::nullopt && card.outlier_norm.breaks() == 8));
  CHECK(card.bf16_learning_rate == 10);
  CHECK(card.learning_rate.rungs.size() == 2);
  CHECK((card.learning_rate.holds() == 3 && card.learning_rate.breaks() == 10));
  CHECK((card.bits.holds() == 1 && card.bits.breaks() == 2));
  CHECK(card.batch.rungs.empty());
  REQUIRE(card.fidelity.size() == 2);
  CHECK((card.fidelity[1].age == 200 && card.fidelity[1].error == Approx(0.06)));
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
                                 "ladders", "controls", "machine"});
  CHECK(keys_of(json[0]["fork"]) ==
        Keys{"difference", "low", "high", "age", "floor", "margin", "bf16_loss", "trunks", "seeds", "steps"});
  CHECK(keys_of(json[0]["trend"]) == Keys{"slope", "low", "high"});
  CHECK(keys_of(json[0]["ladders"]) == Keys{"outlier_ffn", "outlier_norm", "learning_rate", "bits", "batch"});
  CHECK(json[0]["controls"][0]["found"] == true);
}
