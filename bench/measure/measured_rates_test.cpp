// When a rate has been sampled often enough, on synthetic series of times.
#include "bench/measure/measured_rates.h"

#include <cmath>

#include "bench/measure/quantization.h"
#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("shortest_sample: finds the fastest call of a clock that rises and falls", "[measured_rates]") {
  // 1.6 ms, up to 4% slower or faster with a period of a second: the median of the first 15 calls would be 4%
  // too long.
  int calls = 0;
  double now = 0;
  const double shortest = shortest_sample([&] {
    const double seconds = 0.0016 * (1 + 0.04 * std::cos(2 * M_PI * now));
    ++calls;
    now += seconds;
    return seconds;
  });
  CHECK(shortest < 0.0016 * 0.962);
  CHECK(now >= 0.5);
}

TEST_CASE("shortest_sample: steady calls end after half a second", "[measured_rates]") {
  int calls = 0;
  CHECK(shortest_sample([&] { return ++calls, 0.002; }) == 0.002);
  CHECK(calls == 250);
}

TEST_CASE("percent_of_counts: a part that rounds to more than the whole is 100%", "[quantization]") {
  CHECK(percent_of_counts(16777218, 16777216) == 100.0);
  CHECK(percent_of_counts(1, 4) == 25.0);
  CHECK(percent_of_counts(0, 4) == 0.0);
  CHECK(!percent_of_counts(0, 0));
}

TEST_CASE("shortest_sample: long calls are timed ten times and a rate that keeps rising ends",
          "[measured_rates]") {
  int calls = 0;
  CHECK(shortest_sample([&] { return ++calls, 5.0; }) == 5.0);
  CHECK(calls == 10);
  double seconds = 0.05, sum = 0;
  const double shortest = shortest_sample([&] {
    seconds *= 0.998;
    sum += seconds;
    return seconds;
  });
  CHECK(shortest == seconds);
  CHECK(sum >= 2);
  CHECK(sum < 2.1);
}
