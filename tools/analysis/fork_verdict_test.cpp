// Tests verdicts on simulated studies with a known truth: error rates and power.
#include "tools/analysis/fork_verdict.h"

#include <cmath>
#include <random>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

/// Judges recipes of one noise floor.
std::vector<ForkVerdict> judge_with(const std::vector<ForkEvidence>& recipes, std::optional<double> floor,
                                    int controls, const std::vector<std::string>& missed,
                                    const ForkRules& rules, std::optional<int> quiet = std::nullopt) {
  return judge_forks(recipes, std::vector(recipes.size(), NoiseFloor{floor, quiet}), controls, missed, rules);
}

constexpr int kForkStudies = 2000;
const ForkRules kRules{.margin = 0.0073};
/// Standard deviations in nats between forks of a trunk and between trunks. kRules.margin is
/// 0.25% of a loss of 2.9.
constexpr double kForkSpread = 0.0002, kTrunkSpread = 0.0002;

/// Draws nested noise as in real studies: a trunk's own deviation is shared by its ages and forks.
class Studies {
 public:
  explicit Studies(unsigned seed, double trunk_spread = kTrunkSpread, double fork_spread = kForkSpread)
      : random_(seed), trunk_spread_(trunk_spread), fork_spread_(fork_spread) {}

  /// Draws a recipe. `truth`: true difference at each age. by_length grows by `growth` per doubling.
  ForkEvidence recipe(const std::vector<double>& truth, int trunks = 3, int seeds = 1, double growth = 0) {
    ForkEvidence evidence{"r", {}, {}, 0};
    for (std::size_t a = 0; a < truth.size(); ++a)
      evidence.ages.push_back({static_cast<std::int64_t>(100 * (a + 1)), {}});
    for (int t = 0; t < trunks; ++t) {
      const double own = trunk_spread_ * normal_(random_);
      for (std::size_t a = 0; a < truth.size(); ++a) {
        for (int s = 0; s < seeds; ++s)
          evidence.ages[a].by_trunk[t].push_back(truth[a] + own + fork_spread_ * normal_(random_));
      }
      const double slope = growth + trunk_spread_ * normal_(random_);
      evidence.by_length.push_back({truth[0] - 2 * slope, truth[0] - slope, truth[0]});
    }
    return evidence;
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double trunk_spread_, fork_spread_;
};

/// Returns the fraction of simulated studies of `count` such recipes in which any recipe has this outcome.
/// The default of one seed per trunk is that of real studies.
double share(ForkOutcome outcome, unsigned seed, int count, const std::vector<double>& truth,
             double trunk_spread = kTrunkSpread, int trunks = 3, int seeds = 1) {
  Studies studies(seed, trunk_spread);
  int found = 0;
  for (int i = 0; i < kForkStudies; ++i) {
    std::vector<ForkEvidence> recipes;
    for (int r = 0; r < count; ++r) recipes.push_back(studies.recipe(truth, trunks, seeds));
    bool any = false;
    for (const ForkVerdict& verdict : judge_with(recipes, 2e-5, 3, {}, kRules))
      any = any || verdict.outcome == outcome;
    found += any;
  }
  return static_cast<double>(found) / kForkStudies;
}

/// Three standard errors above the nominal level.
const double kNominalShare = 0.05 + 3 * std::sqrt(0.05 * 0.95 / kForkStudies);

}  // namespace

TEST_CASE("judge_forks: a true harm of half the margin is equivalent in at most 5% of studies",
          "[fork_verdict]") {
  CHECK(share(ForkOutcome::equivalent, 1, 1, {kRules.bound()}) <= kNominalShare);
  // At one age of three, and for any of five recipes.
  CHECK(share(ForkOutcome::equivalent, 2, 1, {0, kRules.bound(), 0}) <= kNominalShare);
  CHECK(share(ForkOutcome::equivalent, 3, 5, {kRules.bound()}) <= kNominalShare);
  CHECK(share(ForkOutcome::equivalent, 4, 5, {0, -kRules.bound(), 0}) <= kNominalShare);
  CHECK(share(ForkOutcome::equivalent, 5, 5, {kRules.margin}) == 0);
  // If trunks scatter widely, three trunks must not count as twelve forks.
  for (const int seeds : {1, 4})
    CHECK(share(ForkOutcome::equivalent, 6, 1, {kRules.bound()}, 0.002, 3, seeds) <= kNominalShare);
}

TEST_CASE("judge_forks: counting forks as trunks would raise the error rate above 20%", "[fork_verdict]") {
  // Checks that the simulation detects the mistake: the same rule with twelve trunks of one fork each, whose
  // trunk deviations come in groups of four.
  Studies studies(7, 0.002);
  int wrong = 0;
  for (int i = 0; i < kForkStudies; ++i) {
    ForkEvidence evidence = studies.recipe({kRules.bound()}, 3, 4);
    std::map<std::int64_t, std::vector<double>> each;
    for (const auto& [trunk, forks] : evidence.ages[0].by_trunk)
      for (double d : forks) each[static_cast<std::int64_t>(each.size())] = {d};
    evidence.ages[0].by_trunk = each;
    wrong += judge_with({evidence}, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::equivalent;
  }
  CHECK(wrong > 4 * 0.05 * kForkStudies);
}

TEST_CASE("judge_forks: a true difference of zero is worse or better in at most 5% of studies",
          "[fork_verdict]") {
  // Trunks scatter so much that nothing is equivalent; otherwise every study would end there.
  for (const int recipes : {1, 5}) {
    const double worse = share(ForkOutcome::worse, 8, recipes, {0, 0, 0}, 0.02),
                 better = share(ForkOutcome::better, 8, recipes, {0, 0, 0}, 0.02);
    CHECK(worse + better <= kNominalShare);
  }
}

TEST_CASE("judge_forks: small harm is equivalent and large harm is worse in over 99% of studies",
          "[fork_verdict]") {
  // A sixth of the margin is inside the bound; 1.33 margins are detected.
  CHECK(share(ForkOutcome::equivalent, 9, 1, {0.0012, 0.0012, 0.0012}) > 0.99);
  CHECK(share(ForkOutcome::worse, 10, 1, {1.33 * kRules.margin}) > 0.99);
  // If trunks scatter widely, more of them help.
  const double three = share(ForkOutcome::equivalent, 11, 1, {0.0012}, 0.002),
               six = share(ForkOutcome::equivalent, 11, 1, {0.0012}, 0.002, 6);
  CHECK(three < 0.7);
  CHECK(six > three + 0.2);
}

TEST_CASE("judge_forks: 95% intervals of difference and trend cover the truth in 95% of studies",
          "[fork_verdict]") {
  Studies studies(12);
  int covered = 0, trend_covered = 0;
  constexpr double kTruth = 0.0012, kGrowth = 0.0004;
  for (int i = 0; i < kForkStudies; ++i) {
    const ForkVerdict verdict = judge_with({studies.recipe({kTruth}, 3, 1, kGrowth)}, 2e-5, 3, {}, kRules)[0];
    covered += verdict.difference->low <= kTruth && kTruth <= verdict.difference->high;
    trend_covered += verdict.trend->low <= kGrowth && kGrowth <= verdict.trend->high;
  }
  const double slack = 3 * std::sqrt(0.05 * 0.95 / kForkStudies);
  CHECK(std::abs(covered / double{kForkStudies} - 0.95) < slack);
  CHECK(std::abs(trend_covered / double{kForkStudies} - 0.95) < slack);
}

TEST_CASE("judge_forks: nothing is equivalent without controls or with a high noise floor",
          "[fork_verdict]") {
  Studies studies(13);
  const std::vector<ForkEvidence> recipes = {studies.recipe({0.0001, 0.0001})};
  CHECK(judge_with(recipes, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::equivalent);
  const auto reason = [&](std::optional<double> floor, int controls, const std::vector<std::string>& missed) {
    const ForkVerdict verdict = judge_with(recipes, floor, controls, missed, kRules)[0];
    CHECK(verdict.outcome == ForkOutcome::inconclusive);
    return verdict.reason;
  };
  CHECK(contains(reason(2e-5, 3, {"bits"}), "control bits was not found"));
  CHECK(contains(reason(2e-5, 0, {}), "no positive control"));
  CHECK(contains(reason(2e-5, 0, {}), "[control] in its settings"));
  CHECK(contains(reason(std::nullopt, 3, {}), "floor was not measured: the same study, started again, adds"));
  CHECK(contains(reason(kRules.margin / 9, 3, {}), "above a tenth of the margin"));
  // Both reasons are reported, so that both can be fixed in one go.
  const std::string both = reason(kRules.margin / 9, 3, {"bits"});
  CHECK((contains(both, "control bits was not found") && contains(both, "above a tenth of the margin")));
}

TEST_CASE("trunks_to_quiet: returns the trunks that lower the noise floor below its limit",
          "[fork_verdict]") {
  const auto neutral_of = [](int trunks, double mean, double spread) {
    ForkEvidence neutral{"ulp", {{100, {}}, {200, {}}}, {}, 0};
    for (int i = 0; i < trunks; ++i) {
      neutral.ages[0].by_trunk[i] = {0};
      const double root = std::sqrt((trunks - 1.0) / trunks);
      neutral.ages[1].by_trunk[i] = {mean + (trunks % 2 ? 0 : spread * (i % 2 ? 1 : -1) * root)};
    }
    return neutral;
  };
  const ForkEvidence loud = neutral_of(4, 0.0002, 0.001);
  REQUIRE(*noise_floor(loud) > kRules.largest_floor());
  const auto trunks = trunks_to_quiet(loud, kRules);
  REQUIRE(trunks);
  CHECK(*noise_floor(neutral_of(*trunks + *trunks % 2, 0.0002, 0.001)) <= kRules.largest_floor());
  CHECK(*noise_floor(neutral_of((*trunks - 2) / 2 * 2, 0.0002, 0.001)) > kRules.largest_floor());
  CHECK_FALSE(trunks_to_quiet(neutral_of(4, 0.001, 0.001), kRules));  // the mean stays too high
  CHECK(trunks_to_quiet({"ulp", {}, {}, 0}, kRules) == 3);

  Studies studies(20);
  const auto reason = [&](std::optional<int> quiet) {
    return judge_with({studies.recipe({0.0001})}, 0.001, 3, {}, kRules, quiet)[0].reason;
  };
  CHECK(contains(reason(7), "(about 7 trunks would settle it)"));
  CHECK(contains(reason(70), "(about 70 trunks would settle it; more tokens per step may need fewer)"));
  CHECK(contains(reason(std::nullopt), "(no number of trunks would settle it; more tokens per step may)"));
}

TEST_CASE("trunks_to_pass_bound: returns the trunks that show a control beyond the bound", "[fork_verdict]") {
  const auto control_of = [](int trunks, double mean, double spread) {
    ForkEvidence control{"c", {{200, {}}, {100, {}}}, {}, 0};
    if (trunks > 4) control.looks.trunks = {4, trunks};
    for (int i = 0; i < trunks; ++i) {
      control.ages[0].by_trunk[i] = {mean + spread * (i % 2 ? 1 : -1) * std::sqrt((trunks - 1.0) / trunks)};
      control.ages[1].by_trunk[i] = {-1};  // younger age, ignored
    }
    return control;
  };
  const double mean = 1.5 * kRules.bound(), spread = kRules.bound();
  const ForkEvidence missed = control_of(4, mean, spread);
  REQUIRE_FALSE(beyond_bound(missed, kRules));
  const auto trunks = trunks_to_pass_bound(missed, kRules);
  REQUIRE(trunks);
  CHECK(beyond_bound(control_of(*trunks + *trunks % 2, mean, spread), kRules));
  CHECK_FALSE(beyond_bound(control_of((*trunks - 2) / 2 * 2, mean, spread), kRules));
  CHECK_FALSE(trunks_to_pass_bound(control_of(4, 0.9 * kRules.bound(), spread), kRules));
  CHECK(trunks_to_pass_bound(control_of(1, mean, 0), kRules) == 3);
}

TEST_CASE("judge_forks: two trunks are inconclusive and a diverged fork is diverged", "[fork_verdict]") {
  Studies studies(14);
  const ForkVerdict two = judge_with({studies.recipe({0.0}, 2)}, 2e-5, 3, {}, kRules)[0];
  CHECK(two.outcome == ForkOutcome::inconclusive);
  CHECK(contains(two.reason, "2 trunks; 3 are the fewest"));
  ForkEvidence broken = studies.recipe({0.0});
  broken.diverged = 1;
  CHECK(judge_with({broken}, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::diverged);
  CHECK(beyond_bound(broken, kRules));
}

TEST_CASE("judge_forks: worse reports the age with the evidence", "[fork_verdict]") {
  // At age 400 one trunk deviates alone, which proves nothing; at 200 all do.
  const ForkEvidence evidence{"r",
                              {{200, {{1, {0.0090}}, {2, {0.0091}}, {3, {0.0089}}}},
                               {400, {{1, {0.13}}, {2, {0.001}}, {3, {0.001}}}}},
                              {},
                              0};
  const ForkVerdict verdict = judge_with({evidence}, 2e-5, 3, {}, kRules)[0];
  CHECK(verdict.outcome == ForkOutcome::worse);
  CHECK(verdict.age == 200);
  CHECK(verdict.difference->low > 0);
  CHECK(contains(verdict.reason, "after 200 steps"));
}

TEST_CASE("judge_forks: an inconclusive verdict reports how many trunks would settle it", "[fork_verdict]") {
  const ForkEvidence wide{"r", {{100, {{1, {0.001}}, {2, {-0.004}}, {3, {0.004}}}}}, {}, 0};
  const ForkVerdict verdict = judge_with({wide}, 2e-5, 3, {}, kRules)[0];
  CHECK(verdict.outcome == ForkOutcome::inconclusive);
  CHECK(contains(verdict.reason, "trunks would settle it"));
  CHECK(verdict.seeds == 1);
  // Beyond the bound no number of trunks makes it equivalent; more of them show that it is worse.
  const auto reason_of = [](std::vector<double> ends) {
    const ForkEvidence far{"r", {{100, {{1, {ends[0]}}, {2, {ends[1]}}, {3, {ends[2]}}}}}, {}, 0};
    return judge_with({far}, 2e-5, 3, {}, kRules)[0].reason;
  };
  CHECK(contains(reason_of({0.001, 0.006, 0.012}), "trunks would show that it is worse"));
  CHECK(contains(reason_of({-0.001, -0.006, -0.012}), "trunks would show that it is better"));
}

TEST_CASE("level_share: the parts of any number of looks fall and sum to less than the level", "[fork_verdict]") {
  CHECK(level_share(0) == 1);  // older records
  CHECK(level_share(1) == 0.8);
  double sum = 0;
  for (int look = 1; look <= 40; ++look) {
    sum += level_share(look);
    CHECK(level_share(look + 1) < level_share(look));
  }
  CHECK((sum < 1 && sum > 0.999));
}

TEST_CASE("judge_forks: each look tests at its part of the level and the reason says so", "[fork_verdict]") {
  // t = 15.9 with 2 degrees of freedom: twice p, for both signs, is 0.0039, below 4% and 0.5% but not 0.25%.
  ForkEvidence evidence{"r", {{100, {{1, {0.0082}}, {2, {0.0092}}, {3, {0.0102}}}}}, {}, 0};
  const auto judge = [&](std::vector<std::int64_t> trunks) {
    evidence.looks.trunks = std::move(trunks);
    return judge_with({evidence}, 2e-5, 3, {}, kRules)[0];
  };
  for (const auto& looks : {std::vector<std::int64_t>{}, {3}}) {
    CHECK(judge(looks).outcome == ForkOutcome::worse);
    CHECK_FALSE(contains(judge(looks).reason, "look"));
  }
  const double p = 1 - student_t_cdf(0.0092 / (0.001 / std::sqrt(3.0)), 2);
  CHECK((2 * p < 0.05 * level_share(2) && 2 * p > 0.05 * level_share(3)));
  CHECK(judge({2, 3}).outcome == ForkOutcome::worse);
  CHECK(contains(judge({2, 3}).reason, "(look 2, with 2, then 3 trunks: at 10% of the level)"));
  CHECK(judge({2, 2, 3}).outcome == ForkOutcome::inconclusive);
  // The same for "equivalent", and for controls.
  ForkEvidence close{"r", {{100, {{1, {0.0001}}, {2, {0.0003}}, {3, {0.0005}}}}}, {}, 0};
  CHECK(judge_with({close}, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::equivalent);
  evidence.looks = {};
  CHECK(beyond_bound(evidence, kRules));
  CHECK(told_apart(evidence, close));
  close.looks.trunks = evidence.looks.trunks = std::vector<std::int64_t>(8, 3);
  CHECK(judge_with({close}, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::inconclusive);
  CHECK_FALSE(beyond_bound(evidence, kRules));
  CHECK_FALSE(told_apart(evidence, close));
}

TEST_CASE("judge_forks: a study that lacks forks of its settings is not judged before its end", "[fork_verdict]") {
  ForkEvidence evidence{"r", {{100, {{1, {0.0082}}, {2, {0.0092}}, {3, {0.0102}}}}}, {}, 0};
  evidence.looks.awaited = 8;
  const ForkVerdict verdict = judge_with({evidence}, 2e-5, 3, {}, kRules)[0];
  CHECK(verdict.outcome == ForkOutcome::inconclusive);
  CHECK(verdict.reason == "not all forks of its 8 trunks have run; the verdict comes with the last");
  evidence.diverged = 1;  // no test is needed for that
  CHECK(judge_with({evidence}, 2e-5, 3, {}, kRules)[0].outcome == ForkOutcome::diverged);
}

TEST_CASE(
    "told_apart: a control differs from its recipe and one without effect does so in at most 5% of studies",
    "[fork_verdict]") {
  Studies studies(15);
  int found = 0, false_alarms = 0;
  for (int i = 0; i < kForkStudies; ++i) {
    // The control is 0.0008 nats from its recipe, over the same trunks.
    ForkEvidence rceil = studies.recipe({0.0012, 0.0012}), floor = rceil, same = rceil;
    const ForkEvidence noise = studies.recipe({0, 0});
    for (std::size_t a = 0; a < 2; ++a)
      for (std::int64_t t = 0; t < 3; ++t) {
        floor.ages[a].by_trunk[t][0] += 0.0008 + noise.ages[a].by_trunk.at(t)[0] / 4;
        same.ages[a].by_trunk[t][0] += noise.ages[a].by_trunk.at(t)[0];
      }
    found += told_apart(floor, rceil);
    false_alarms += told_apart(same, rceil);
  }
  CHECK(found > 0.99 * kForkStudies);
  CHECK(false_alarms <= kNominalShare * kForkStudies);
}

TEST_CASE("beyond_bound: a control at half the margin is beyond it in at most 5% of studies",
          "[fork_verdict]") {
  const auto share_beyond = [](unsigned seed, const std::vector<double>& truth, double trunk_spread) {
    Studies studies(seed, trunk_spread);
    int beyond = 0;
    for (int i = 0; i < kForkStudies; ++i) beyond += beyond_bound(studies.recipe(truth), kRules);
    return static_cast<double>(beyond) / kForkStudies;
  };
  const double half = kRules.bound(), slack = kNominalShare - 0.05;
  // At any trunk spread the error rate equals the level: the test is not conservative.
  for (const double trunk_spread : {kTrunkSpread, 0.002, 0.02})
    CHECK(std::abs(share_beyond(16, {half, half, half}, trunk_spread) - 0.05) <= slack);
  // A younger age is ignored whatever it shows.
  CHECK(share_beyond(17, {10 * half, 10 * half, half}, 0.002) <= kNominalShare);
  CHECK(share_beyond(18, {0, 4 * half}, kTrunkSpread) > 0.99);
  Studies studies(19);
  CHECK_FALSE(beyond_bound(studies.recipe({4 * half}, 2), kRules));  // two trunks
  CHECK_FALSE(beyond_bound({"r", {}, {}, 0}, kRules));
}

TEST_CASE("told_apart: differences are taken per trunk over the trunks that both have", "[fork_verdict]") {
  // 0.001 in every trunk; the trunks' own differences are far larger.
  const ForkEvidence recipe{"r", {{100, {{1, {0.1}}, {2, {0.2}}, {3, {0.3}}, {5, {0.5}}}}}, {}, 0};
  const ForkEvidence control{"c", {{100, {{1, {0.1011}}, {2, {0.201}}, {3, {0.3009}}, {4, {0.4}}}}}, {}, 0};
  CHECK(told_apart(control, recipe));
  const ForkEvidence few{"c", {{100, {{1, {0.1011}}, {2, {0.201}}, {7, {0.7}}}}}, {}, 0};
  CHECK_FALSE(told_apart(few, recipe));  // only two common trunks
}

TEST_CASE("trunks_to_tell_apart: that many trunks distinguish a control that was missed", "[fork_verdict]") {
  // Differences of 0.001, 0.002 and 0.006 are lost in their spread; with the returned number of trunks of the
  // same mean and spread they are significant.
  const ForkEvidence recipe{"r", {{100, {{1, {0}}, {2, {0}}, {3, {0}}}}}, {}, 0};
  const ForkEvidence control{"c", {{100, {{1, {0.001}}, {2, {0.002}}, {3, {0.006}}}}}, {}, 0};
  REQUIRE_FALSE(told_apart(control, recipe));
  const auto trunks = trunks_to_tell_apart(control, recipe);
  REQUIRE(trunks);
  const auto found_with = [](int count) {
    ForkEvidence zero{"r", {{100, {}}}, {}, 0}, wide = zero;
    wide.looks.trunks = {3, count};
    const double spread = std::sqrt(7e-6);  // of 0.001, 0.002 and 0.006
    for (int i = 0; i < count; ++i) {
      zero.ages[0].by_trunk[i] = {0};
      wide.ages[0].by_trunk[i] = {0.003 + spread * (i % 2 ? 1 : -1) * std::sqrt((count - 1.0) / count)};
    }
    return told_apart(wide, zero);
  };
  CHECK(found_with(*trunks + *trunks % 2));
  CHECK_FALSE(found_with((*trunks - 2) / 2 * 2));
  const ForkEvidence none{"c", {{100, {{1, {0.001}}, {2, {-0.001}}, {3, {0}}}}}, {}, 0};
  CHECK_FALSE(trunks_to_tell_apart(none, recipe));
}

TEST_CASE("noise_floor: returns the farthest end of the neutral forks' intervals", "[fork_verdict]") {
  const ForkEvidence neutral{
      "ulp",
      {{100, {{1, {1e-5}}, {2, {2e-5}}, {3, {3e-5}}}}, {200, {{1, {-1e-5}}, {2, {0}}, {3, {1e-5}}}}},
      {},
      0};
  // 2e-5 +- 4.3027 x 1e-5 / sqrt 3.
  CHECK(std::abs(*noise_floor(neutral) - (2e-5 + 4.3027e-5 / std::sqrt(3))) < 1e-9);
  CHECK_FALSE(noise_floor({"ulp", {{100, {{1, {1e-5}}}}}, {}, 0}));
}

TEST_CASE("judge_forks: differences beyond the range of double are inconclusive", "[fork_verdict]") {
  const auto all = [](double difference) {
    return ForkEvidence{
        "r", {{100, {{1, {difference}}, {2, {difference}}, {3, {difference}}}}}, {{0, 0, difference}}, 0};
  };
  for (const double difference : {1.7e308, -1.7e308, HUGE_VAL, -HUGE_VAL}) {
    CHECK(judge_with({all(difference)}, 2e-5, 3, {}, kRules).front().outcome == ForkOutcome::inconclusive);
    CHECK_FALSE(told_apart(all(difference), all(0), kRules.level));
  }
}
