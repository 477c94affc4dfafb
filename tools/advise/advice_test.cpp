// Tests which recipe is recommended, and the words about it, on speeds and studies with known values.
#include "tools/advise/advice.h"

#include <algorithm>
#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/analysis/study_samples.h"
#include "tools/analysis/token_cost.h"

using namespace precbench;
using study_samples::Rows;

namespace {

constexpr double kGiB = 1 << 30;

Rows rows_of(double gap) {
  Rows rows;
  rows.add_trunks();
  rows.add_frame();
  rows.add_forks("tensorwise", gap, 1e-5, Rows::ask);
  rows.add_forks("blockwise", 0.0005, 1e-5, Rows::ask);
  return rows;
}

/// A study in which tensorwise costs `gap` and blockwise 0.0005 nats.
struct Studies {
  explicit Studies(double gap) : rows(rows_of(gap)), cards(study_cards(rows.refs())), prices(cards) {}
  Studies(const Studies&) = delete;
  Rows rows;
  std::vector<StudyCard> cards;
  StudyPrices prices;
};

SpeedRow speed_row(const std::string& recipe, double tokens_per_s, double speedup,
                   SpeedSource source = SpeedSource::committed) {
  SpeedRow row{recipe};
  row.source = source;
  row.tokens_per_s = tokens_per_s;
  row.speedup = exactly(speedup);
  row.joules_per_token = 0.036;
  row.peak_bytes = 50 * kGiB;
  return row;
}

SpeedTable speeds() {
  SpeedTable table;
  table.bf16_counts = samples::gpu_record("bf16", 250);
  table.bf16_counts.case_fields["gpus"] = 4;
  table.setting = {
      {"model", "llama3.2-1b"}, {"recipe", "bf16"}, {"seq", 2048},       {"batch", 8},     {"gpus", 4},
      {"parallel", "fsdp"},     {"master", "fp32"}, {"moments", "fp32"}, {"grads", "fp32"}};
  table.defaults = {{"model", "tiny"},   {"seq", 128},       {"batch", 8},        {"gpus", 1},
                    {"parallel", "ddp"}, {"master", "fp32"}, {"moments", "fp32"}, {"grads", "fp32"}};
  table.gpu = {"NVIDIA H200", "9.0", std::int64_t{140} << 30, 989, 4800};
  table.rows = {speed_row("tensorwise", 55642, 1.39), speed_row("blockwise", 51338, 1.28),
                speed_row("bf16", 40088, 1)};
  return table;
}

Advice advice_of(SpeedTable table, const Studies& studies, std::optional<double> tokens,
                 std::optional<double> price = {}) {
  std::optional<HorizonSlope> slope;
  if (tokens) slope = slope_of_law(kBesiroglu2024, *tokens);
  return make_advice(std::move(table), studies.prices, {1.2e9, tokens, false, 0}, slope, price);
}

const AdviceRow& row_of(const Advice& advice, const std::string& recipe) {
  for (const AdviceRow& row : advice.rows)
    if (row.speed.recipe == recipe) return row;
  FAIL("no row " << recipe);
  return advice.rows.front();
}

std::string picked(const Advice& advice) { return advice.pick ? advice.rows[*advice.pick].speed.recipe : ""; }

}  // namespace

TEST_CASE("make_advice: recommends the highest speed-up to equal loss", "[advise]") {
  const Studies cheap(0.001);
  const Advice advice = advice_of(speeds(), cheap, 1e12);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "tensorwise");
  const AdviceRow& row = row_of(advice, "tensorwise");
  // 0.001 of the study's 4.2 nats, at the 2.24 nats of 1.2B parameters and 1T tokens.
  const double s = kBesiroglu2024.slope(1e12),
               gap = row.price->gap.mean * kBesiroglu2024.loss(1.2e9, 1e12) / row.price->bf16_loss;
  CHECK(std::fabs(gap - 0.00053) < 2e-5);
  CHECK(std::fabs(row.equal_loss->mean - 1.39 / token_factor(gap, s)) < 1e-9);
  REQUIRE(row.break_even.size() == 1);
  CHECK(std::fabs(row.break_even[0].gap.mean - break_even_gap(s, 1.39)) < 1e-9);
  CHECK_FALSE(row_of(advice, "bf16").equal_loss);
  // At 0.0043 nats it keeps 1.21, less than blockwise's 1.27.
  const Studies dear(0.008);
  CHECK(picked(advice_of(speeds(), dear, 1e12)) == "blockwise");
}

TEST_CASE("make_advice: recommends bf16 where no recipe pays", "[advise]") {
  const Studies dear(0.02);
  SpeedTable table = speeds();
  table.rows.erase(table.rows.begin() + 1);
  const Advice advice = advice_of(table, dear, 15e12);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "bf16");
  const std::string text = advice_text(advice);
  INFO(text);
  CHECK(text.starts_with("bf16: by the nearest study, no recipe pays at 15T tokens.\n"));
  CHECK(contains(text, "tensorwise is 1.39x as fast as BF16 (committed), but 0.4"));
  CHECK(contains(text, "It pays while it costs less than 0.0036 nats at 15T tokens."));
}

TEST_CASE("make_advice: unproven, diverged and too large recipes are never recommended", "[advise]") {
  const Studies studies(0.001);
  SpeedTable table = speeds();
  table.rows.insert(table.rows.begin(), speed_row("rowwise_gw_hp", 90000, 2.2));
  CHECK(picked(advice_of(table, studies, 1e12)) == "tensorwise");
  CHECK_FALSE(row_of(advice_of(table, studies, 1e12), "rowwise_gw_hp").eligible);
  CHECK(contains(advice_text(advice_of(table, studies, 1e12)), "unproven"));
  table.rows[1].fits = false;  // tensorwise
  CHECK(picked(advice_of(table, studies, 1e12)) == "blockwise");
  table.rows = {speed_row("rowwise_gw_hp", 90000, 2.2), speed_row("bf16", 40088, 1)};
  const Advice unproven = advice_of(table, studies, 1e12);
  CHECK(unproven.status == kNothingProven);
  CHECK_FALSE(unproven.pick);
  CHECK(contains(headline(unproven).front(),
                 "No recommendation: no recipe has both a speed on such a GPU and a study"));
  CHECK(contains(headline(unproven).front(), "Unproven: rowwise_gw_hp."));
  for (SpeedRow& row : table.rows) row.fits = false;
  table.would_fit = "--gpus 8";
  const Advice large = advice_of(table, studies, 1e12);
  CHECK(large.status == kNothingFits);
  CHECK(contains(headline(large).front(), "Nothing fits: BF16 needs "));
  CHECK(contains(headline(large).front(), "It fits with --gpus 8."));
}

TEST_CASE("make_advice: without tokens, break-even gaps and no speed-up to equal loss", "[advise]") {
  const Studies studies(0.001);
  const Advice advice = advice_of(speeds(), studies, std::nullopt);
  CHECK(picked(advice) == "tensorwise");
  const AdviceRow& row = row_of(advice, "tensorwise");
  CHECK_FALSE(row.equal_loss);
  REQUIRE(row.break_even.size() == 2);
  const std::string text = advice_text(advice);
  INFO(text);
  CHECK(contains(text, "less than 0.0097 nats at 1T tokens and 0.0036"));
  CHECK(contains(text, "below at 15T"));
  CHECK(contains(text, "Say --tokens"));
}

TEST_CASE("advice_text: says that equivalent does not mean that it pays", "[advise]") {
  // The study's margin is 0.25% of the loss, 0.0055 nats at 2.2; the break-even gap of 1.39x at 15T tokens is 0.0036.
  const Studies studies(0.001);
  const std::string text = advice_text(advice_of(speeds(), studies, 15e12));
  INFO(text);
  CHECK(contains(text, "exceeds the break-even gap"));
  CHECK(contains(text, "\"equivalent\""));
}

TEST_CASE("advice_text: fits 80 columns, with the headline first and the command last", "[advise]") {
  const Studies studies(0.001);
  SpeedTable table = speeds();
  for (SpeedRow& row : table.rows) row.gather = row.is_bf16() ? "bf16" : "fp8";
  table.rows[0].speedup = MeanWithInterval{1.39, 1.35, 1.43};
  table.rows[0].source = SpeedSource::predicted;
  const Advice advice = advice_of(table, studies, 1e12, 2.5);
  const std::string text = advice_text(advice);
  INFO(text);
  CHECK(text.starts_with("tensorwise --gather fp8: 1.39x [1.35, 1.43] as fast as BF16 (predicted), 1.37x"));
  CHECK(longest_line(text) <= 80);
  for (const char* words : {"$/B", "kWh/B", "predicted", "committed", "to equal loss", "4 x NVIDIA H200",
                            "Besiroglu et al. 2024"})
    CHECK(contains(text, words));
  // $2.5 x 4 GPUs x 1e9 tokens at 55,642 tokens/s; 0.036 J per token are 10 kWh.
  CHECK(std::fabs(*advice.dollars(advice.rows[0].speed) - 49.92) < 0.01);
  CHECK(std::fabs(*Advice::kilowatt_hours(advice.rows[0].speed) - 10) < 1e-9);
  CHECK(
      measuring_command(advice) ==
      "precbench sweep --model llama3.2-1b --recipe bf16,tensorwise,blockwise --seq 2048 --gpus 4 --parallel fsdp "
      "--gather bf16,fp8 --out out/advise");
  CHECK(contains(text, "\nMeasure\n"));
}

TEST_CASE("advice_text: no column without content, and a study slightly younger than the run in percent", "[advise]") {
  const Studies studies(0.001);
  SpeedTable table = speeds();
  for (SpeedRow& row : table.rows) row.joules_per_token.reset();
  CHECK(!contains(advice_text(advice_of(table, studies, 1e12)), "kWh/B"));
  double oldest = 0;
  for (const StudyPrice& price : studies.prices.all()) oldest = std::max(oldest, price.tokens_per_parameter);
  const std::string text = advice_text(advice_of(table, studies, 1.25 * oldest * 1.2e9), {1000, true});
  INFO(text);
  CHECK(contains(text, "the nearest has 20% fewer tokens per parameter"));
}

TEST_CASE("advice_json: has the rows, the choice and the intervals", "[advise]") {
  const Studies studies(0.001);
  const auto json = advice_json(advice_of(speeds(), studies, 1e12, 2.5));
  CHECK(json.at("status") == 0);
  const auto& row = json.at("rows").at(json.at("recommended").get<std::size_t>());
  CHECK(row.at("recipe") == "tensorwise");
  CHECK(row.at("source") == "committed");
  CHECK(row.at("price").at("model") == "llama3.2-1b");
  CHECK(row.at("break_even").at(0).at("tokens") == 1e12);
  CHECK(row.at("equal_loss_speedup").at("low") < row.at("equal_loss_speedup").at("mean"));
  CHECK(json.at("slope").at("source") == "law of Besiroglu et al. 2024 (arXiv 2404.10102)");
  CHECK(json.at("rows").back().at("price").is_null());
}
