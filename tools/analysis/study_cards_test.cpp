// Tests cards on rows with a known truth: pairing of forks, deciding tests and ladders.
#include "tools/analysis/study_cards.h"

#include <cmath>
#include <functional>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using namespace precbench::study_samples;

namespace {

/// Returns BF16's mean loss over its forks: trunks 1 to 3, plus the mean of the sine over the last half.
double bf16_loss() {
  constexpr int kHalf = kSteps / 2;
  double sine = 0;
  for (int step = kHalf; step < kSteps; ++step) sine += std::sin(step) / 10 / kHalf;
  return kLoss + 0.2 + sine;
}

}  // namespace

TEST_CASE("study_cards: a card has the difference of paired forks and its verdict", "[study]") {
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
  // t with two degrees of freedom, times 1e-5 / sqrt(3)
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

TEST_CASE("study_cards: every size that the settings had and the forks have reached is a look", "[study]") {
  const auto verdict_of = [](const std::vector<std::optional<std::vector<StudySize>>>& by_trunk) {
    Rows rows;
    rows.add_frame();
    rows.add_forks("blockwise", 0.0012, 1e-5, [&](Record& row) {
      Rows::ask(row);
      row.study->sizes = by_trunk[static_cast<std::size_t>(row.study->trunk) - 1];
    });
    return study_cards(rows.refs()).front().verdict;
  };
  using Sizes = std::vector<StudySize>;
  const Sizes three = {{3, 1, 2}}, eight = {{3, 1, 2}, {8, 1, 2}};
  CHECK(verdict_of({{}, {}, {}}).looks.count() == 0);
  CHECK(verdict_of({three, three, three}).looks.trunks == std::vector<std::int64_t>{3});
  CHECK(verdict_of({three, three, three}).outcome == ForkOutcome::equivalent);
  // A size of two trunks gives no verdict; one age or seed fewer is another look at the same trunks.
  CHECK(verdict_of({Sizes{{2, 1, 2}, {3, 1, 2}}, Sizes{{2, 1, 2}, {3, 1, 2}}, three}).looks.count() == 1);
  CHECK(verdict_of({Sizes{{3, 1, 1}, {3, 1, 2}}, three, three}).looks.count() == 2);
  const ForkVerdict begun = verdict_of({eight, eight, eight});
  CHECK(begun.outcome == ForkOutcome::inconclusive);
  CHECK(begun.looks.awaited == 8);
  CHECK(contains(begun.reason, "not all forks of its 8 trunks"));
  // Fewer trunks than once asked for: the size that was never reached is no look.
  CHECK(verdict_of({Sizes{{8, 1, 2}, {3, 1, 2}}, Sizes{{8, 1, 2}, {3, 1, 2}}, three}).looks.trunks ==
        std::vector<std::int64_t>{3});
  // Rows of an older version, then one more trunk.
  CHECK(verdict_of({{}, {}, three}).looks.trunks == std::vector<std::int64_t>{3});
}

TEST_CASE("study_cards: every age has a margin of its own, a fraction of its BF16 loss", "[study]") {
  // At age 200 every loss is 3 nats lower: half the margin is 0.0053 nats at age 100 and 0.0015 at age 200. Of the
  // mean loss it would be 0.0034.
  const auto older = [](Record& row) {
    if (row.study->age == 200)
      for (double& loss : row.training->loss) loss -= 3;
  };
  Rows rows;
  rows.add_forks("bf16", 0, 0, older);
  rows.add_forks("bf16", 1e-6, 1e-6, [&](Record& row) { Rows::perturb(row), older(row); });
  rows.add_forks("rowwise", 0.001, 1e-5, older);
  rows.add_forks("rowwise_e5m2", 0.003, 1e-5,
                 [&](Record& row) { row.study->apart_from = "rowwise", older(row); });
  rows.add_forks("rowwise_e4m1", 0.1, 1e-5, [&](Record& row) { row.study->breaks = true, older(row); });
  const auto add = [&](const std::string& recipe, double young, double old) {
    rows.add_forks(recipe, 0, 1e-5, [&](Record& row) {
      Rows::ask(row), older(row);
      for (double& loss : row.training->loss) loss += row.study->age == 200 ? old : young;
    });
  };
  add("blockwise", 0.0045, 0.0012);
  add("tensorwise", 0.0012, 0.0025);
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 2);
  CHECK_THAT(cards[0].bf16_loss, Catch::Matchers::WithinAbs(bf16_loss() - 1.5, 1e-12));
  CHECK_THAT(cards[0].margin, Catch::Matchers::WithinRel(kMargin * (bf16_loss() - 3), 1e-9));
  CHECK_THAT(cards[0].gaps.at(0).bf16_loss, Catch::Matchers::WithinAbs(bf16_loss(), 1e-12));
  CHECK_THAT(cards[0].gaps.at(1).bf16_loss, Catch::Matchers::WithinAbs(bf16_loss() - 3, 1e-12));
  CHECK(cards[0].verdict.recipe == "blockwise");
  CHECK(cards[0].verdict.outcome == ForkOutcome::equivalent);
  CHECK(cards[1].verdict.outcome == ForkOutcome::worse);
}

TEST_CASE("study_cards: nothing is equivalent unless both kinds of control are found", "[study]") {
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

TEST_CASE("study_cards: a missed control or a high noise floor is reported with a remedy", "[study]") {
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
  // Half the margin is 0.0052 nats.
  CHECK(contains(reason_with(with(0.003, 0.006, 1e-3)), "rowwise_e4m1 beyond half the margin (about "));
  CHECK(contains(reason_with(with(0.003, 0.003, 1e-4)),
                 "rowwise_e4m1 beyond half the margin (no number of trunks would settle it; "
                 "more tokens per step or longer forks may)"));
  CHECK(contains(reason_with(with(0.0012, 0.1, 1e-3)), "rowwise_e5m2 apart from rowwise (about "));
  const std::string loud = reason_with(with(0.003, 0.1, 1e-5), 5e-4);
  INFO(loud);
  CHECK((contains(loud, "above a tenth of the margin") && contains(loud, "(about ")));
  CHECK(contains(reason_with(with(0.003, 0.1, 1e-5), 2e-3),
                 "(no number of trunks would settle it; more tokens per step may)"));
}

TEST_CASE("study_cards: a row is compared only with BF16 of its own trunk and age and seed", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  // Far lower, but without a BF16 partner.
  Rows::ask(rows.add("blockwise", StudyPart::fork, 4, 100, -3));
  rows.add("blockwise", StudyPart::fork, 1, 100, -3).study->seed = 2;
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK_THAT(cards[0].verdict.difference->mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
}

TEST_CASE("study_cards: a difference that grows along the fork has a trend", "[study]") {
  Rows rows;
  rows.add_frame();
  // Grows by 1e-4 per doubling: the last halves of 12, 24 and 48 steps.
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

TEST_CASE("study_cards: a recipe whose fork diverges while BF16 does not is diverged", "[study]") {
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

TEST_CASE("study_cards: a card has the gradient error by age and by block", "[study]") {
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

TEST_CASE("study_cards: rows with an invalid StudyPlace are ignored", "[study]") {
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

TEST_CASE("study_cards: forks are paired only with BF16 of the same checkpoint", "[study]") {
  const auto fork_another = [](Record& row) {
    auto init = *row.definition->init;
    init["fingerprint"] = "fedcba9876543210";
    row.definition->init = std::make_shared<const nlohmann::ordered_json>(init);
  };
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  rows.add_forks("blockwise", -3, 1e-5, fork_another);  // there is no BF16 fork of that state
  const auto cards = study_cards(rows.refs());
  REQUIRE(cards.size() == 1);
  CHECK_THAT(cards[0].verdict.difference->mean, Catch::Matchers::WithinAbs(0.0012, 1e-12));
}

TEST_CASE("study_cards: a recipe that cannot run reports the reason", "[study]") {
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

TEST_CASE("cards_to_json: names the recipes that take over during the forks", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, [](Record& row) {
    Rows::ask(row);
    nlohmann::ordered_json recipe = *row.definition->recipe;
    recipe["schedule"] = nlohmann::ordered_json::parse(R"([{"from": 40, "name": "bf16"}])");
    row.definition->recipe = std::make_shared<const nlohmann::ordered_json>(recipe);
  });
  const auto json = cards_to_json(study_cards(rows.refs()));
  REQUIRE(json.size() == 1);
  CHECK(json[0]["fork"]["recipe_changes"] ==
        nlohmann::ordered_json::parse(R"([{"after_step": 40, "recipe": "bf16"}])"));
}

TEST_CASE("cards_to_json: has the documented keys", "[study]") {
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
  CHECK(keys_of(json[0]) == Keys{"model", "recipe", "verdict", "statement", "reason", "fork", "trend",
                                 "deployment", "against", "loss_gaps", "age_law", "tokens", "trained_tokens",
                                 "steady", "fidelity", "ladders", "controls", "machine", "study"});
  CHECK(keys_of(json[0]["loss_gaps"][0]) == Keys{"age", "tokens_per_parameter", "bf16_loss", "at_switch",
                                                 "over_forks", "course", "held_out", "held_out_in_bf16"});
  CHECK(keys_of(json[0]["loss_gaps"][0]["at_switch"]) == Keys{"loss_gap", "low", "high", "over"});
  CHECK(keys_of(json[0]["loss_gaps"][0]["course"]) == Keys{"shape", "change", "tau", "plateau"});
  CHECK(keys_of(json[0]["tokens"]) == Keys{"law", "source", "horizons"});
  CHECK(keys_of(json[0]["tokens"]["horizons"][0]) ==
        Keys{"tokens", "slope", "factor", "low", "high", "break_even", "exact_factor"});
  CHECK(json[0]["statement"] == "equivalent for llama3.2-1b at an unknown number of tokens per parameter");
  CHECK(keys_of(json[0]["fork"]) == Keys{"loss_gap", "low", "high", "age", "ages", "floor", "margin",
                                         "bf16_loss", "trunks", "seeds", "looks", "steps", "recipe_changes"});
  CHECK(keys_of(json[0]["trend"]) == Keys{"slope", "low", "high"});
  CHECK(keys_of(json[0]["ladders"]) ==
        Keys{"outlier_ffn", "outlier_norm", "outlier_vo", "learning_rate", "bits", "exponent_bits", "batch"});
  CHECK(json[0]["controls"][0]["found"] == true);
}

TEST_CASE("study_cards: tokens per parameter include those before the study and those of the trunk",
          "[study][gap]") {
  const auto card_of = [](const std::string& init_from, std::optional<std::int64_t> trained) {
    Rows rows;
    rows.add_trunks([&](Record& row) { row.case_fields["init_from"] = init_from; });
    rows.add_frame();
    rows.add_forks("blockwise", 0.0012, 1e-5, [&](Record& row) {
      Rows::ask(row);
      row.study->trained_tokens = trained;
    });
    return study_cards(rows.refs()).at(0);
  };
  constexpr double kParameters = 1'235'814'400, kStepTokens = 8 * 2048;
  const StudyCard young = card_of("", {});
  REQUIRE(young.gaps.size() == 2);
  CHECK(young.gaps[0].tokens_per_parameter.value() == Approx(100 * kStepTokens / kParameters));
  CHECK(young.gaps[1].tokens_per_parameter.value() == Approx(200 * kStepTokens / kParameters));
  CHECK(verdict_words(young) == "equivalent for llama3.2-1b at 0.0013 to 0.0027 tokens per parameter");
  const StudyCard trained = card_of("weights.safetensors", 2'000'000'000'000);
  CHECK(trained.gaps[1].tokens_per_parameter.value() == Approx((2e12 + 200 * kStepTokens) / kParameters));
  CHECK(verdict_words(trained) == "equivalent for llama3.2-1b at 1,620 tokens per parameter");
  CHECK(trained.trained_tokens == 2'000'000'000'000);
  // The tokens seen by these weights are unknown; the trunk's steps are only part of them.
  const StudyCard unknown = card_of("weights.safetensors", {});
  CHECK_FALSE(unknown.gaps[1].tokens_per_parameter);
  CHECK(verdict_words(unknown) == "equivalent for llama3.2-1b at an unknown number of tokens per parameter");
}

namespace {

/// Returns a probe's loss difference over `batches` batches, with its interval.
Fidelity probe(double difference, double half, std::int64_t batches = 4) {
  Fidelity one;
  one.stress = "none", one.batches = batches;
  one.loss_difference.mean = difference;
  one.loss_difference.low = difference - half, one.loss_difference.high = difference + half;
  return one;
}

}  // namespace

TEST_CASE("study_cards: the switch gap is the probe's over three trunks or over the batches of fewer",
          "[study][gap]") {
  const auto switch_of = [](int trunks, const std::function<void(Record&)>& change) {
    Rows rows;
    rows.add_frame();
    for (std::int64_t trunk = 1; trunk <= trunks; ++trunk)
      for (const char* recipe : {"bf16", "mxfp8"}) {
        Record& row = rows.add(recipe, StudyPart::fork, trunk, 300, 0.015 * (recipe[0] == 'm'));
        if (recipe[0] != 'm') continue;
        Rows::ask(row);
        change(row);
      }
    return study_cards(rows.refs()).at(0).gaps.at(0).at_switch;
  };
  const auto probed = [](Record& row) {
    row.fidelity = {probe(0.020 + 0.001 * static_cast<double>(row.study->trunk), 0.002), probe(9, 1)};
    row.fidelity.back().stress = "ffn:8:4";
  };
  const SwitchGap three = switch_of(3, probed).value();
  CHECK(three.mean == Approx(0.022));
  CHECK(three.source == SwitchGap::Source::trunks);
  CHECK(three.high.value() - three.mean == Approx(4.302652730 * 0.001 / std::sqrt(3.0)));
  // Two trunks: errors of their means over 4 batches, 0.002 / t(3), with 6 degrees of freedom in all.
  const SwitchGap two = switch_of(2, probed).value();
  CHECK(two.mean == Approx(0.0215));
  CHECK(two.source == SwitchGap::Source::batches);
  CHECK(two.high.value() - two.mean ==
        Approx(2.446911851 * std::sqrt(2.0) * 0.002 / 3.182446305 / 2).epsilon(1e-6));
  // Without a probe the first step is used, whose loss precedes any update.
  const SwitchGap first = switch_of(3, [](Record& row) {
                            row.fidelity.clear();
                            row.training->loss.front() += 0.007;
                          }).value();
  CHECK(first.source == SwitchGap::Source::first_step);
  CHECK(first.mean == Approx(0.022));
}

TEST_CASE("study_cards: forks of 1000 steps have a course and plateau and trend", "[study][gap]") {
  constexpr int kLong = 1000;
  Rows rows;
  rows.add_frame();
  for (std::int64_t trunk = 1; trunk <= 3; ++trunk)
    for (const char* recipe : {"bf16", "mxfp8"}) {
      Record& row = rows.add(recipe, StudyPart::fork, trunk, 300, 0);
      if (recipe[0] == 'm') Rows::ask(row);
      std::vector<double> loss;
      for (int step = 0; step < kLong; ++step)
        loss.push_back(2.3 + std::sin(step) / 10 +
                       (recipe[0] == 'm'
                            ? 0.015 + 1e-5 * static_cast<double>(trunk) + 0.007 * std::exp(-step / 60.0) +
                                  1e-5 * std::sin(7 * step + trunk)
                            : 0));
      row.training->loss = loss;
    }
  const StudyCard card = study_cards(rows.refs()).at(0);
  CHECK(card.fork_steps == kLong);
  REQUIRE((card.gaps.size() == 1 && card.gaps[0].course));
  const ForkCourse& course = *card.gaps[0].course;
  CHECK(course.shape == CourseShape::falling);
  REQUIRE(course.plateau);
  CHECK(course.plateau->mean == Approx(0.01502).margin(2e-5));
  CHECK(course.above_zero());
  CHECK(course.tau == Approx(60).epsilon(0.1));
  CHECK(card.curve.back().step == kLong);
  CHECK(loss_gap_at(card, 300)->mean == Approx(0.01502).margin(2e-5));
}
