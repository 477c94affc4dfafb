// Published gaps beside forecasts.
#include "tools/law/law_judgement.h"

#include <algorithm>

#include "kernels/testing/catch.h"
#include "tools/law/law_tables.h"

using namespace precbench;

namespace {

/// A published gap of mxfp8 at 8B, continued after 1T tokens.
PublishedLoss published(std::optional<double> percent) {
  PublishedLoss one;
  one.id = "test", one.group = "g", one.tier = "share", one.nearest = "mxfp8";
  one.parameters = 8e9, one.tokens = 1e9, one.tokens_before = 999e9, one.gap_percent = percent;
  return one;
}

GapForecast forecast_percent() {
  return committed_law().share({"mxfp8", 8e9, 1e12, Serving::raw, TrainingStart::continued})->times(100);
}

JudgedLoss judged(const PublishedLoss& one) { return judge_law(committed_law(), {one}).at(0); }

}  // namespace

TEST_CASE("judge_law: near is a factor of 1.5 or the published noise, inside is the interval", "[law]") {
  const GapForecast forecast = forecast_percent();
  CHECK(judged(published(forecast.median)).forecast->median == Approx(forecast.median));
  CHECK(judged(published(1.4 * forecast.median)).near);
  CHECK(judged(published(forecast.median / 1.4)).near);
  CHECK_FALSE(judged(published(1.6 * forecast.median)).near);
  CHECK_FALSE(judged(published(-forecast.median)).near);
  CHECK(judged(published(0.99 * forecast.high)).inside);
  CHECK_FALSE(judged(published(1.01 * forecast.high)).inside);
  PublishedLoss noisy = published(-forecast.median);
  noisy.noise_nats = 1;
  CHECK(judged(noisy).near);
  CHECK(judged(noisy).inside);
}

TEST_CASE("judge_law: a bound is held by a median below it", "[law]") {
  PublishedLoss bound = published({});
  bound.kind = PublishedLoss::Kind::no_difference;
  bound.bound_percent = 1.01 * forecast_percent().median;
  CHECK(judged(bound).near);
  bound.bound_percent = 0.99 * forecast_percent().median;
  CHECK_FALSE(judged(bound).near);
  CHECK(judged(bound).inside);
}

TEST_CASE("judge_law: tells why a gap is not forecast, and leaves out what is only shown", "[law]") {
  PublishedLoss one = published(0.1);
  one.tokens = 1e9, one.tokens_before = {};
  CHECK(judged(one).not_forecast == "younger than the law's models");
  one = published(0.1);
  one.nearest = "unheard_of";
  CHECK(judged(one).not_forecast == "recipe not linked to older models");
  one.tier = "shown";
  CHECK(judge_law(committed_law(), {one}).empty());
}

TEST_CASE("judged_share: counts gaps, and groups with equal weight", "[law]") {
  std::vector<PublishedLoss> losses(4, published(forecast_percent().median));
  losses[3].group = "other", losses[3].gap_percent = 10 * forecast_percent().high;
  const JudgedShare share = judged_share(judge_law(committed_law(), losses));
  CHECK(share.gaps == 4);
  CHECK(share.groups == 2);
  CHECK(share.near == Approx(0.75));
  CHECK(share.near_by_group == Approx(0.5));
  CHECK(share.inside == Approx(0.75));
}

TEST_CASE("law_tables: every published failure of the judged tier is flagged", "[law]") {
  const auto tables = law_tables(committed_law(), committed_evidence(), {}, committed_evidence());
  const auto failures =
      std::find_if(tables.begin(), tables.end(), [](const LawTable& one) { return one.name == "failures"; });
  REQUIRE(failures != tables.end());
  CHECK(failures->table.rows.size() >= 8);
  for (const auto& row : failures->table.rows) CHECK(row.back() == "by name");
}

TEST_CASE("sizes_table: one row per size, length and recipe, with the asked numbers", "[law]") {
  const LawTable one =
      sizes_table(committed_law(), {{1e9, 8e9}, {1e11}, {"mxfp8", "rowwise"}}, TrainingStart::from_scratch);
  REQUIRE(one.table.rows.size() == 4);
  CHECK(one.table.rows[0][0] == "1B");
  CHECK(one.table.rows[0][1] == "100B");
  CHECK(one.table.rows[3][2] == "rowwise");
  CHECK(one.table.rows[3][5].find('[') != std::string::npos);
}
