// Simulates studies to which trunks are added until they are settled, and studies of a fixed number of trunks. Measures
// how often a verdict is wrong, with each look's part of the level (level_share) and with the whole level at every look.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/analysis/equivalence.h"
#include "tools/analysis/fork_verdict.h"

using namespace precbench;

namespace {

constexpr int kMostTrunks = 8;
constexpr double kStudyMargin = 0.0073;  // 0.25% of a loss of 2.9
/// Noise floor of the committed studies, over the spread of their recipes' trunks.
constexpr double kFloorOfSpread = 1.0 / 7;
constexpr int kPrinted = 3000, kTested = 250, kFewer = 100;

enum class Deviates : std::uint8_t { normal, skewed };
const char* name_of(Deviates noise) { return noise == Deviates::normal ? "normal" : "skewed"; }

struct Design {
  int recipes = 1;
  double spread = 0;  ///< standard deviation of a recipe's trunks, in margins
  Deviates noise = Deviates::normal;
  double truth = 0;  ///< of every recipe, in margins
};

/// Draws studies with two ages and one seed. Half of the variance is BF16's fork, which all recipes share.
class DrawnStudy {
 public:
  DrawnStudy(const Design& design, std::mt19937_64& random) : design_(design) {
    for (int r = 0; r < design.recipes; ++r) recipes_.push_back({"r", {{100, {}}, {200, {}}}, {}, 0});
    for (int trunk = 1; trunk <= kMostTrunks; ++trunk)
      for (std::size_t age = 0; age < 2; ++age) {
        const double bf16 = draw(random);
        for (ForkEvidence& recipe : recipes_)
          recipe.ages[age].by_trunk[trunk] = {
              kStudyMargin * (design.truth + design.spread * std::sqrt(0.5) * (draw(random) - bf16))};
      }
  }

  /// Returns the outcomes with the first `trunks` trunks, at this look; 0: at the whole level.
  std::vector<ForkOutcome> judge(int trunks, int look) const {
    std::vector<ForkEvidence> seen = recipes_;
    for (ForkEvidence& recipe : seen) {
      recipe.looks.trunks.resize(static_cast<std::size_t>(look), trunks);
      for (AgeDifferences& age : recipe.ages)
        age.by_trunk.erase(age.by_trunk.upper_bound(trunks), age.by_trunk.end());
    }
    const std::vector floors(seen.size(), NoiseFloor{kFloorOfSpread * design_.spread * kStudyMargin});
    std::vector<ForkOutcome> outcomes;
    for (const ForkVerdict& verdict : judge_forks(seen, floors, 3, {}, {.margin = kStudyMargin}))
      outcomes.push_back(verdict.outcome);
    return outcomes;
  }

 private:
  /// Draws a deviate of mean 0 and variance 1; the skewed one is log-normal with a skewness of 1.75.
  double draw(std::mt19937_64& random) {
    constexpr double kSigma = 0.5;
    const double z = normal_(random), variance = std::exp(kSigma * kSigma);
    return design_.noise == Deviates::normal
               ? z
               : (std::exp(kSigma * z) - std::sqrt(variance)) / std::sqrt(variance * (variance - 1));
  }

  Design design_;
  std::normal_distribution<double> normal_;
  std::vector<ForkEvidence> recipes_;
};

/// Percentages of studies with a wrong verdict at any of their looks: a recipe's verdict may be used as soon as it is
/// there, while trunks are added for the sake of another recipe.
struct Errors {
  double fixed = 0;        ///< three trunks, judged once, by the rule
  double uncorrected = 0;  ///< a trunk at a time from three until all recipes are settled, each look at the whole level
  double settled = 0;      ///< the same by the rule
  double any_look = 0;     ///< by the rule, up to kMostTrunks wherever the study would have ended
};

bool wrong(const std::vector<ForkOutcome>& outcomes, const Design& design) {
  return std::any_of(outcomes.begin(), outcomes.end(), [&](ForkOutcome outcome) {
    return design.truth == 0 ? outcome == ForkOutcome::worse || outcome == ForkOutcome::better
                             : outcome == ForkOutcome::equivalent;
  });
}

bool all_settled(const std::vector<ForkOutcome>& outcomes) {
  return std::find(outcomes.begin(), outcomes.end(), ForkOutcome::inconclusive) == outcomes.end();
}

/// `every_look`: also measures Errors::any_look, which takes longer.
Errors simulate(const Design& design, int count, unsigned seed, bool every_look = false) {
  std::mt19937_64 random(seed);
  Errors errors;
  const double each = 100.0 / count;
  for (int i = 0; i < count; ++i) {
    const DrawnStudy study(design, random);
    bool any = false, ended = false, any_uncorrected = false, ended_uncorrected = false;
    for (int trunks = kFewestUnits; trunks <= kMostTrunks; ++trunks) {
      if (ended && ended_uncorrected && !every_look) break;
      const int look = trunks - kFewestUnits + 1;
      const auto now = study.judge(trunks, look);
      any = any || wrong(now, design);
      if (look == 1) errors.fixed += wrong(now, design) * each;
      if (!ended && (all_settled(now) || trunks == kMostTrunks)) {
        ended = true;
        errors.settled += any * each;
      }
      if (ended_uncorrected) continue;
      const auto without = study.judge(trunks, 0);
      any_uncorrected = any_uncorrected || wrong(without, design);
      if (!all_settled(without) && trunks < kMostTrunks) continue;
      ended_uncorrected = true;
      errors.uncorrected += any_uncorrected * each;
    }
    errors.any_look += any * each;
  }
  return errors;
}

constexpr std::array<double, 5> kSpreads = {0.12, 0.2, 0.3, 0.5, 1};
/// Half of the margin, where "equivalent" is wrong, and 0, where "worse" and "better" are.
constexpr std::array<double, 2> kWrongTruths = {0.5, 0};

/// Returns the beginning of a row of the page's table.
std::string head_of(double truth, int recipes, Deviates noise) {
  return fmt::format("| {} | {} | {} |", truth == 0 ? "worse or better" : "equivalent", recipes, name_of(noise));
}

template <class Row>
void for_each_row(const Row& row) {
  for (const double truth : kWrongTruths)
    for (const int recipes : {1, 7})
      for (const Deviates noise : {Deviates::normal, Deviates::skewed}) row(truth, recipes, noise);
}

}  // namespace

TEST_CASE("looks simulation: trunks added until a study is settled keep wrong verdicts at the level", "[looks_simulation]") {
  const double nominal = 5 + 300 * std::sqrt(0.05 * 0.95 / kTested);
  double worst_uncorrected = 0;
  for_each_row([&](double truth, int recipes, Deviates noise) {
    for (const double spread : {0.3, 1.0}) {
      const Errors errors = simulate({recipes, spread, noise, truth}, kTested, 51, true);
      INFO(head_of(truth, recipes, noise) << spread);
      CHECK(errors.settled <= nominal);
      CHECK(errors.any_look <= nominal);
      worst_uncorrected = std::max(worst_uncorrected, errors.uncorrected);
    }
  });
  CHECK(worst_uncorrected > nominal);  // the simulation sees what the rule is for
}

TEST_CASE("looks simulation: the table of the page is right", "[looks_simulation]") {
  const std::string page = file_text(PRECBENCH_SOURCE_DIR "/bench/study/verdict.md");
  for_each_row([&](double truth, int recipes, Deviates noise) {
    const std::string head = head_of(truth, recipes, noise);
    INFO(head);
    const std::size_t begin = page.find(head);
    REQUIRE(begin != std::string::npos);
    std::istringstream line(page.substr(begin + head.size(), page.find('\n', begin) - begin - head.size()));
    for (const double spread : kSpreads) {
      const Errors errors = simulate({recipes, spread, noise, truth}, kFewer, 52);
      for (const double simulated : {errors.fixed, errors.uncorrected, errors.settled}) {
        double said = -1;
        std::string after;
        REQUIRE(line >> said >> after);
        // Four standard errors of the smaller simulation, plus rounding.
        const double chance = std::clamp(said, 0.5, 99.5) / 100;
        CHECK(std::abs(said - simulated) <= 0.1 + 400 * std::sqrt(chance * (1 - chance) / kFewer));
      }
    }
  });
}

TEST_CASE("looks simulation: prints the table", "[.looks]") {
  for_each_row([](double truth, int recipes, Deviates noise) {
    fmt::print("{}", head_of(truth, recipes, noise));
    for (const double spread : kSpreads) {
      const Errors errors = simulate({recipes, spread, noise, truth}, kPrinted, 53);
      fmt::print(" {:.1f} / {:.1f} / {:.1f} |", errors.fixed, errors.uncorrected, errors.settled);
    }
    fmt::print("\n");
  });
}
