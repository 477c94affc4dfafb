// Tests where a loss gap comes from.
#include "tools/law/expected_gaps.h"

#include "kernels/testing/catch.h"
#include "tools/analysis/token_cost.h"

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

}  // namespace

TEST_CASE("ExpectedGaps: a study of this very model and age is used as it is", "[advise]") {
  const ExpectedGaps gaps(committed_law(), {}, {study(1.005e9, 900)});
  const auto expected = gaps.at("mxfp8", kRun, 1e12);
  REQUIRE(expected);
  CHECK(std::string(expected->evidence()) == "measured");
  CHECK(expected->measured->records == "study");
  CHECK(expected->gap.mean == 0.004);
  // 80% by Student's t with two degrees of freedom: 1.886.
  CHECK(expected->gap.high == Approx(0.004 + 1.886 * 0.001).epsilon(1e-3));
  CHECK(gaps.at("mxfp8", {1e9, 1e12, Serving::raw}, 1e12)->gap.mean == 0.01);
}

TEST_CASE("ExpectedGaps: another model, age or deployment is that of the law", "[advise]") {
  const auto evidence = [](const GapEvidence& one, Serving serving = Serving::bf16) {
    return std::string(
        ExpectedGaps(committed_law(), {}, {one}).at("mxfp8", {1e9, 1e12, serving}, 1e12)->evidence());
  };
  CHECK(evidence(study(1e9, 1000)) == "measured");
  CHECK(evidence(study(1.1e9, 1000)) == "law");
  CHECK(evidence(study(1e9, 500)) == "law");
  CHECK(evidence(study(1e9, 1000), Serving::recipe) == "law");  // was not measured
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
  CHECK(ExpectedGaps(committed_law(), {own}, {study(1e9, 1000)}).at("mxfp8", kRun, 1e12)->gap.mean == 0.001);
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
