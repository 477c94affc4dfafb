// The rule that ends re-warming, on simulated losses with a known answer.
#include "bench/study/steady.h"

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

const std::vector<std::int64_t> kAges = {50, 100, 200, 400};
constexpr double kLevel = 0.05;

/// Returns how often each age is chosen, percent; key 0: none was steady. `course`: mean loss as a function
/// of the step.
std::map<std::int64_t, double> chosen(const std::function<double(double)>& course, double noise, int trunks,
                                      unsigned seed) {
  constexpr int kStudies = 500;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::map<std::int64_t, double> ages;
  for (int study = 0; study < kStudies; ++study) {
    std::vector<std::vector<double>> losses;
    for (int trunk = 0; trunk < trunks; ++trunk) {
      const double offset = 0.02 * normal(random);
      losses.emplace_back();
      for (int step = 1; step <= kAges.back(); ++step)
        losses.back().push_back(course(step) + offset + noise * normal(random));
    }
    const SteadyAge found = find_steady_age(losses, kAges, kLevel);
    ages[found.steady ? found.age : 0] += 100.0 / kStudies;
  }
  return ages;
}

}  // namespace

TEST_CASE("find_steady_age: a constant loss is steady from the first age on", "[steady]") {
  for (const int trunks : {1, 3, 5}) {
    auto ages = chosen([](double) { return 2.3; }, 0.05, trunks, 1);
    CHECK(ages[50] > 92);  // 5% by chance
    CHECK(ages[50] < 98);
  }
}

TEST_CASE("find_steady_age: forks wait until a transient has ended", "[steady]") {
  // The transient is 0.1 nats at step 50 and 0.002 at step 100.
  auto ages = chosen([](double step) { return 2.3 + 5 * std::exp(-step / 12.8); }, 0.05, 3, 2);
  CHECK(ages[50] < 5);
  CHECK(ages[100] > 90);
  auto slow = chosen([](double step) { return 2.3 + 0.5 * std::exp(-step / 40); }, 0.05, 3, 3);
  CHECK(slow[50] + slow[100] < 5);
  CHECK(slow[200] > 80);
}

TEST_CASE("find_steady_age: a rising loss is not steady either", "[steady]") {
  auto ages = chosen([](double step) { return 2.3 - 5 * std::exp(-step / 12.8); }, 0.05, 3, 4);
  CHECK(ages[50] < 5);
  CHECK(ages[100] > 90);
}

TEST_CASE("find_steady_age: more trunks detect a drift that fewer cannot", "[steady]") {
  const auto drift = [](double step) { return 2.3 - 0.005 * std::log2(step); };
  CHECK(chosen(drift, 0.05, 1, 5)[50] > chosen(drift, 0.05, 8, 6)[50] + 30);
}

TEST_CASE("find_steady_age: a loss that never settles gives the last age and not steady", "[steady]") {
  std::vector<std::vector<double>> losses(3);
  for (auto& loss : losses)
    for (int step = 1; step <= kAges.back(); ++step)
      loss.push_back(3 - 0.1 * std::log2(step) + 1e-3 * (step % 2));
  const SteadyAge found = find_steady_age(losses, kAges, kLevel);
  CHECK_FALSE(found.steady);
  CHECK(found.age == 400);
  CHECK(found.change.mean == Approx(-0.1).epsilon(0.05));  // of the last doubling
  CHECK(contains(describe(found, 400), "still moving at the last saved step: by -0.10"));
}

TEST_CASE("find_steady_age: the change has the interval of a plain regression", "[steady]") {
  // Four losses of one trunk after step 2, at steps 3 to 6; their least-squares slope over log2(step) is
  // checked by hand.
  const std::vector<double> loss = {9, 9, 1.00, 1.10, 0.95, 1.05};
  const SteadyAge found = find_steady_age({loss}, {2, 6}, kLevel);
  double mean_x = 0, xx = 0, xy = 0, yy = 0;
  for (int step = 3; step <= 6; ++step) mean_x += std::log2(step) / 4;
  for (int step = 3; step <= 6; ++step) {
    const double x = std::log2(step) - mean_x, y = loss[static_cast<std::size_t>(step - 1)] - 1.025;
    xx += x * x, xy += x * y, yy += y * y;
  }
  const double slope = xy / xx, error = std::sqrt((yy - slope * xy) / 2 / xx), span = std::log2(3.0);
  CHECK(found.steady);
  CHECK(found.age == 2);
  CHECK(found.change.mean == Approx(slope * span));
  CHECK(found.change.high - found.change.mean ==
        Approx(4.302652730 * error * span));  // t of 2 degrees of freedom
}

TEST_CASE("find_steady_age: a loss that is not finite is refused", "[steady]") {
  CHECK(contains(refusal_of([] { find_steady_age({{1, 1, NAN, 1}}, {2, 4}, kLevel); }), "not finite"));
}
