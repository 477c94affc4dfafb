// Verdict on a recipe from forks: runs that continue a BF16 trunk's state with the recipe, each minus the
// BF16 fork of the same state and data. The trunk is the unit of every test. Forks of one trunk share its
// state, so their mean counts once, however many they are (Student's t over the trunks' means).
//
// Equivalence is defined in equivalence.h. It must hold at every age of the trunk, with trunks as units, half
// the margin as the bound, and Holm's correction over the recipes. The study must also have shown that it can
// detect harm: its positive controls were found, and its noise floor is below a tenth of the margin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {

/// Differences of one recipe's forks at one age: loss minus that of the reference's fork (BF16's, or an
/// incumbent's) of the same trunk and seed, nats.
struct AgeDifferences {
  std::int64_t age = 0;  ///< steps of the trunk before the fork
  /// trunk number -> differences of its forks, one per data seed; none is empty
  std::map<std::int64_t, std::vector<double>> by_trunk;
};

/// Occasions to judge a recipe. Trunks that are added because a verdict is open give chance further opportunities, so
/// every occasion spends a part of the level (level_share). An occasion is a size that the settings of the study asked
/// for (StudyPlace::sizes) and that the recipe's forks have reached, with enough trunks for a verdict.
struct Looks {
  std::vector<std::int64_t> trunks = {};  ///< at each look, the present one last; empty in older records
  /// Trunks that the settings ask for while forks are missing. The verdict waits for them: judging a study before its
  /// end is a look, too.
  std::optional<std::int64_t> awaited = {};

  /// Number of the present look, from 1; 0 for older records, which do not say.
  int count() const { return trunks.empty() && awaited ? 1 : static_cast<int>(trunks.size()); }
  int next() const { return std::max(1, count()) + 1; }
};

/// Returns the part of a study's level that a look spends: four fifths at the first, and at every other half of what is
/// left. The parts of any number of looks sum to less than 1, so that the level holds wherever a study ends. Look 0,
/// which is that of older records, has the whole level: nobody has added trunks to them by this rule.
double level_share(int look);

/// Measurements of one recipe in a study.
struct ForkEvidence {
  std::string recipe;
  std::vector<AgeDifferences> ages;
  /// For each trunk, the differences over the first 1/4, 1/2 and all of the forks' steps (mean over its forks
  /// and ages). The trend is fitted over log2 of the steps.
  std::vector<std::vector<double>> by_length;
  int diverged = 0;  ///< forks that diverged while the reference's of the same trunk and seed did not
  std::string reference = "BF16";  ///< name of the runs that the differences are from
  int reference_diverged = 0;      ///< the other way round; only counted if the reference is an incumbent
  Looks looks = {};
};

struct ForkRules {
  double margin = 0;  ///< nats; smallest difference that matters at an age that `margins` does not name
  /// probability of any false "equivalent", and of any false "worse" or "better", in a study
  double level = 0.05;
  /// Margins by age, nats: a fraction of BF16's loss, which falls with age.
  std::map<std::int64_t, double> margins = {};

  double margin_at(std::int64_t age) const {
    const auto own = margins.find(age);
    return own == margins.end() ? margin : own->second;
  }
  double bound(std::int64_t age = -1) const { return margin_at(age) / 2; }
  /// Returns the smallest margin of any age.
  double strictest() const {
    double least = margin;
    for (const auto& [age, own] : margins) least = std::min(least, own);
    return least;
  }
  double largest_floor() const { return strictest() / 10; }
};

enum class ForkOutcome : std::uint8_t { equivalent, worse, better, diverged, inconclusive };
const char* name_of(ForkOutcome outcome);

/// Mean final difference of a recipe's forks from BF16's at one age.
struct AgeInterval {
  std::int64_t age = 0;
  std::optional<double> mean;                  ///< nats, over the trunks; also of a single one
  std::optional<MeanWithInterval> difference;  ///< nats, over the trunks; null below 2 trunks
};

struct ForkVerdict {
  std::string recipe;
  ForkOutcome outcome = ForkOutcome::inconclusive;
  std::string reason;  ///< one line: reason of the verdict, or what is missing and would settle it
  std::optional<MeanWithInterval> difference;  ///< nats, over the trunks, at `age`; null below 2 trunks
  std::int64_t age = 0;                   ///< age of the largest difference; for worse and better, the age
                                          ///< with the smallest p
  std::vector<AgeInterval> by_age;        ///< all ages, youngest first, so that recipes can be
                                          ///< compared at equal age
  std::optional<MeanWithInterval> trend;  ///< nats per doubling of the fork's length; null below 2 trunks
  int trunks = 0, seeds = 0;              ///< at the age with the fewest
  Looks looks;
};

/// Noise floor of a recipe's differences, and what would lower it.
struct NoiseFloor {
  std::optional<double> nats;               ///< noise_floor(); null if it was not measured
  std::optional<int> quiet = std::nullopt;  ///< trunks_to_quiet(); only needed if the floor is too high
};

/// Returns the noise floor: the largest magnitude within the interval of any age, for forks that differ only
/// by a negligible perturbation. Null if an age has fewer than two trunks.
std::optional<double> noise_floor(const ForkEvidence& neutral);

/// Returns the mean difference over the trunks at the oldest age; null without forks.
std::optional<double> oldest_difference(const ForkEvidence& evidence);

/// Returns true if a control differs from its base recipe, averaged over the ages that both have (both
/// one-sided tests at half of the look's part of the level).
bool told_apart(const ForkEvidence& control, const ForkEvidence& recipe, double level = 0.05);

/// Returns the estimated number of trunks needed at the present mean and spread; null if it is impractical.
/// The three functions: to distinguish a control from its recipe; to show that a control is beyond the bound;
/// to lower the noise floor to its limit.
std::optional<int> trunks_to_tell_apart(const ForkEvidence& control, const ForkEvidence& recipe,
                                        double level = 0.05);
std::optional<int> trunks_to_pass_bound(const ForkEvidence& control, const ForkRules& rules);
std::optional<int> trunks_to_quiet(const ForkEvidence& neutral, const ForkRules& rules);

/// Returns "about 7 trunks would settle it". If that is many or null, appends `guess`, an alternative that is
/// not computed here.
std::string remedy_words(std::optional<int> trunks, const std::string& guess);

/// Returns true if a control is significantly worse than anything that may be called equivalent: a
/// one-sided t test over the trunks puts it beyond the bound, or it diverged. Only the oldest age counts,
/// which is fixed before the measurement: the best of several ages would exceed the bound by chance more
/// often than the level allows.
bool beyond_bound(const ForkEvidence& control, const ForkRules& rules);

/// Returns one verdict per recipe, in their order. A recipe's p-values are divided by its look's part of the level, so
/// that Holm's correction holds over all recipes and looks. `floors`: of each recipe. `missed`: names of the positive
/// controls that were not found, with the remedy. If any was missed, or `controls` is 0, nothing is equivalent.
std::vector<ForkVerdict> judge_forks(const std::vector<ForkEvidence>& recipes,
                                     const std::vector<NoiseFloor>& floors, int controls,
                                     const std::vector<std::string>& missed, const ForkRules& rules);

}  // namespace precbench
