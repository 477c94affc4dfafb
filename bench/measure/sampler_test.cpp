// The stop rules on synthetic series of step times.
#include "bench/measure/sampler.h"

#include <cmath>
#include <functional>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

/// Feeds times(step) until the sampler has enough, at most `limit` of them. Returns the number fed.
int feed(Sampler& sampler, const std::function<double(int)>& times, int limit = 100000) {
  for (int step = 0; step < limit; ++step)
    if (sampler.add(times(step))) return step + 1;
  return limit;
}

/// Returns a time that alternates around 100 ms with a relative IQR of `spread`.
double alternating(int step, double spread) { return 100 * (1 + (step % 2 ? 0.5 : -0.5) * spread); }

}  // namespace

TEST_CASE("Sampler: steady steps stop at the target", "[sampler]") {
  Sampler sampler({});
  // 6 steps of warm-up, which compares two medians of 3; then 10 samples, which take 1 s.
  CHECK(feed(sampler, [](int) { return 100.0; }) == 16);
  const Timing t = sampler.timing();
  CHECK(t.stop_reason == StopReason::target);
  CHECK(t.warmup == 6);
  CHECK(t.samples_ms == std::vector<double>(10, 100.0));
  CHECK(t.outliers.empty());
  CHECK(t.median_ms == 100.0);
  CHECK(t.iqr_ms == 0.0);
  CHECK(t.min_ms == 100.0);
}

TEST_CASE("Sampler: short steps are sampled until they add up to half a second", "[sampler]") {
  Sampler sampler({});
  CHECK(feed(sampler, [](int) { return 2.0; }) == 6 + 250);
  CHECK(sampler.timing().stop_reason == StopReason::target);
}

TEST_CASE("Sampler: a GPU warms up for a second and is sampled for two", "[sampler]") {
  Sampler sampler(sampler_options("cuda"));
  // 40 ms, steady from the first step, so that only the minimum of a second prolongs warm-up, beyond 20
  // steps.
  CHECK(feed(sampler, [](int) { return 40.0; }) == 25 + 50);
  CHECK(sampler.timing().warmup == 25);
  CHECK(sampler.timing().stop_reason == StopReason::target);
  // The case's own time limit and number of steps take precedence.
  SamplerOptions shorter = sampler_options("cuda");
  shorter.time_limit_s = 1;
  Sampler limited(shorter);
  CHECK(feed(limited, [](int) { return 40.0; }) == 25);
  CHECK(limited.timing().warmup == 13);
  SamplerOptions fixed = sampler_options("cuda");
  fixed.steps = 10;
  Sampler ten(fixed);
  CHECK(feed(ten, [](int) { return 40.0; }) == 10);
  CHECK(ten.timing().warmup == 5);
}

TEST_CASE("Sampler: warm-up lasts until the median settles", "[sampler]") {
  // 3% faster at every step until step 12: the medians of 3 and 3 agree within 2% when that step is in the
  // middle of the older three, four steps later.
  Sampler falling({});
  feed(falling, [](int step) { return 100 * std::pow(0.97, std::min(step, 12)); });
  CHECK(falling.timing().warmup == 17);
  CHECK(falling.timing().min_ms == 100 * std::pow(0.97, 12));
  // A single outlier does not prolong it.
  Sampler hiccup({});
  feed(hiccup, [](int step) { return step == 4 ? 500.0 : 100.0; });
  CHECK(hiccup.timing().warmup == 6);
  // It ends even if the times never settle.
  Sampler restless({});
  feed(
      restless, [](int step) { return 100 * std::pow(0.9, step); }, 30);
  CHECK(restless.timing().warmup == 20);
}

TEST_CASE("Sampler: stable noise above the target stops sampling", "[sampler]") {
  Sampler sampler({});
  // An IQR of 2% is a noise of 1.5%, always above the target.
  const int fed = feed(sampler, [](int step) { return alternating(step, 0.02); });
  const Timing t = sampler.timing();
  CHECK(t.stop_reason == StopReason::stable_noise);
  CHECK(std::fabs(*t.iqr_ms / *t.median_ms - 0.02) < 1e-3);
  // The first estimates, from one or a few samples, are still among the first 32.
  CHECK(fed > 6 + 32);
  CHECK(fed < 6 + 64);
}

TEST_CASE("Sampler: rising noise ends at the time limit", "[sampler]") {
  Sampler sampler({.time_limit_s = 2});
  // Noise that keeps growing is neither low nor stable.
  const int fed = feed(sampler, [](int step) { return alternating(step, 0.004 * step); });
  CHECK(fed == 20);
  CHECK(sampler.timing().stop_reason == StopReason::time_limit);
  CHECK(sampler.timing().warmup == 6);
}

TEST_CASE("Sampler: warm-up leaves half of the time limit", "[sampler]") {
  Sampler sampler({.time_limit_s = 2});
  CHECK(feed(sampler, [](int) { return 600.0; }) == 4);
  const Timing t = sampler.timing();
  CHECK(t.warmup == 2);
  CHECK(t.samples_ms.size() == 2);
  CHECK(t.stop_reason == StopReason::time_limit);
}

TEST_CASE("Sampler: a fixed number of steps is taken", "[sampler]") {
  for (const int steps : {1, 2, 5, 12, 40}) {
    INFO(steps);
    Sampler sampler({.steps = steps, .time_limit_s = 0.001});
    CHECK(feed(sampler, [](int step) { return alternating(step, 0.01); }) == steps);
    const Timing t = sampler.timing();
    CHECK(t.stop_reason == StopReason::fixed_steps);
    CHECK(t.warmup == (steps >= 12 ? 6 : (steps + 1) / 2));
    CHECK(static_cast<std::int64_t>(t.samples_ms.size()) == steps - t.warmup);
    CHECK(t.median_ms.has_value() == (steps > 1));
  }
}

TEST_CASE("Sampler: steps after the end are samples and do not change the reason", "[sampler]") {
  Sampler sampler({});
  feed(sampler, [](int) { return 100.0; });
  for (int i = 0; i < 3; ++i) CHECK(sampler.add(300.0));
  const Timing t = sampler.timing();
  CHECK(t.stop_reason == StopReason::target);
  CHECK(t.samples_ms.size() == 13);
  CHECK(t.outliers == std::vector<std::int64_t>{10, 11, 12});
}
