// Tests the slope at a horizon from runs whose losses follow a law.
#include "tools/analysis/horizon_slope.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

/// Run of 1,000 steps whose loss is exactly the law's.
BaseRun exact_run(double tokens, const std::string& name = "base") {
  BaseRun run{name, {}, {}, {}};
  for (int i = 1; i <= 1000; ++i) {
    run.tokens.push_back(tokens * i / 1000);
    run.loss.push_back(kBesiroglu2024.loss(1e9, run.tokens.back()));
    run.rate.push_back(i <= 50 ? 3e-4 * i / 50 : 3e-4);
  }
  return run;
}

bool near(double x, double y, double relative = 1e-3) { return std::fabs(x / y - 1) < relative; }

std::string message_of(const std::vector<BaseRun>& runs) {
  return refusal_of([&] { slope_of_runs(runs, 1e12); });
}

}  // namespace

TEST_CASE("slope_of_runs: returns the law's slope at the horizon for runs that follow the law", "[gap]") {
  const HorizonSlope two = slope_of_runs({exact_run(10e9), exact_run(40e9)}, 1e12);
  CHECK(near(two.slope.mean, kBesiroglu2024.slope(1e12)));
  CHECK(two.source == "2 runs of 10B and 40B tokens");
  REQUIRE(two.warnings.size() == 2);  // seeds, extrapolation
  CHECK(contains(two.warnings.back(), "extrapolated from 40B to 1T tokens"));
  const HorizonSlope one = slope_of_runs({exact_run(400e9)}, 1e12);
  CHECK(near(one.slope.mean, kBesiroglu2024.slope(1e12)));
  CHECK(one.source == "run base, its part at a constant learning rate");
  CHECK(one.warnings.empty());
  CHECK(
      slope_of_runs({exact_run(1e9), exact_run(2e9), exact_run(4e9), exact_run(8e9)}, 16e9).warnings.empty());
}

TEST_CASE("slope_of_runs: is not the slope of the young run itself", "[gap]") {
  const double young = kBesiroglu2024.slope(50e6), late = slope_of_runs({exact_run(50e6)}, 1e12).slope.mean;
  CHECK(young > 30 * late);
  CHECK(near(late, kBesiroglu2024.slope(1e12)));
}

TEST_CASE("slope_of_runs: averages runs of equal length", "[gap]") {
  const HorizonSlope slope = slope_of_runs({exact_run(400e9), exact_run(400e9), exact_run(400e9)}, 1e12);
  CHECK(near(slope.slope.mean, kBesiroglu2024.slope(1e12)));
  CHECK(slope.source == "3 runs of 400B tokens");
}

TEST_CASE("slope_of_runs: uses only the part before the decay", "[gap]") {
  BaseRun run = exact_run(40e9);
  for (std::size_t i = 700; i < 1000; ++i) {  // the decay lowers the loss by up to 0.2 nats
    const double left = static_cast<double>(1000 - i) / 300;
    run.rate[i] = 3e-4 * left;
    run.loss[i] -= 0.2 * (1 - left);
  }
  CHECK(near(slope_of_runs({run}, 1e12).slope.mean, kBesiroglu2024.slope(1e12)));
}

TEST_CASE("slope_of_runs: warns of a run that decays all the time and of one without a rate", "[gap]") {
  BaseRun cosine = exact_run(400e9, "cosine");
  for (std::size_t i = 50; i < 1000; ++i)
    cosine.rate[i] = 1.5e-4 * (1 + std::cos(3.14159 * static_cast<double>(i - 50) / 950));
  const HorizonSlope slope = slope_of_runs({cosine}, 1e12);
  REQUIRE(slope.warnings.size() == 1);
  CHECK(contains(slope.warnings[0], "The learning rate of cosine decays from early on"));
  cosine.rate.clear();
  REQUIRE(slope_of_runs({cosine}, 1e12).warnings.size() == 1);
  CHECK(contains(slope_of_runs({cosine}, 1e12).warnings[0], "does not say its learning rate"));
  // Each of several runs is checked.
  CHECK(slope_of_runs({exact_run(400e9), cosine}, 1e12).warnings.size() == 1);
}

TEST_CASE("slope_of_runs: refuses runs without a slope in one line", "[gap]") {
  BaseRun brief = exact_run(1e9, "brief");
  for (auto* series : {&brief.tokens, &brief.loss, &brief.rate}) series->resize(39);
  CHECK(message_of({brief}) == "--base brief: 39 steps are too few for a slope; it takes 40");
  BaseRun flat = exact_run(1e9, "flat");
  for (std::size_t i = 0; i < flat.loss.size(); ++i) flat.loss[i] = 3 + (i % 2 ? 0.1 : -0.1);
  CHECK(
      message_of({flat}) ==
      "--base: the loss does not fall significantly with tokens in run flat, its part at a constant learning rate");
  BaseRun broken = exact_run(1e9, "broken");
  broken.loss[500] = NAN;
  CHECK(message_of({broken}) == "--base broken: needs ascending tokens and finite losses");
  CHECK(message_of({}) == "--base: no run in it");
}

TEST_CASE("slope_of_law: names the law", "[gap]") {
  const HorizonSlope slope = slope_of_law(kBesiroglu2024, 15e12);
  CHECK(near(slope.slope.mean, 0.0116, 0.01));
  CHECK(slope.slope.low == slope.slope.high);
  CHECK(slope.source == "law of Besiroglu et al. 2024 (arXiv 2404.10102)");
}
