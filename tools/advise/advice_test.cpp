// Tests which recipe is recommended, and the words about it, on speeds and studies with known values.
#include "tools/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/analysis/token_cost.h"

using namespace precbench;

namespace {

constexpr double kGiB = 1 << 30, kParameters = 1.2e9;

/// A gap measured on the planned model after `tokens`, served in BF16; twice that in the recipe.
GapEvidence measured(const std::string& recipe, double gap, double tokens) {
  GapEvidence one;
  one.records = "own", one.recipe = recipe, one.parameters = kParameters;
  one.tokens_per_parameter = tokens / kParameters;
  one.bf16_loss = 2.2, one.gap = 3 * gap, one.gap_error = 0.01 * gap, one.runs = 3;
  one.in_bf16 = MeasuredGap{gap, 0.01 * gap}, one.in_recipe = MeasuredGap{2 * gap, 0.01 * gap};
  return one;
}

/// Studies in which tensorwise costs `gap` and blockwise 0.00026 nats; all other gaps are the law's.
ExpectedGaps expected_of(double gap, TrainingStart training = TrainingStart::from_scratch) {
  std::vector<GapEvidence> own;
  for (const double tokens : {1e12, 15e12}) {
    own.push_back(measured("tensorwise", gap, tokens));
    own.push_back(measured("blockwise", 0.00026, tokens));
  }
  for (GapEvidence& one : own) one.training = training;
  return ExpectedGaps(committed_law(), own, {});
}

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

Advice advice_of(const SpeedTable& table, const ExpectedGaps& expected, std::optional<double> tokens,
                 std::optional<double> price = {}, Serving serving = Serving::bf16) {
  return make_advice(table, expected, {kParameters, tokens, serving}, std::nullopt, price);
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
  const Advice advice = advice_of(speeds(), expected_of(0.0005), 1e12);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "tensorwise");
  const AdviceRow& row = row_of(advice, "tensorwise");
  const double s = kBesiroglu2024.slope(1e12);
  CHECK(row.expected->gap.mean == Approx(0.0005));
  CHECK(row.equal_loss->mean == Approx(1.39 / token_factor(0.0005, s)));
  CHECK(row.break_even->mean == Approx(break_even_gap(s, 1.39)));
  CHECK_FALSE(row_of(advice, "bf16").equal_loss);
  // At 0.0043 nats it keeps 1.21, less than blockwise's 1.27.
  CHECK(picked(advice_of(speeds(), expected_of(0.0043), 1e12)) == "blockwise");
}

TEST_CASE("make_advice: compares the break-even with the gap of the deployment", "[advise]") {
  // tensorwise costs 0.003 nats served in BF16, which pays at 15T, and 0.006 served in the recipe, which does not.
  SpeedTable table = speeds();
  table.rows.erase(table.rows.begin() + 1);  // blockwise
  const ExpectedGaps expected = expected_of(0.003);
  CHECK(picked(advice_of(table, expected, 15e12)) == "tensorwise");
  const Advice in_recipe = advice_of(table, expected, 15e12, {}, Serving::recipe);
  CHECK(row_of(in_recipe, "tensorwise").expected->gap.mean == Approx(0.006));
  CHECK(picked(in_recipe) == "bf16");
  CHECK(contains(advice_text(in_recipe, {}), "Served in the recipe, it should cost 0.0060"));
}

TEST_CASE("make_advice: recommends bf16 where no recipe pays", "[advise]") {
  SpeedTable table = speeds();
  table.rows.erase(table.rows.begin() + 1);
  const Advice advice = advice_of(table, expected_of(0.0105), 15e12);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "bf16");
  const std::string text = advice_text(advice, {}, {1000, true});
  INFO(text);
  CHECK(text.starts_with("bf16: no recipe is expected to pay at 15T tokens.\n"));
  CHECK(contains(text, "tensorwise is 1.39x as fast as BF16 (committed), but 0.4"));
  CHECK(contains(text, "It pays below 0.0036 nats."));
}

TEST_CASE("make_advice: unproven, diverged and too large recipes are never recommended", "[advise]") {
  const ExpectedGaps expected = expected_of(0.0005);
  SpeedTable table = speeds();
  table.rows.insert(table.rows.begin(), speed_row("unheard_of", 90000, 2.2));
  CHECK(picked(advice_of(table, expected, 1e12)) == "tensorwise");
  CHECK_FALSE(row_of(advice_of(table, expected, 1e12), "unheard_of").eligible);
  CHECK(contains(advice_text(advice_of(table, expected, 1e12), {}), "unproven"));
  const ExpectedGaps diverging(committed_law(), {measured("tensorwise", 0.0005, 1e12)}, {}, {"tensorwise"});
  CHECK(picked(advice_of(table, diverging, 1e12)) == "blockwise");
  table.rows[1].fits = false;  // tensorwise
  CHECK(picked(advice_of(table, expected, 1e12)) == "blockwise");
  table.rows = {speed_row("unheard_of", 90000, 2.2), speed_row("bf16", 40088, 1)};
  const Advice unproven = advice_of(table, expected, 1e12);
  CHECK(unproven.status == kNothingProven);
  CHECK_FALSE(unproven.pick);
  CHECK(contains(headline(unproven).front(),
                 "No recommendation: no recipe has both a speed on such a GPU and evidence"));
  CHECK(contains(headline(unproven).front(), "Unproven: unheard_of."));
  for (SpeedRow& row : table.rows) row.fits = false;
  table.would_fit = "--gpus 8";
  const Advice large = advice_of(table, expected, 1e12);
  CHECK(large.status == kNothingFits);
  CHECK(contains(headline(large).front(), "Nothing fits: NVIDIA H200 has 140.0 GiB"));
  CHECK(contains(headline(large).front(),
                 "It fits with --gpus 8; tensor or pipeline ranks may need fewer GPUs"));
  table.would_fit = "--recompute block";
  CHECK(contains(headline(advice_of(table, expected, 1e12)).front(), "It fits with --recompute block."));
}

TEST_CASE("make_advice: a recipe that is known to fail is never recommended, whatever a study says",
          "[advise]") {
  SpeedTable table = speeds();
  table.rows.insert(table.rows.begin(), speed_row("mxfp8_e5m2", 90000, 2.2));
  const ExpectedGaps expected(committed_law(), {measured("mxfp8_e5m2", 0.00001, 1e12)}, {});
  const Advice advice = advice_of(table, expected, 1e12);
  CHECK(picked(advice) != "mxfp8_e5m2");
  const std::string text = advice_text(advice, {}, {1000, true});
  INFO(text);
  CHECK(contains(text, "mxfp8_e5m2: known to fail at 8B (Megatron-Bridge), github.com/"));
  table.rows = {table.rows.front(), table.rows.back()};
  const Advice alone = advice_of(table, expected, 1e12);
  CHECK(alone.status == kAdviceGiven);
  CHECK(picked(alone) == "bf16");
  CHECK(contains(headline(alone).front(), "Known to fail: mxfp8_e5m2."));
  CHECK(advice_json(advice, {}).at("rows").at(0).at("known_failure").at("source") == "Megatron-Bridge");
}

TEST_CASE("make_advice: a recipe studied on young models alone is not preferred to one of trained models",
          "[advise]") {
  SpeedTable table = speeds();
  table.rows.insert(table.rows.begin(), speed_row("rowwise_gw_hp", 90000, 2.2));
  const ExpectedGaps expected(committed_law(), {}, {});
  const Advice advice = advice_of(table, expected, 1e12);
  CHECK(std::string(row_of(advice, "rowwise_gw_hp").expected->evidence()) == "law, young models");
  CHECK_FALSE(row_of(advice, "rowwise_gw_hp").eligible);
  CHECK((picked(advice) == "tensorwise" || picked(advice) == "blockwise"));
  table.rows = {table.rows.front(), table.rows.back()};
  CHECK(picked(advice_of(table, expected, 1e12)) == "rowwise_gw_hp");
}

TEST_CASE("make_advice: gaps of the law are smooth in the tokens, and agree with and without --tokens",
          "[advise]") {
  const ExpectedGaps expected(committed_law(), {}, {});
  double last = 0;
  for (double tokens = 1e9; tokens < 2e13; tokens *= 1.5) {
    const double gap = row_of(advice_of(speeds(), expected, tokens), "tensorwise").expected->gap.mean;
    if (last > 0) CHECK(std::fabs(std::log(gap / last)) < 0.3);
    last = gap;
  }
  const Advice without = advice_of(speeds(), expected, std::nullopt);
  REQUIRE(without.choices.size() == std::size(kAdviceHorizons));
  for (const HorizonChoice& one : without.choices) {
    const Advice with = advice_of(speeds(), expected, one.tokens);
    CHECK(one.recipe == picked(with));
    CHECK(one.gap.mean == with.rows[*with.best].expected->gap.mean);
    CHECK(one.equal_loss.low == with.rows[*with.best].equal_loss->low);
  }
  CHECK(picked(without) == picked(advice_of(speeds(), expected, 1e12)));
  const std::string text = advice_text(without, {});
  INFO(text);
  CHECK(contains(text, "Without --tokens the choice is for 1T"));
  CHECK(contains(text, "100B"));
  CHECK(longest_line(text) <= 80);
}

TEST_CASE("advice_text: says where the law is extrapolated", "[advise]") {
  // A study of one recipe on a larger model does not make the law of the others, which was not fitted to it, reach
  // further.
  GapEvidence own = measured("rowwise", 0.0005, 1e12);
  own.parameters = 70e9;
  const ExpectedGaps expected(committed_law(), {own}, committed_evidence());
  const Advice advice = make_advice(speeds(), expected, {70e9, 15e12, Serving::bf16}, std::nullopt, {});
  CHECK(contains(
      advice_text(advice, {}, {1000, true}),
      fmt::format("The law has no model above {} and only one trained from scratch; it cannot predict "
                  "late divergence.",
                  token_words(committed_law().largest_model()))));
  const Advice small = make_advice(speeds(), expected, {1e9, 1e12, Serving::bf16}, std::nullopt, {});
  CHECK(contains(advice_text(small, {}, {1000, true}),
                 "The law has only one model trained from scratch; it cannot predict late divergence."));
  const Advice young = make_advice(speeds(), expected, {70e9, 1e9, Serving::bf16}, std::nullopt, {});
  CHECK(contains(advice_text(young, {}, {1000, true}),
                 "A run this short has the gap of 0.9 tokens per parameter"));
}

TEST_CASE("advice_text: risks are an open answer, a long run and unknown speeds, each only where it is one",
          "[advise]") {
  const Screen wide{1000, true};
  SpeedTable table = speeds();
  table.rows[0].speedup = MeanWithInterval{1.39, 0.9, 2};
  table.rows[1].speedup = MeanWithInterval{1.28, 0.8, 1.7};
  table.rows.push_back(SpeedRow{"rowwise"});
  const std::string risky =
      advice_text(advice_of(table, expected_of(0.0001, TrainingStart::continued), 15e12), {}, wide);
  INFO(risky);
  CHECK(contains(
      risky,
      "Risk: The run takes more than a year. tensorwise may not pay: its interval to equal loss contains 1. "
      "The study continued a BF16 model; the factor to a run from scratch comes from one small model. "
      "Speed unknown: rowwise.\n"));
  const std::string safe = advice_text(advice_of(speeds(), expected_of(0.0005), 1e12), {}, wide);
  INFO(safe);
  CHECK_FALSE(contains(safe, "Risk"));
  SpeedTable borrowed = speeds();
  borrowed.gpu.name = "mi300x", borrowed.rates_borrowed_from = "NVIDIA H200";
  CHECK(
      contains(advice_text(advice_of(borrowed, expected_of(0.0005), 1e12), {}, wide),
               "Risk: Nothing was measured on mi300x: speeds are those of NVIDIA H200, scaled by peaks.\n"));
}

TEST_CASE("advice_text: names the recipe with the highest mean if another is chosen by its low end",
          "[advise]") {
  const Screen wide{1000, true};
  SpeedTable table = speeds();
  table.rows[0].speedup = MeanWithInterval{1.39, 1.1, 1.6};
  table.rows[1].speedup = MeanWithInterval{1.28, 1.25, 1.3};
  const std::string text = advice_text(advice_of(table, expected_of(0.0005), 1e12), {}, wide);
  INFO(text);
  CHECK(text.starts_with("blockwise: "));
  CHECK(contains(text, "\nChosen by its low end; tensorwise has the highest mean: 1.37x [1."));
  CHECK_FALSE(contains(advice_text(advice_of(speeds(), expected_of(0.0005), 1e12), {}, wide),
                       "Chosen by its low end"));
}

TEST_CASE("advice_text: without another answer it says which questions were tried", "[advise]") {
  const Screen wide{1000, true};
  SpeedTable table = speeds();
  table.rows = {table.rows.back()};
  const ExpectedGaps expected(committed_law(), {}, {});
  CHECK(contains(advice_text(advice_of(table, expected, 15e12), {}, wide),
                 "Changes: none found from 150B to 100T tokens, in either deployment.\n"));
  CHECK(contains(advice_text(advice_of(table, expected, 1e8), {}, wide),
                 "none found from 100M to 10B tokens,"));
  // The reader's runs have a slope at one number of tokens, so that no other was tried.
  const HorizonSlope own = slope_of_law(kBesiroglu2024, 1e12);
  CHECK(contains(
      advice_text(make_advice(table, expected, {kParameters, 1e12, Serving::bf16}, own, {}), {}, wide),
      "Changes: none found in either deployment.\n"));
}

TEST_CASE("advice_text: says that no setting can be measured", "[advise]") {
  const Advice advice = advice_of(speeds(), expected_of(0.0005), 1e12);
  const std::string none = "\nMeasure\nNo setting that was tried both runs and fits";
  CHECK(contains(advice_text(advice, {}), none));
  CHECK_FALSE(contains(advice_text(advice, {"precbench sweep"}), none));
}

TEST_CASE("advice_text: fits 80 columns, with the answer first", "[advise]") {
  SpeedTable table = speeds();
  for (SpeedRow& row : table.rows) row.gather = row.is_bf16() ? "bf16" : "fp8";
  table.rows[0].speedup = MeanWithInterval{1.39, 1.35, 1.43};
  table.rows[0].source = SpeedSource::predicted;
  const Advice advice = advice_of(table, expected_of(0.0005), 1e12, 2.5);
  const std::string text = advice_text(advice, {});
  INFO(text);
  CHECK(text.starts_with("tensorwise --gather fp8: 1.39x [1.35, 1.43] as fast as BF16 (predicted), 1.37x"));
  CHECK(longest_line(text) <= 80);
  for (const char* words : {"$/B", "kWh/B", "predicted", "committed", "to equal loss", "4 x NVIDIA H200",
                            "this model", "Besiroglu et al. 2024"})
    CHECK(contains(text, words));
  // $2.5 x 4 GPUs x 1e9 tokens at 55,642 tokens/s; 0.036 J per token are 10 kWh.
  CHECK(std::fabs(*advice.dollars(advice.rows[0].speed) - 49.92) < 0.01);
  CHECK(std::fabs(*Advice::kilowatt_hours(advice.rows[0].speed) - 10) < 1e-9);
  CHECK(contains(advice_text(advice, {}, {1000, true}),
                 "1T tokens take 208 days, 20,000 GPU-hours, $49,900, 10,000 kWh; in BF16 289 days, "));
  for (SpeedRow& row : table.rows) row.joules_per_token.reset();
  CHECK(!contains(advice_text(advice_of(table, expected_of(0.0005), 1e12), {}), "kWh/B"));
}

TEST_CASE("advice_json: has the rows, the choice and the intervals", "[advise]") {
  const auto json = advice_json(advice_of(speeds(), expected_of(0.0005), 1e12, 2.5), {"precbench sweep"});
  CHECK(json.at("status") == 0);
  CHECK(json.at("serve") == "bf16");
  const auto& row = json.at("recommended");
  CHECK(json.at("training") == "full");
  CHECK(json.at("measure") == nlohmann::json({"precbench sweep"}));
  CHECK(row.at("run").at("days").get<double>() == Approx(1e12 / 55642 / 86400));
  CHECK(row.at("run").at("gpu_hours").get<double>() == Approx(4 * 1e12 / 55642 / 3600));
  CHECK(row.at("run").at("dollars").get<double>() == Approx(2.5 * 4 * 1e12 / 55642 / 3600));
  CHECK(row.at("run").at("kwh").get<double>() == Approx(0.036 * 1e12 / 3.6e6));
  CHECK(row.at("recipe") == "tensorwise");
  CHECK(row.at("source") == "committed");
  CHECK(row.at("loss_gap").at("evidence") == "measured");
  CHECK(row.at("loss_gap").at("measured_in") == "own");
  CHECK(row.at("known_failure").is_null());
  CHECK(row.at("equal_loss_speedup").at("low") < row.at("equal_loss_speedup").at("mean"));
  CHECK(json.at("slope").at("source") == "law of Besiroglu et al. 2024 (arXiv 2404.10102)");
  CHECK(json.at("rows").back().at("loss_gap").is_null());
  CHECK(json.at("by_tokens").empty());
}

TEST_CASE("make_advice: a recipe that saves 5% or an hour at most is not worth its trouble", "[advise]") {
  SpeedTable table = speeds();
  table.rows = {speed_row("tensorwise", 42000, 1.048), speed_row("bf16", 40088, 1)};
  const Advice small = advice_of(table, ExpectedGaps(committed_law(), {}, {}), 100e9);
  CHECK(small.rows[*small.best].equal_loss->mean > 1);
  CHECK(picked(small) == "bf16");
  CHECK(contains(headline(small).front(), "no recipe is expected to gain 5%"));
  const Advice brief = advice_of(speeds(), ExpectedGaps(committed_law(), {}, {}), 0.4e9);
  CHECK(brief.rows[*brief.best].equal_loss->mean > 1.2);
  CHECK(*brief.saved_hours(brief.rows[*brief.best]) < 1);
  CHECK(picked(brief) == "bf16");
  CHECK(contains(headline(brief).front(), "saves less than an hour"));
}

TEST_CASE("make_advice: says at how many tokens the answer changes, and it does", "[advise]") {
  const ExpectedGaps expected(committed_law(), {}, {});
  SpeedTable table = speeds();
  table.rows.erase(table.rows.begin() + 1);
  const Advice advice = advice_of(table, expected, 1e12);
  REQUIRE(picked(advice) == "tensorwise");
  const auto longer = std::find_if(advice.sensitivity.begin(), advice.sensitivity.end(),
                                   [](const OtherAnswer& one) { return one.change.starts_with("from "); });
  REQUIRE(longer != advice.sensitivity.end());
  CHECK(longer->recipe == "bf16");
  const double tokens = std::stod(longer->change.substr(5)) * 1e12;
  INFO(longer->change);
  CHECK(picked(advice_of(table, expected, 1.05 * tokens)) == "bf16");
  CHECK(picked(advice_of(table, expected, 0.95 * tokens)) == "tensorwise");
}

TEST_CASE("make_advice: a GPU without FP8 and recipes that it emulates give bf16", "[advise]") {
  SpeedTable table = speeds();
  table.rows = {table.rows.back()};
  table.multiplies_bf16_alone = true;
  const Advice advice = advice_of(table, ExpectedGaps(committed_law(), {}, {}), 1e12);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "bf16");
  CHECK(headline(advice).front() == "bf16: NVIDIA H200 multiplies neither FP8 nor FP4.");
  table.multiplies_bf16_alone = false;
  table.emulated = {"mxfp8"};
  CHECK(contains(headline(advice_of(table, ExpectedGaps(committed_law(), {}, {}), 1e12)).front(),
                 "Emulated: mxfp8."));
}

TEST_CASE("make_advice: adapters are recommended on the most exact weights that fit", "[advise]") {
  SpeedTable table = speeds();
  table.part = TrainedPart::lora;
  table.least_bytes = 150 * kGiB, table.limit_bytes = std::int64_t{132} << 30;
  table.rows = {speed_row("bf16", 900, 1), speed_row("fp8_weights", 1000, 1),
                speed_row("nf4_weights", 1100, 1)};
  CHECK(picked(advice_of(table, ExpectedGaps(committed_law(), {}, {}), 1e8)) == "bf16");
  table.rows[0].fits = false, table.rows[0].tokens_per_s.reset();
  const Advice advice = advice_of(table, ExpectedGaps(committed_law(), {}, {}), 1e8);
  CHECK(advice.status == kAdviceGiven);
  CHECK(picked(advice) == "fp8_weights");
  CHECK(contains(headline(advice).front(), "LoRA with weights frozen in fp8_weights"));
  CHECK(contains(headline(advice)[1],
                 "Training all weights takes at least 150.0 GiB per GPU, and NVIDIA H200 has 132.0 for it."));
  CHECK(advice_json(advice, {}).at("training") == "lora");
}

TEST_CASE("make_advice: rows say how many trained models stand behind them", "[advise]") {
  SpeedTable table = speeds();
  table.rows.insert(table.rows.begin(), speed_row("rowwise_gw_hp", 50000, 1.25));
  table.rows.insert(table.rows.begin(), speed_row("blockwise_pow2", 50000, 1.25));
  const Advice advice = advice_of(table, expected_of(0.0005), 1e12);
  CHECK(row_of(advice, "tensorwise").expected->evidence_words() == "this model");
  CHECK(row_of(advice, "rowwise_gw_hp").expected->evidence_words() == "young models");
  CHECK(row_of(advice, "blockwise_pow2").expected->evidence_words() == "2 trained models");
}
