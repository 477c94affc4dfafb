// Tests which study's price counts for a planned run.
#include "tools/advise/study_prices.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using study_samples::Rows;

namespace {

/// The committed studies of a young 36M and 125M model and of SmolLM2-135M, trained on 2T tokens.
struct Committed {
  RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/study-36m.jsonl",
                                PRECBENCH_SOURCE_DIR "/results/h200/study-125m-eight.jsonl",
                                PRECBENCH_SOURCE_DIR "/results/h200/study-36m-head.jsonl",
                                PRECBENCH_SOURCE_DIR "/results/h100/trained-smollm2.jsonl"});
  std::vector<StudyCard> cards = study_cards(all_of(set));
  StudyPrices prices{cards};
};

}  // namespace

TEST_CASE("StudyPrices: the nearest study is chosen by age and size", "[advise]") {
  const Committed committed;
  const auto nearest = [&](double parameters, std::optional<double> tokens) {
    const StudyPrice* price = committed.prices.nearest("tensorwise", {parameters, tokens, false, 2});
    REQUIRE(price);
    return *price;
  };
  // 8B parameters on 15T tokens: 1,900 tokens per parameter, nearer to SmolLM2's 14,900 than to 0.7.
  const StudyPrice old = nearest(8e9, 15e12);
  CHECK(std::fabs(old.tokens_per_parameter / 14900 - 1) < 0.01);
  CHECK(std::fabs(old.gap.mean - 0.0156) < 1e-4);
  CHECK(study_words(old) == "smollm2 (135M parameters) at 14,900 tokens per parameter");
  // 36M parameters on 30M tokens: the young model.
  const StudyPrice young = nearest(36e6, 30e6);
  CHECK(young.card->model == "36m");
  CHECK(young.tokens_per_parameter < 1);
  CHECK(contains(study_words(young), "36m (35.7M parameters) at "));
  // At one age, size decides.
  CHECK(nearest(125e6, 125e6 * 0.12).card->model == "125m");
  // Unknown tokens: the oldest, whose price is the highest.
  CHECK(nearest(8e9, std::nullopt).tokens_per_parameter == old.tokens_per_parameter);
  // The other side of the run's age.
  const PlannedRun run{8e9, 15e12, false, 2};
  const StudyPrice* other =
      committed.prices.from_other_side(*committed.prices.nearest("tensorwise", run), run);
  REQUIRE(other);
  CHECK(other->tokens_per_parameter < 1);
  CHECK_FALSE(committed.prices.from_other_side(old, {135e6, 1e15, false, 2}));
}

TEST_CASE("StudyPrices: a recipe without a study is unproven", "[advise]") {
  const Committed committed;
  CHECK_FALSE(committed.prices.nearest("rowwise_gw_hp_unknown", {8e9, 15e12, false, 2}));
  // A head in FP8 is another recipe.
  for (const StudyPrice& price : committed.prices.all()) {
    const bool head = case_text(*price.card->fork, "head") == "recipe";
    CHECK(contains(price.recipe, "head") == head);
  }
}

TEST_CASE("StudyPrices: fewer than three trunks are no price, and divergence is remembered", "[advise]") {
  Rows rows;
  rows.add_trunks();
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  for (const std::int64_t trunk : {1, 2}) Rows::ask(rows.add("mxfp8", StudyPart::fork, trunk, 100, 0.001));
  rows.add_forks("tensorwise", 0.001, 1e-5, [](Record& row) {
    Rows::ask(row);
    row.status = Status::diverged;
    row.training->loss.back() = std::nan("");
  });
  const std::vector<StudyCard> cards = study_cards(rows.refs());
  const StudyPrices prices(cards);
  CHECK(prices.nearest("blockwise", {1e9, 1e9, false, 2}));
  CHECK_FALSE(prices.nearest("mxfp8", {1e9, 1e9, false, 2}));
  CHECK(prices.diverged("tensorwise"));
  CHECK_FALSE(prices.diverged("blockwise"));
}
