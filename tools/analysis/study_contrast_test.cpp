// Comparisons with an incumbent: rows with a known truth, and error rates over simulated studies.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/analysis/study_cards.h"
#include "tools/analysis/study_simulation.h"

using namespace precbench;
using namespace precbench::study_simulation;

namespace {

/// Returns the cards of a study with the incumbent nvfp4 at 0.02 nats and blockwise at `difference` from BF16.
std::vector<StudyCard> cards_of(double difference, const std::function<void(Rows&)>& change = {}) {
  static Rows rows;  // the cards point into it
  rows = {};
  rows.add_frame();
  rows.add_forks("nvfp4", 0.02, 1e-5, Rows::ask);
  rows.add_forks("blockwise", difference, 2e-5, Rows::ask);
  if (change) change(rows);
  return study_cards(rows.refs(), "nvfp4");
}

const StudyCard& card_of(const std::vector<StudyCard>& cards, const std::string& recipe) {
  return *std::find_if(cards.begin(), cards.end(),
                       [&](const StudyCard& card) { return card.verdict.recipe == recipe; });
}

/// Returns true if a contrast has one of these outcomes.
auto any_contrast(std::vector<ForkOutcome> outcomes) {
  return [outcomes](const std::vector<StudyCard>& cards) {
    return std::any_of(cards.begin(), cards.end(), [&](const StudyCard& card) {
      return card.contrast &&
             std::count(outcomes.begin(), outcomes.end(), card.contrast->verdict.outcome) > 0;
    });
  };
}

}  // namespace

TEST_CASE("study_cards: a contrast has the difference of forks paired with the incumbent's", "[study]") {
  const auto cards = cards_of(0.012);
  const StudyCard& card = card_of(cards, "blockwise");
  REQUIRE(card.contrast);
  const ForkVerdict& verdict = card.contrast->verdict;
  CHECK(card.contrast->incumbent == "nvfp4");
  CHECK(verdict.outcome == ForkOutcome::better);
  // Both recipes' scatter follows the trunk, so that the pairs differ by 1e-5 from trunk to trunk.
  CHECK_THAT(verdict.difference->mean, Catch::Matchers::WithinAbs(-0.008, 1e-12));
  CHECK_THAT(verdict.difference->high - verdict.difference->mean,
             Catch::Matchers::WithinRel(4.302652730 * 1e-5 / std::sqrt(3.0), 1e-6));
  CHECK(verdict.trunks == 3);
  CHECK(verdict.by_age.size() == 2);
  CHECK(contrast_words(card).starts_with("better than nvfp4 for llama3.2-1b at "));
  // The verdict against BF16 is another: worse.
  CHECK(card.verdict.outcome == ForkOutcome::worse);
  CHECK_FALSE(card_of(cards, "nvfp4").contrast);

  const ForkOutcome worse = card_of(cards_of(0.03), "blockwise").contrast->verdict.outcome,
                    same = card_of(cards_of(0.021), "blockwise").contrast->verdict.outcome;
  CHECK(worse == ForkOutcome::worse);
  CHECK(same == ForkOutcome::equivalent);
}

TEST_CASE("study_cards: cards without an incumbent equal those with one but for the contrast", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("nvfp4", 0.02, 1e-5, Rows::ask);
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  auto with = cards_to_json(study_cards(rows.refs(), "nvfp4")),
       without = cards_to_json(study_cards(rows.refs()));
  for (auto& card : without) CHECK(card.at("against").is_null());
  const auto contrast = with.at(0).at("against");
  CHECK(contrast.at("recipe") == "nvfp4");
  CHECK(contrast.at("verdict") == "better");
  CHECK(contrast.at("fork").at("loss_gap").get<double>() == Approx(-0.0188));
  CHECK(contrast.at("fork").at("ages").size() == 2);
  CHECK(contrast.at("trend").contains("slope"));
  for (auto& card : with) card["against"] = nullptr;
  CHECK(with == without);
}

TEST_CASE("study_cards: rows name the incumbent and an argument replaces it", "[study]") {
  Rows rows;
  rows.add_frame();
  const auto against = [](const char* incumbent) {
    return [=](Record& row) { Rows::ask(row), row.study->against = incumbent; };
  };
  rows.add_forks("nvfp4", 0.02, 1e-5, Rows::ask);
  rows.add_forks("blockwise", 0.0012, 1e-5, against("nvfp4"));
  rows.add_forks("mxfp8", 0.0012, 1e-5, against("nvfp4"));
  const auto incumbents = [&](const std::optional<std::string>& argument) {
    std::string words;
    for (const StudyCard& card : study_cards(rows.refs(), argument))
      words += card.verdict.recipe + (card.contrast ? "/" + card.contrast->incumbent : "") + " ";
    return words;
  };
  CHECK(incumbents({}) == "blockwise/nvfp4 mxfp8/nvfp4 nvfp4 ");
  CHECK(incumbents("mxfp8") == "blockwise/mxfp8 mxfp8 nvfp4/mxfp8 ");
  CHECK(refusal_of([&] { incumbents("rowwise"); }) ==
        "--against: no study here judges \"rowwise\"; they judge blockwise, mxfp8, nvfp4");
  Rows alone;
  alone.add_frame();
  alone.add_forks("nvfp4", 0.02, 1e-5, Rows::ask);
  CHECK(refusal_of([&] { study_cards(alone.refs(), "nvfp4"); }) ==
        "--against: no study here compares nvfp4 with another recipe");
  CHECK(refusal_of([&] { study_cards({}, "nvfp4"); }) == "--against: these records are of no study");
}

TEST_CASE("study_cards: a contrast pairs forks of the same trunk and age and seed and state only",
          "[study]") {
  const auto cards = cards_of(0.012, [](Rows& rows) {
    Rows::ask(rows.add("blockwise", StudyPart::fork, 4, 100, -3));  // the incumbent has no trunk 4
    Record& other_seed = rows.add("blockwise", StudyPart::fork, 1, 100, -3);
    Rows::ask(other_seed), other_seed.study->seed = 2;
  });
  CHECK_THAT(card_of(cards, "blockwise").contrast->verdict.difference->mean,
             Catch::Matchers::WithinAbs(-0.008, 1e-12));
}

TEST_CASE("study_cards: a fork that diverges where the other's does not decides a contrast", "[study]") {
  const auto diverge = [](Rows& rows, const char* recipe) {
    for (const LocatedRecord* row : rows.refs())
      if (row->record.definition->recipe->at("name") == recipe && row->record.study->trunk == 1 &&
          row->record.study->age == 100) {
        Record& record = const_cast<Record&>(row->record);  // the samples own it
        record.status = Status::diverged, record.training->loss.back() = NAN;
      }
  };
  const auto verdict = [&](std::vector<const char*> recipes) {
    return card_of(cards_of(0.012,
                            [&](Rows& rows) {
                              for (const char* recipe : recipes) diverge(rows, recipe);
                            }),
                   "blockwise")
        .contrast->verdict;
  };
  CHECK(verdict({"blockwise"}).outcome == ForkOutcome::diverged);
  CHECK(verdict({"blockwise"}).reason == "1 of its forks diverged, and nvfp4's did not");
  CHECK(verdict({"nvfp4"}).outcome == ForkOutcome::better);
  CHECK(verdict({"nvfp4"}).reason == "1 of nvfp4's forks diverged, and its own did not");
  // Where both diverge there is no pair, and two trunks are too few.
  CHECK(verdict({"nvfp4", "blockwise"}).outcome == ForkOutcome::inconclusive);
  CHECK(verdict({"nvfp4", "blockwise"}).reason == "2 trunks; 3 are the fewest that settle anything");
}

// ---- simulated studies. Four recipes are compared with the incumbent.

TEST_CASE("study simulation: a recipe as good as the incumbent is better or worse in at most 5% of studies",
          "[study_simulation]") {
  for (const auto& [scatter, trunks] : kDefaults) {
    SimulatedStudies studies(scatter, trunks, 51);
    studies.set("mxfp8_floor", 0);
    // With an incumbent far from BF16, so that every verdict against BF16 is "worse".
    for (const char* recipe : {"blockwise", "tensorwise", "rowwise", "mxfp8"})
      studies.set(recipe, kMarginNats);
    CHECK(share(studies, any_contrast({ForkOutcome::worse, ForkOutcome::better}), kStudies, "tensorwise") <=
          kNominal);
  }
}

TEST_CASE("study simulation: half the margin from the incumbent is equivalent in at most 5% of studies",
          "[study_simulation]") {
  for (const auto& [scatter, trunks] : kDefaults) {
    SimulatedStudies studies(scatter, trunks, 52);
    for (const char* recipe : {"blockwise", "rowwise", "mxfp8"}) studies.set(recipe, kUsual + kHalf);
    CHECK(share(studies, any_contrast({ForkOutcome::equivalent}), kStudies, "tensorwise") <= kNominal);
  }
}

TEST_CASE("study simulation: a recipe that is worse than the incumbent is found", "[study_simulation]") {
  constexpr int kFew = 200;
  const auto found = [](const char* recipe, ForkOutcome outcome) {
    return [=](const std::vector<StudyCard>& cards) {
      return card_of(cards, recipe).contrast->verdict.outcome == outcome;
    };
  };
  for (const auto& [scatter, trunks] : kDefaults) {
    SimulatedStudies studies(scatter, trunks, 53);
    studies.set("blockwise", kUsual + kMarginNats);
    CHECK(share(studies, found("blockwise", ForkOutcome::worse), kFew, "tensorwise") > 0.9);
    CHECK(share(studies, found("tensorwise", ForkOutcome::better), kFew, "blockwise") > 0.9);
  }
}
