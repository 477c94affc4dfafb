// Tests verdicts on curves with a known answer, and the error rates of the tests.
#include "tools/analysis/convergence.h"

#include <cmath>
#include <limits>
#include <random>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"

using namespace precbench;

namespace {

constexpr double kLnV = 5.545;

/// A LossCurve that owns its losses.
struct Run {
  std::string seed;
  std::vector<double> loss;
  bool diverged = false;
  std::size_t warmup = 0;
};

std::vector<LossCurve> curves_of(const std::vector<Run>& runs) {
  std::vector<LossCurve> curves;
  for (const Run& run : runs) curves.push_back({run.seed, run.loss, run.diverged, run.warmup});
  return curves;
}

RecipeConvergence judge(const std::vector<Run>& recipe, const std::vector<Run>& bf16) {
  return compare_curves(curves_of(recipe), curves_of(bf16), kLnV);
}

/// Returns a curve from ln V to 2.5 + shift; the last 20 of its 200 steps average 2.5 + shift to within 1e-8.
Run run(int seed, double shift) {
  Run c{std::to_string(seed), {}, false};
  for (int step = 0; step < 200; ++step)
    c.loss.push_back(2.5 + shift + (kLnV - 2.5 - shift) * std::exp(-step / 10.0));
  return c;
}

std::vector<Run> runs(const std::vector<double>& shifts) {
  std::vector<Run> all;
  for (const double shift : shifts) all.push_back(run(static_cast<int>(all.size()), shift));
  return all;
}

bool close(const std::optional<double>& a, double b) { return a && std::abs(*a - b) < 1e-6; }

/// Offsets of BF16's seeds. They are large but cancel in pairs.
const std::vector<double> kBf16 = {0.0, 0.05, -0.04};

RecipeConvergence compare(const std::vector<double>& deltas) {
  std::vector<double> shifts;
  for (std::size_t i = 0; i < deltas.size(); ++i) shifts.push_back(kBf16[i % 3] + deltas[i]);
  std::vector<double> bf16;
  for (std::size_t i = 0; i < deltas.size(); ++i) bf16.push_back(kBf16[i % 3]);
  return judge(runs(shifts), runs(bf16));
}

}  // namespace

TEST_CASE("ema: the average starts at the first loss", "[convergence]") {
  CHECK(ema({}).empty());
  const std::vector<double> smooth = ema(std::vector<double>{4, 2});
  REQUIRE(smooth.size() == 2);
  CHECK(std::abs(smooth[0] - 4) < 1e-12);
  CHECK(std::abs(smooth[1] - (0.09 * 4 + 0.1 * 2) / 0.19) < 1e-12);
}

TEST_CASE("compare_curves: a small difference on every seed is equivalent", "[convergence]") {
  const RecipeConvergence r = compare({0.001, 0.0012, 0.0008});
  CHECK(r.verdict == ConvergenceVerdict::equivalent);
  CHECK(r.seeds == 3);
  CHECK(r.steps == 200);
  CHECK(close(r.delta, 0.001));
  // sd 0.0002, t(0.975, 2) = 4.30265: half-width 0.000496826
  REQUIRE(r.delta_interval);
  CHECK(std::abs(r.delta_interval->low - (0.001 - 0.000496826)) < 1e-6);
  CHECK(close(r.margin, 0.0025 * (2.5 + 0.01 / 3)));
  REQUIRE(r.equivalence_p);
  CHECK(*r.equivalence_p < 0.05);
  REQUIRE(r.ema_errors);
  CHECK(close(r.ema_errors->last, 0.0012 / 2.55));  // the second seed deviates most
  CHECK(r.ema_errors->runs == 3);
  CHECK(r.ema_errors->within_throughout == 3);
  CHECK_FALSE(r.seeds_to_settle);
}

TEST_CASE("compare_curves: a large difference on every seed is worse or better", "[convergence]") {
  const RecipeConvergence worse = compare({0.030, 0.032, 0.028});
  CHECK(worse.verdict == ConvergenceVerdict::worse);
  CHECK(close(worse.delta, 0.03));
  CHECK(worse.ema_errors->largest > kEmaTolerance);
  CHECK(worse.ema_errors->within_last == 0);
  CHECK(compare({-0.030, -0.032, -0.028}).verdict == ConvergenceVerdict::better);
}

TEST_CASE("compare_curves: noise as large as the difference is inconclusive and reports the seeds needed",
          "[convergence]") {
  const RecipeConvergence r = compare({0.02, -0.01, 0.008});
  CHECK(r.verdict == ConvergenceVerdict::inconclusive);
  // delta 0.006, sd 0.0150997: |delta| > t(0.975, n - 1) sd / sqrt(n) first holds for n = 27
  // (2.0555 * 0.0150997 / sqrt(27) = 0.005973).
  REQUIRE(r.seeds_to_settle);
  CHECK(*r.seeds_to_settle == 27);
  CHECK(r.reason == "about 24 more seeds would settle it, 27 in all");
}

TEST_CASE("compare_curves: one or two seeds are inconclusive", "[convergence]") {
  const RecipeConvergence one = compare({0.0});
  CHECK(one.verdict == ConvergenceVerdict::inconclusive);
  CHECK(one.seeds_to_settle == 3);
  CHECK_FALSE(one.delta_interval);
  const RecipeConvergence two = compare({0.001, 0.001});
  CHECK(two.verdict == ConvergenceVerdict::inconclusive);
  CHECK(two.seeds_to_settle == 3);
}

TEST_CASE("compare_curves: EMA errors of opposite sign do not cancel because runs count separately",
          "[convergence]") {
  const EmaErrors errors = *compare({-0.026, 0.033, -0.001}).ema_errors;  // mean +0.002, less than 0.1%
  CHECK(errors.runs == 3);
  CHECK(errors.within_last == 1);
  CHECK(errors.within_throughout == 1);
  CHECK(close(errors.last, 0.033 / 2.55));
  CHECK(errors.largest >= errors.last);
  // A diverged run meets no criterion, however good its first steps.
  std::vector<Run> recipe = runs(kBf16);
  recipe[0].diverged = true;
  const RecipeConvergence broken = judge(recipe, runs(kBf16));
  CHECK(broken.ema_errors->runs == 3);
  CHECK(broken.ema_errors->within_last == 2);
}

TEST_CASE("compare_curves: in_noise_band comes with the half-width of the band", "[convergence]") {
  CHECK_FALSE(compare({0.001, 0.0012}).in_noise_band);
  const RecipeConvergence three = compare({0.001, 0.0012, 0.0008});
  CHECK(three.in_noise_band == true);
  // BF16's seeds 0, 0.05 and -0.04: sd 0.0450925, t(0.975, 2) = 4.30265.
  REQUIRE(three.noise_half_width);
  CHECK(std::abs(*three.noise_half_width - 4.30265 * 0.0450925 * std::sqrt(4.0 / 3)) < 1e-5);
  const RecipeConvergence eight = compare(std::vector<double>(8, 0.001));
  CHECK(eight.in_noise_band == true);
  // BF16's eight seeds are 0, 0.05, -0.04, ...: sd 0.0379615, t(0.975, 7) = 2.36462.
  REQUIRE(eight.noise_half_width);
  CHECK(std::abs(*eight.noise_half_width - 2.36462 * 0.0379615 * std::sqrt(9.0 / 8)) < 1e-5);
  CHECK(compare(std::vector<double>(8, 0.2)).in_noise_band == false);
}

namespace {

/// Compares BF16 with itself on three seeds after `steps` steps, `warmup` of them learning-rate warm-up.
RecipeConvergence same_after(std::size_t steps, std::size_t warmup) {
  std::vector<Run> both = runs(kBf16);
  for (Run& c : both) {
    c.loss.resize(steps);
    c.warmup = warmup;
  }
  return judge(both, both);
}

}  // namespace

TEST_CASE("compare_curves: runs too short for their warm-up are inconclusive however close",
          "[convergence]") {
  const RecipeConvergence r = same_after(40, 30);
  CHECK(r.verdict == ConvergenceVerdict::inconclusive);
  CHECK(r.reason == "too short: 40 steps, 30 of them warm-up of the learning rate; at least 100 are needed");
  CHECK_FALSE(r.fit_to_judge);
  CHECK_FALSE(r.seeds_to_settle);
  CHECK(same_after(99, 0).reason == "too short: 99 steps; at least 100 are needed");
  CHECK(same_after(100, 33).verdict == ConvergenceVerdict::equivalent);
  CHECK(same_after(199, 67).reason ==
        "too short: 199 steps, 67 of them warm-up of the learning rate; at least 201 are needed");
  CHECK(same_after(200, 66).verdict == ConvergenceVerdict::equivalent);
  // A worse recipe is inconclusive as well at that length.
  std::vector<Run> bf16 = runs(kBf16), worse = runs({0.5, 0.55, 0.46});
  for (std::vector<Run>* all : {&bf16, &worse})
    for (Run& c : *all) c.loss.resize(60);
  CHECK(judge(worse, bf16).verdict == ConvergenceVerdict::inconclusive);
}

TEST_CASE("compare_curves: a loss that has hardly fallen is inconclusive", "[convergence]") {
  const auto after_a_fall_of = [](double fall) {
    std::vector<Run> both;
    for (const char* seed : {"1", "2", "3"}) {
      both.push_back({seed, std::vector<double>(200, 2.0), false});
      both.back().loss.front() += fall;
    }
    return judge(both, both);
  };
  // The margin is 0.005 nats.
  CHECK(after_a_fall_of(0.09).verdict == ConvergenceVerdict::inconclusive);
  CHECK(after_a_fall_of(0.09).reason ==
        "too short: bf16's loss has fallen by 0.0900 nats, less than 20 times the margin");
  CHECK(after_a_fall_of(0.11).verdict == ConvergenceVerdict::equivalent);
}

TEST_CASE("compare_curves: one non-finite curve is diverged however good the others", "[convergence]") {
  std::vector<Run> recipe = runs(kBf16);
  recipe[1].loss[150] = std::numeric_limits<double>::quiet_NaN();
  const RecipeConvergence r = judge(recipe, runs(kBf16));
  CHECK(r.verdict == ConvergenceVerdict::diverged);
  CHECK(r.reason == "1 of 3 seeds left the finite numbers");
  std::vector<Run> by_status = runs(kBf16);
  by_status[0].diverged = true;
  CHECK(judge(by_status, runs(kBf16)).verdict == ConvergenceVerdict::diverged);
}

TEST_CASE("compare_curves: a curve that loses its progress again is diverged", "[convergence]") {
  std::vector<Run> recipe = runs(kBf16);
  for (std::size_t step = 120; step < 200; ++step) recipe[2].loss[step] = 4.5;
  CHECK(judge(recipe, runs(kBf16)).verdict == ConvergenceVerdict::diverged);
  // A spike that recovers is no divergence.
  recipe = runs(kBf16);
  for (std::size_t step = 120; step < 125; ++step) recipe[2].loss[step] = 9;
  CHECK(judge(recipe, runs(kBf16)).verdict == ConvergenceVerdict::equivalent);
}

TEST_CASE("compare_curves: a curve that broke early does not shorten the comparison of the others",
          "[convergence]") {
  std::vector<Run> recipe = runs(kBf16);
  recipe[0].diverged = true;
  recipe[0].loss.resize(20);
  const RecipeConvergence r = judge(recipe, runs(kBf16));
  CHECK(r.verdict == ConvergenceVerdict::diverged);
  CHECK(r.steps == 200);
  CHECK(r.seeds == 2);
  CHECK(close(r.delta, 0));
}

TEST_CASE("compare_curves: a plateau near ln V is not learning", "[convergence]") {
  std::vector<Run> recipe = runs(kBf16);
  for (std::size_t step = 0; step < 200; ++step)
    recipe[0].loss[step] = kLnV - 0.0005 * static_cast<double>(step);
  const RecipeConvergence r = judge(recipe, runs(kBf16));
  CHECK(r.verdict == ConvergenceVerdict::not_learning);
  CHECK(r.reason.starts_with("1 of 3 seeds"));
  CHECK(std::string(name_of(*r.verdict)) == "not learning");
  CHECK(assess_bf16(curves_of(recipe), kLnV).verdict == ConvergenceVerdict::not_learning);
}

TEST_CASE("compare_curves: runs of different lengths are inconclusive", "[convergence]") {
  std::vector<Run> shorter = runs(kBf16);
  shorter[1].loss.resize(120);
  const RecipeConvergence r = judge(shorter, runs(kBf16));
  CHECK(r.verdict == ConvergenceVerdict::inconclusive);
  CHECK(r.reason == "runs of 120 to 200 steps: the verdict needs equally long ones");
  CHECK_FALSE(r.fit_to_judge);
  CHECK(r.steps == 120);
  CHECK(close(r.delta, 0));
}

TEST_CASE("compare_curves: only equal seeds are paired and diverged BF16 runs are ignored", "[convergence]") {
  std::vector<Run> bf16 = runs(kBf16);
  bf16[0].seed = "17";
  bf16[1].diverged = true;
  const RecipeConvergence r = judge(runs(kBf16), bf16);
  CHECK(r.seeds == 1);
  CHECK(r.verdict == ConvergenceVerdict::inconclusive);
  bf16[2].seed = "18";
  const RecipeConvergence alone = judge(runs(kBf16), bf16);
  CHECK_FALSE(alone.verdict);
  CHECK(alone.reason == "no BF16 run of the same seed to compare with");
  CHECK(close(alone.final_loss, 2.5 + 0.01 / 3));
}

TEST_CASE("assess_bf16: three seeds make the noise band and two do not", "[convergence]") {
  const RecipeConvergence r = assess_bf16(curves_of(runs(kBf16)), kLnV);
  CHECK_FALSE(r.verdict);
  REQUIRE(r.band);
  CHECK(r.band->seeds == 3);
  // sd of (0, 0.05, -0.04) is 0.0450925; a further run lies within t(0.975, 2) sd sqrt(4 / 3).
  const double half = 4.30265 * 0.0450925 * std::sqrt(4.0 / 3);
  REQUIRE(r.band->ema_mean.size() == 200);
  CHECK(std::abs(r.band->ema_mean[199] - (2.5 + 0.01 / 3)) < 1e-5);
  CHECK(std::abs(r.band->ema_high[199] - r.band->ema_mean[199] - half) < 1e-5);
  CHECK(std::abs(r.band->ema_mean[199] - r.band->ema_low[199] - half) < 1e-5);
  CHECK_FALSE(assess_bf16(curves_of(runs({0.0, 0.1})), kLnV).band);
}

namespace {

constexpr int kSimulatedRuns = 2000;

/// Counts the verdicts of 2,000 simulated studies with `seeds` seeds, true difference `delta` and noise `sd`
/// per pair. Simulates final losses only, because the tests use nothing else of a curve.
std::vector<int> simulate(int seeds, double delta, double sd) {
  std::mt19937_64 engine(20240607);
  std::normal_distribution<double> noise(0, 1);
  std::vector<int> counts(6, 0);
  const auto ending_in = [](double end) {
    std::vector<double> loss(kFewestJudgedSteps, end);
    loss[0] = 5, loss[1] = 4, loss[2] = 3;
    return loss;
  };
  for (int study = 0; study < kSimulatedRuns; ++study) {
    std::vector<Run> recipe, bf16;
    for (int seed = 0; seed < seeds; ++seed) {
      const double base = 2.5 + 0.05 * noise(engine);
      const std::string name = std::to_string(seed);
      bf16.push_back({name, ending_in(base), false});
      const double mine = base + delta + sd * noise(engine);
      recipe.push_back({name, ending_in(mine), false});
    }
    ++counts[static_cast<std::size_t>(*judge(recipe, bf16).verdict)];
  }
  return counts;
}

int count_of(const std::vector<int>& counts, ConvergenceVerdict verdict) {
  return counts[static_cast<std::size_t>(verdict)];
}

/// 99.9% quantile of the binomial distribution of 2,000 trials with probability 5%.
constexpr int kMostAtFivePercent = 131;

}  // namespace

TEST_CASE("compare_curves: a true difference of zero is worse or better in at most 5% of studies",
          "[convergence]") {
  for (const int seeds : {3, 5, 10})
    for (const double sd : {0.002, 0.01, 0.05}) {
      const auto counts = simulate(seeds, 0, sd);
      CAPTURE(seeds, sd);
      CHECK(count_of(counts, ConvergenceVerdict::worse) + count_of(counts, ConvergenceVerdict::better) <=
            kMostAtFivePercent);
      CHECK(count_of(counts, ConvergenceVerdict::diverged) == 0);
    }
}

TEST_CASE("compare_curves: a true difference of one margin is equivalent in at most 5% of studies",
          "[convergence]") {
  const double margin = kEmaTolerance * 2.5;
  for (const int seeds : {3, 5, 10})
    for (const double sd : {0.0005, 0.002, 0.01}) {
      CAPTURE(seeds, sd);
      CHECK(count_of(simulate(seeds, margin, sd), ConvergenceVerdict::equivalent) <= kMostAtFivePercent);
      CHECK(count_of(simulate(seeds, -margin, sd), ConvergenceVerdict::equivalent) <= kMostAtFivePercent);
    }
}

TEST_CASE("compare_curves: studies with little noise get the right verdict in over 95% of cases",
          "[convergence]") {
  CHECK(count_of(simulate(3, 0, 0.001), ConvergenceVerdict::equivalent) > 1900);
  CHECK(count_of(simulate(3, 0.03, 0.003), ConvergenceVerdict::worse) > 1900);
  CHECK(count_of(simulate(3, -0.03, 0.003), ConvergenceVerdict::better) > 1900);
}

TEST_CASE("study_convergence: recipes of a group are judged by their records", "[convergence]") {
  std::vector<Record> records;
  for (const int seed : {1, 2, 3}) {
    for (const double penalty : {0.0, 0.001, 0.2}) {
      const char* recipe = penalty == 0 ? "bf16" : penalty < 0.1 ? "mxfp8" : "tensorwise";
      Record r = samples::gpu_record(recipe, 250, penalty + 0.01 * seed, seed);
      if (penalty == 0.001) r.support->fprop.path = ExecutionPath::emulated;
      records.push_back(r);
    }
  }
  Record broken = samples::gpu_record("tensorwise", 250, 0.2, 4);
  broken.status = Status::diverged;
  records.push_back(broken);
  records.push_back(samples::failed_record("rowwise", Status::oom, "full"));
  const RecordSet set = samples::set_of(records);
  const Analysis analysis = analyze(all_of(set), Workloads(all_of(set)));
  REQUIRE(analysis.groups.size() == 1);
  const auto study = study_convergence(analysis.groups.front());
  REQUIRE(study.size() == 3);
  CHECK(study[0].is_bf16);
  REQUIRE(study[0].band);
  CHECK(study[1].fields["recipe"] == "mxfp8");
  CHECK(study[1].verdict == ConvergenceVerdict::equivalent);
  CHECK(study[1].baseline == 0);
  CHECK(close(study[1].delta, 0.001));
  CHECK(close(study[1].excess_loss, *study[1].final_loss - 2.1));
  // The curve is 2.5 + 9.26 exp(-step / 10) plus offsets; a batch is 8 x 2048 tokens.
  REQUIRE(study[1].tokens_to_target);
  CHECK(std::fmod(*study[1].tokens_to_target * 3, 8 * 2048) == 0);
  CHECK_FALSE(study[1].seconds_to_target);  // emulated
  REQUIRE(study[0].seconds_to_target);
  CHECK(close(study[0].seconds_to_target, *study[0].tokens_to_target / (8 * 2048) * 0.25));
  CHECK(study[2].verdict == ConvergenceVerdict::diverged);
  CHECK(study[2].reason == "1 of 4 seeds left the finite numbers");
  CHECK_FALSE(study[2].tokens_to_target);
}

TEST_CASE("study_convergence: warm-up is read from the learning rates of the records", "[convergence]") {
  const auto verdict_after = [](const std::vector<double>& lr) {
    std::vector<Record> records;
    for (const int seed : {1, 2, 3})
      for (const char* recipe : {"bf16", "mxfp8"}) {
        records.push_back(samples::gpu_record(recipe, 250, 0, seed));  // 100 steps
        records.back().training->lr = lr;
      }
    const RecordSet set = samples::set_of(records);
    return study_convergence(analyze(all_of(set), Workloads(all_of(set))).groups.front()).at(1).verdict;
  };
  std::vector<double> lr(100, 1e-3);
  CHECK(verdict_after(lr) == ConvergenceVerdict::equivalent);
  for (std::size_t i = 0; i < 33; ++i) lr[i] = 1e-3 * static_cast<double>(i + 1) / 33;
  for (std::size_t i = 33; i < 100; ++i) lr[i] = 1e-3 - 1e-5 * static_cast<double>(i - 33);
  CHECK(verdict_after(lr) == ConvergenceVerdict::equivalent);
  for (std::size_t i = 0; i < 34; ++i) lr[i] = 1e-3 * static_cast<double>(i + 1) / 34;
  CHECK(verdict_after(lr) == ConvergenceVerdict::inconclusive);
  for (std::size_t i = 0; i < 100; ++i) lr[i] = 1e-5 * static_cast<double>(i);  // it never ends
  CHECK(verdict_after(lr) == ConvergenceVerdict::inconclusive);
}

TEST_CASE("study_convergence: too few steps give no study", "[convergence]") {
  Record r = samples::gpu_record("bf16", 250);
  r.training->loss.resize(4);
  const RecordSet set = samples::set_of({r});
  CHECK(study_convergence(analyze(all_of(set), Workloads(all_of(set))).groups.front()).empty());
}
