// Tests averaging over distances of outputs.
#include "tools/analysis/output_means.h"

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

OutputDistance distance(double log_probability, double kl) {
  OutputDistance one;
  one.log_probability.mean = log_probability, one.largest_log_probability = 10 * log_probability;
  one.divergence.mean = kl, one.largest_divergence = 10 * kl;
  return one;
}

}  // namespace

TEST_CASE("output_means: means of the means and largest values of all", "[study]") {
  const OutputDistance a = distance(0.25, 1), b = distance(0.75, 0.5);
  const auto all = output_means({&a, &b});
  REQUIRE(all);
  CHECK(all->log_probability == 0.5);
  CHECK(all->largest_log_probability == 7.5);
  CHECK(all->kl == 0.75);
  CHECK(all->largest_kl == 10);
}

TEST_CASE("output_means: null without a measurement and if any lacks a part", "[study]") {
  const OutputDistance whole = distance(0.25, 1);
  OutputDistance part = whole;
  part.largest_divergence.reset();
  CHECK_FALSE(output_means({}));
  CHECK_FALSE(output_means({&whole, nullptr}));
  CHECK_FALSE(output_means({&whole, &part}));
  CHECK(output_means({&whole}));
}
