// Tests where a loss gap comes from.
#include "tools/law/expected_gaps.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "tools/analysis/token_cost.h"
#include "tools/law/study_spread.h"

using namespace precbench;

namespace {

GapEvidence study(double parameters, double age) {
  GapEvidence one;
  one.records = "study", one.recipe = "mxfp8", one.parameters = parameters, one.tokens_per_parameter = age;
  one.bf16_loss = 2, one.gap = 0.01, one.gap_error = 0.001, one.runs = 3;
  one.in_bf16 = MeasuredGap{0.004, 0.001};
  return one;
}

constexpr PlannedRun kRun{1e9, 1e12, Serving::bf16};
/// A run that continues a BF16 model, as the studies of study() do.
constexpr PlannedRun kContinued{1e9, 1e12, Serving::bf16, TrainingStart::continued};

}  // namespace

TEST_CASE("ExpectedGaps: a study of this very model and age is used as it is", "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, {study(1.005e9, 900)});
  const auto expected = gaps.at("mxfp8", kContinued, 1e12);
  REQUIRE(expected);
  CHECK(std::string(expected->evidence()) == "measured");
  CHECK(expected->measured->records == "study");
  CHECK(expected->gap.mean == 0.004);
  // 80% by Student's t with two degrees of freedom: 1.886.
  CHECK(expected->gap.high == Approx(0.004 + 1.886 * 0.001).epsilon(1e-3));
  CHECK(gaps.at("mxfp8", {1e9, 1e12, Serving::raw, TrainingStart::continued}, 1e12)->gap.mean == 0.01);
}

TEST_CASE("ExpectedGaps: committed studies count together, with the spread between studies of one model",
          "[advise]") {
  GapEvidence other = study(1e9, 1000);
  other.records = "another text", other.in_bf16 = MeasuredGap{0.006, 0.001};
  const auto one = ExpectedGaps(committed_law(), {}, {study(1e9, 1000)}).at("mxfp8", kContinued, 1e12);
  const auto both =
      ExpectedGaps(committed_law(), {}, {study(1e9, 1000), other}).at("mxfp8", kContinued, 1e12);
  CHECK(one->studies == 1);
  CHECK(both->studies == 2);
  CHECK(both->gap.mean == Approx(0.005));
  // The studies differ by 0.002 nats, so a third text may lie beyond either.
  CHECK(both->gap.low < 0.004);
  CHECK(both->gap.high > 0.006);
  CHECK(both->gap.high - both->gap.low > one->gap.high - one->gap.low);
  // A model with a single study has the spread that other models show: 0.1 of the raw gap here.
  GapEvidence small = study(2e8, 1000);
  small.in_bf16 = MeasuredGap{0.004, 0};
  const auto spread = ExpectedGaps(committed_law(), {}, {study(1e9, 1000), other, small})
                          .at("mxfp8", {2e8, 2e11, Serving::bf16, TrainingStart::continued}, 2e11);
  CHECK(spread->gap.mean == 0.004);
  CHECK(spread->gap.high > 0.004 + 3.078 * 0.001);  // 80% by Student's t with one degree of freedom
}

TEST_CASE("ExpectedGaps: the reader's own studies are of the reader's text", "[advise]") {
  GapEvidence other = study(1e9, 1000);
  other.in_bf16 = MeasuredGap{0.006, 0.001};
  const auto own = ExpectedGaps(committed_law(), {study(1e9, 1000)}, {study(1e9, 1000), other})
                       .at("mxfp8", kContinued, 1e12);
  CHECK(own->studies == 1);
  CHECK(own->gap.high == Approx(0.004 + 1.886 * 0.001).epsilon(1e-3));
}

TEST_CASE("ExpectedGaps: runs from scratch are preferred to continued ones", "[advise]") {
  GapEvidence scratch = study(1e9, 1000);
  scratch.training = TrainingStart::from_scratch, scratch.in_bf16 = MeasuredGap{0.009, 0.001};
  const auto expected =
      ExpectedGaps(committed_law(), {}, {study(1e9, 1000), scratch}).at("mxfp8", kRun, 1e12);
  CHECK(expected->gap.mean == 0.009);
  CHECK_FALSE(expected->continued());
  CHECK(ExpectedGaps(committed_law(), {}, {study(1e9, 1000)}).at("mxfp8", kRun, 1e12)->continued());
}

TEST_CASE(
    "ExpectedGaps: for a run from scratch the gap of continued studies has the law's factor of such runs",
    "[advise]") {
  const LossLaw& law = committed_law();
  const double factor = std::exp(law.from_scratch()->value);
  const ExpectedGaps gaps(law, {study(1e9, 1000)}, {});
  const auto continued = gaps.at("mxfp8", {1e9, 1e12, Serving::raw, TrainingStart::continued}, 1e12);
  const auto raw = gaps.at("mxfp8", {1e9, 1e12, Serving::raw}, 1e12);
  CHECK(raw->continued());
  CHECK(raw->gap.mean == Approx(factor * 0.01).epsilon(0.02));
  // The factor is known from one model, so another's may differ as much as the factor itself.
  CHECK(raw->gap.low < continued->gap.low);
  CHECK(raw->gap.high > factor * factor * 0.01);
  // The share of a raw gap that a deployment leaves depends on how the weights were trained: the law's, not the study's 0.4.
  const auto served = gaps.at("mxfp8", kRun, 1e12);
  const double left = law.ratio(Serving::bf16, TrainingStart::from_scratch, false).mean;
  CHECK(served->gap.mean == Approx(factor * left * 0.01).epsilon(0.05));
  CHECK(gaps.at("mxfp8", kContinued, 1e12)->gap.mean == 0.004);
  // As the law itself: with the study's raw gap in place of its own.
  const auto forecast = law.nats({"mxfp8", 1e9, 1e12, Serving::bf16}),
             forks = law.nats({"mxfp8", 1e9, 1e12, Serving::raw, TrainingStart::continued});
  CHECK(served->gap.mean / 0.01 == Approx(forecast->median / forks->median).epsilon(0.05));
  // A gap that the study does not tell from zero may be negative from scratch, too.
  GapEvidence unresolved = study(1e9, 1000);
  unresolved.gap = 0.0002, unresolved.gap_error = 0.001;
  CHECK(ExpectedGaps(law, {unresolved}, {}).at("mxfp8", kRun, 1e12)->gap.low < 0);
}

TEST_CASE(
    "ExpectedGaps: 80% intervals of SmolLM2 hold most of its studies, on other texts and with other batches",
    "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, committed_evidence());
  int inside = 0, all = 0;
  bool prose = false;
  for (const GapEvidence& one : committed_evidence())
    for (const Serving serving : {Serving::bf16, Serving::recipe}) {
      const auto measured = served_gap(one, serving);
      if (!measured || one.parameters != Approx(134.515e6).epsilon(1e-3)) continue;
      const auto expected = gaps.at(one.recipe, {one.parameters, 2e12, serving, TrainingStart::continued},
                                    one.parameters * one.tokens_per_parameter);
      REQUIRE((expected && expected->measured));
      inside += expected->gap.low <= measured->mean && measured->mean <= expected->gap.high, ++all;
      prose = prose || one.records.find("prose") != std::string::npos;
    }
  INFO(inside << " of " << all);
  CHECK(all >= 30);
  CHECK(inside >= 0.7 * all);
  CHECK(prose);
}

TEST_CASE("spread_between_studies: pools differences over models and recipes, without the error of runs",
          "[law]") {
  const auto at = [](double parameters, const char* recipe, double gap, double error = 0) {
    GapEvidence one = study(parameters, 1000);
    one.recipe = recipe, one.in_bf16 = MeasuredGap{gap, error};
    return one;
  };
  CHECK(spread_between_studies({at(1e9, "mxfp8", 0.004), at(1e9, "rowwise", 0.009)}, Serving::bf16).freedom ==
        0);
  // Two studies that differ by 0.002: a standard deviation of 0.001414, of a raw gap of 0.01.
  const std::vector<GapEvidence> pair = {at(1e9, "mxfp8", 0.004), at(1e9, "mxfp8", 0.006)};
  const StudySpread spread = spread_between_studies(pair, Serving::bf16);
  CHECK(spread.share == Approx(0.1414).epsilon(1e-3));
  CHECK(spread.freedom == 1);
  // Equal studies of another model halve the variance; errors of the runs are taken off; younger models do not count.
  std::vector<GapEvidence> more = pair;
  more.push_back(at(2e8, "mxfp8", 0.003)), more.push_back(at(2e8, "mxfp8", 0.003));
  CHECK(spread_between_studies(more, Serving::bf16).share == Approx(0.1).epsilon(1e-3));
  CHECK(spread_between_studies(more, Serving::bf16).models == 2);
  CHECK(
      spread_between_studies({at(1e9, "mxfp8", 0.004, 0.001), at(1e9, "mxfp8", 0.006, 0.001)}, Serving::bf16)
          .share == Approx(0.1).epsilon(1e-3));
  CHECK(
      spread_between_studies({at(1e9, "mxfp8", 0.004, 0.002), at(1e9, "mxfp8", 0.006, 0.002)}, Serving::bf16)
          .share == 0);
  CHECK(spread_between_studies(pair, Serving::recipe).freedom == 0);  // was not measured
  // Studies that are too noisy to say anything do not hide the spread of others.
  std::vector<GapEvidence> noisy = pair;
  noisy.push_back(at(2e8, "mxfp8", 0.003, 0.02)), noisy.push_back(at(2e8, "mxfp8", 0.004, 0.02));
  CHECK(spread_between_studies(noisy, Serving::bf16).share >= 0.09);
}

TEST_CASE("ExpectedGaps: a noisy study moves the mean of exact ones little", "[advise]") {
  GapEvidence exact = study(1e9, 1000), other = exact, noisy = exact;
  other.gap = exact.gap * 1.02, noisy.gap = 1.5 * exact.gap;
  exact.gap_error = other.gap_error = 0.01 * exact.gap, noisy.gap_error = exact.gap;
  exact.records = "a", other.records = "b", noisy.records = "c";
  const PlannedRun run{1e9, 1e12, Serving::raw, TrainingStart::continued};
  const auto with = [&](std::vector<GapEvidence> studies) {
    return ExpectedGaps(committed_law(), {}, std::move(studies)).at("mxfp8", run, 1e12)->gap;
  };
  const MeanWithInterval two = with({exact, other}), three = with({exact, other, noisy});
  CHECK(three.mean == Approx(two.mean).epsilon(0.05));
  CHECK(three.high < 2 * two.high);
}

TEST_CASE("ExpectedGaps: another model, age or deployment is that of the law", "[advise]") {
  const auto evidence = [](const GapEvidence& one, Serving serving = Serving::bf16) {
    return std::string(
        ExpectedGaps(committed_law(), {}, {one}).at("mxfp8", {1e9, 1e12, serving}, 1e12)->evidence());
  };
  CHECK(evidence(study(1e9, 1000)) == "measured");
  CHECK(evidence(study(1.1e9, 1000)) == "law");
  CHECK(evidence(study(1e9, 500)) == "law");
  GapEvidence scratch = study(1e9, 1000);
  scratch.training = TrainingStart::from_scratch;
  CHECK(evidence(scratch, Serving::recipe) == "law");  // was not measured
}

TEST_CASE("ExpectedGaps: the law's gap is that of the law at the run's size, tokens and deployment",
          "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, {});
  for (const Serving serving : {Serving::bf16, Serving::recipe}) {
    const auto expected = gaps.at("rowwise", {8e9, 1e12, serving}, 1e12);
    const auto law = committed_law().nats({"rowwise", 8e9, 1e12, serving});
    CHECK(expected->gap.mean == Approx(law->median));
    CHECK(expected->gap.low == Approx(law->low));
    CHECK(expected->gap.high == Approx(law->high));
    CHECK_FALSE(expected->younger);
  }
}

TEST_CASE("ExpectedGaps: the reader's studies come first", "[advise]") {
  GapEvidence own = study(1e9, 1000);
  own.records = "own", own.in_bf16 = MeasuredGap{0.001, 0};
  CHECK(ExpectedGaps(committed_law(), {own}, {study(1e9, 1000)}).at("mxfp8", kContinued, 1e12)->gap.mean ==
        0.001);
}

TEST_CASE("ExpectedGaps: a run younger than the law's models has the gap of their age", "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, {});
  const auto young = gaps.at("mxfp8", kRun, 0.2e9);
  REQUIRE(young);
  CHECK(young->younger);
  const double share = committed_law().share({"mxfp8", 1e9, kYoungestLawAge * 1e9})->median;
  CHECK(young->gap.mean == Approx(share * kBesiroglu2024.loss(1e9, 0.2e9)));
}

TEST_CASE("ExpectedGaps: an unknown recipe or size has no gap", "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, {});
  CHECK_FALSE(gaps.at("unheard_of", kRun, 1e12));
  CHECK_FALSE(gaps.at("mxfp8", {0, 1e12, Serving::bf16}, 1e12));
}

// results/texts.md states both counts.
TEST_CASE(
    "Gaps of Qwen2.5-Coder 0.5B on code: the law of other models holds all 12, gaps measured on documentation hold 5",
    "[law]") {
  std::vector<GapEvidence> code, before, others;
  for (const GapEvidence& one : committed_evidence()) {
    const bool on_code = one.records == "h200/causes-qwen-0.5b-code";
    if (on_code) code.push_back(one);
    if (!on_code) before.push_back(one);
    if (!on_code && one.records != "h200/deployment-qwen-0.5b") others.push_back(one);
  }
  REQUIRE(code.size() == 4);
  const LossLaw law(others);
  const ExpectedGaps measured(law, {}, before);
  int in_law = 0, in_measured = 0;
  for (const GapEvidence& one : code)
    for (const Serving serving : {Serving::bf16, Serving::recipe, Serving::raw}) {
      const double tokens = one.parameters * one.tokens_per_parameter;
      const MeasuredGap gap = *served_gap(one, serving);
      in_law += law.share({one.recipe, one.parameters, tokens, serving, one.training}, gap.error / one.gap)
                    ->contains(gap.mean / one.bf16_loss);
      const auto stated = measured.at(one.recipe, {one.parameters, tokens, serving, one.training}, tokens);
      REQUIRE(stated->measured);
      in_measured += stated->gap.low <= gap.mean && gap.mean <= stated->gap.high;
    }
  CHECK(in_law == 12);
  CHECK(in_measured == 5);
}
