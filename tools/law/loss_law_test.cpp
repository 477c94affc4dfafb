// The law of the loss gap on evidence of known truth.
#include "tools/law/loss_law.h"

#include <cmath>
#include <random>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "tools/analysis/token_cost.h"

using namespace precbench;

namespace {

constexpr double kSize = -0.2, kAge = 0.25, kScratch = 0.7;

double true_share(const std::string& recipe, double parameters, double age, bool scratch = false) {
  const double offset = recipe == "nvfp4_all" ? 0.01 : recipe == "mxfp8" ? 0.002 : 0.001;
  return offset * std::pow(parameters / 1e9, kSize) * std::pow(age / 100, kAge) *
         std::exp(scratch ? kScratch : 0);
}

GapEvidence gap(const std::string& recipe, double parameters, double age, double factor = 1) {
  GapEvidence one;
  one.records = "test", one.recipe = recipe, one.parameters = parameters, one.tokens_per_parameter = age;
  one.bf16_loss = 2, one.gap = 2 * factor * true_share(recipe, parameters, age);
  one.gap_error = 0.01 * one.gap, one.runs = 3;
  one.held_out = one.gap, one.in_bf16 = MeasuredGap{0.3 * one.gap, 0},
  one.in_recipe = MeasuredGap{-0.5 * one.gap, 0};
  return one;
}

constexpr double kSizes[] = {2e7, 5e7, 1e8, 2.5e8, 5e8, 1.5e9};
constexpr double kAges[] = {3, 10, 15000, 30, 20000, 5000};

/// Models that differ by `between` and recipes that scatter by `within`, both in logarithms.
std::vector<GapEvidence> evidence(double between = 0, double within = 0, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<GapEvidence> all;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    const double effect = between * normal(random);
    for (const char* recipe : {"rowwise", "mxfp8", "nvfp4_all"})
      all.push_back(gap(recipe, kSizes[i], kAges[i], std::exp(effect + within * normal(random))));
  }
  return all;
}

GapEvidence from_scratch(const std::string& recipe) {
  GapEvidence one = gap(recipe, kSizes[0], 20, std::exp(kScratch));
  one.training = TrainingStart::from_scratch, one.in_bf16 = MeasuredGap{0.7 * one.gap, 0};
  return one;
}

constexpr GapQuestion asked(const char* recipe, Serving serving,
                            TrainingStart training = TrainingStart::continued) {
  return {recipe, 8e9, 1e12, serving, training};
}

}  // namespace

TEST_CASE("LossLaw: finds exponents, offsets and forecasts of evidence that follows it", "[law]") {
  const LossLaw law(evidence());
  CHECK(law.size_exponent().value == Approx(kSize).margin(0.01));
  CHECK(law.age_exponent().value == Approx(kAge).margin(0.01));
  CHECK(std::exp(law.offset("mxfp8").value) == Approx(0.002).epsilon(0.01));
  CHECK(law.between_models() < 0.02);
  const auto forecast = law.share(asked("mxfp8", Serving::raw));
  REQUIRE(forecast);
  CHECK(forecast->median == Approx(true_share("mxfp8", 8e9, 125)).epsilon(0.02));
  CHECK(forecast->contains(forecast->median));
  CHECK(law.nats(asked("mxfp8", Serving::raw))->median ==
        Approx(forecast->median * kBesiroglu2024.loss(8e9, 1e12)));
}

TEST_CASE("LossLaw: a deployment costs its ratio to the raw gap", "[law]") {
  const LossLaw law(evidence());
  const double raw = law.share(asked("rowwise", Serving::raw))->median;
  CHECK(law.share(asked("rowwise", Serving::bf16))->median == Approx(0.3 * raw).epsilon(0.01));
  CHECK(law.share(asked("rowwise", Serving::recipe))->median == Approx(-0.5 * raw).epsilon(0.01));
}

TEST_CASE("LossLaw: models that differ more make wider intervals", "[law]") {
  const auto width = [](const LossLaw& law) {
    const auto one = law.share(asked("mxfp8", Serving::raw));
    return one->high / one->low;
  };
  CHECK(width(LossLaw(evidence(0.4, 0.1))) > 1.5 * width(LossLaw(evidence(0.05, 0.05))));
}

TEST_CASE("LossLaw: runs from scratch cost the factor of the one model that has them, with a wide interval",
          "[law]") {
  auto all = evidence();
  CHECK_FALSE(LossLaw(all).share(asked("mxfp8", Serving::raw, TrainingStart::from_scratch)));
  all.push_back(from_scratch("rowwise")), all.push_back(from_scratch("mxfp8"));
  const LossLaw law(all);
  const auto fork = law.share(asked("mxfp8", Serving::raw)),
             scratch = law.share(asked("mxfp8", Serving::raw, TrainingStart::from_scratch));
  CHECK(std::log(scratch->median / fork->median) == Approx(kScratch).margin(0.02));
  CHECK(scratch->low < fork->median);
  CHECK(std::log(scratch->high / scratch->median) > kScratch);
  CHECK(law.share(asked("mxfp8", Serving::bf16, TrainingStart::from_scratch))->median ==
        Approx(0.7 * scratch->median).epsilon(0.02));
}

TEST_CASE("LossLaw: what a recipe costs BF16's weights is a share of continued runs' raw gap alone", "[law]") {
  auto all = evidence();
  all.push_back(from_scratch("rowwise"));
  const double ratio = LossLaw(all).ratio(Serving::recipe, TrainingStart::continued, false).mean;
  all.back().in_recipe = MeasuredGap{0.9 * all.back().gap, 0};
  CHECK(LossLaw(all).ratio(Serving::recipe, TrainingStart::continued, false).mean == Approx(ratio));
}

TEST_CASE("LossLaw: a recipe studied on a young model is known by its comparison with others", "[law]") {
  auto all = evidence();
  // The young model's level is a hundred times that of the law.
  for (const char* recipe : {"rowwise", "mxfp8"}) all.push_back(gap(recipe, 3.6e7, 0.4, 100));
  all.push_back(gap("quartet2", 3.6e7, 0.4, 300));
  all.push_back(gap("coat", 3.6e7, 0.2));  // of an age with no other recipe
  all.push_back(gap("mxfp8", 5e9, 0.4));
  const LossLaw law(all);
  CHECK(law.largest_model() == 1.5e9);  // the one of 5B is young
  REQUIRE(law.knows("quartet2"));
  CHECK(law.models_of("quartet2") == 0);
  CHECK(law.models_of("mxfp8") == 6);
  const double rowwise = law.share(asked("rowwise", Serving::raw))->median;
  CHECK(law.share(asked("quartet2", Serving::raw))->median == Approx(3 * rowwise).epsilon(0.05));
  CHECK_FALSE(law.knows("coat"));
  CHECK_FALSE(law.share(asked("coat", Serving::raw)));
}

TEST_CASE("LossLaw: what it cannot forecast is null, and too few models are refused", "[law]") {
  const LossLaw law(evidence());
  CHECK_FALSE(law.share(asked("unheard_of", Serving::raw)));
  CHECK_FALSE(law.share({"mxfp8", 8e9, 0.1 * 8e9, Serving::raw, TrainingStart::continued}));
  CHECK_FALSE(law.share({"mxfp8", 0, 1e12, Serving::raw, TrainingStart::continued}));
  std::vector<GapEvidence> few = evidence();
  few.resize(9);
  CHECK_THROWS_AS(LossLaw(few), InvalidInput);
  CHECK_THROWS_AS(LossLaw({}), InvalidInput);
}

TEST_CASE("LossLaw: a gap within its error has no logarithm and is left out", "[law]") {
  auto all = evidence();
  all.push_back(gap("mxfp8", kSizes[0], 5));
  all.back().gap = -0.001;
  all.push_back(gap("mxfp8", kSizes[0], 6));
  all.back().gap_error = 2 * all.back().gap;
  CHECK(LossLaw(all).gaps() == LossLaw(evidence()).gaps());
}

TEST_CASE("leave_one_model_out: 80% intervals hold about 80% of simulated gaps", "[law]") {
  int gaps = 0, inside = 0;
  for (unsigned seed = 1; seed <= 40; ++seed)
    for (const LeftOut& one : leave_one_model_out(evidence(0.3, 0.15, seed)))
      gaps += one.gaps, inside += one.inside;
  CHECK(gaps == 40 * 18);
  CHECK(static_cast<double>(inside) / gaps > 0.7);
  CHECK(static_cast<double>(inside) / gaps < 0.9);
}

TEST_CASE("leave_one_model_out: a model unlike the others shows its bias", "[law]") {
  auto all = evidence(0.05, 0.05);
  for (GapEvidence& one : all)
    if (one.parameters == kSizes[3]) one.gap *= 3, one.gap_error *= 3;
  const std::vector<LeftOut> left_out = leave_one_model_out(all);
  REQUIRE(left_out.size() == std::size(kSizes));
  CHECK(left_out[3].parameters == kSizes[3]);
  CHECK(left_out[3].bias == Approx(3).epsilon(0.2));
}

TEST_CASE("committed_law: knows the recipes of the pages and falls with size", "[law]") {
  const LossLaw& law = committed_law();
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all"}) {
    CHECK(law.knows(recipe));
    CHECK(law.models_of(recipe) >= 5);
    const auto small = law.nats({recipe, 8e9, 1e12}), large = law.nats({recipe, 70e9, 1e12});
    REQUIRE((small && large));
    CHECK(large->median < small->median);
  }
  CHECK(law.models() >= 6);
}
