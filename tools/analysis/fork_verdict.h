// Does a recipe train as BF16 does? Judged by forks: runs that continue a BF16 trunk's state with the recipe, each
// minus the BF16 fork of the same state and data. The trunk is the unit of every test: forks of one trunk share its
// state, so that their mean counts once, whatever their number (Student's t over the trunks' means).
//
// Equivalent means what equivalence.h says, at every age of the trunk, with the trunks as units, half of the margin as the
// bound, and Holm's correction over the recipes. The study must also have shown that it could see harm: its positive
// controls were found, and its noise floor is below a tenth of the margin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "results/statistics.h"

namespace precbench {

/// Differences of one recipe's forks at one age: loss minus the BF16 fork's of the same trunk and seed, nats.
struct AgeDifferences {
  std::int64_t age = 0;  ///< steps of the trunk before the fork
  std::map<std::int64_t, std::vector<double>>
      by_trunk;  ///< by its number, its forks, one a data seed; none is empty
};

/// What a study has measured of one recipe.
struct ForkEvidence {
  std::string recipe;
  std::vector<AgeDifferences> ages;
  /// The differences of the first 1/4, 1/2 and all of the forks' steps, by trunk (mean over its forks and ages), to be
  /// fitted over log2 of the steps.
  std::vector<std::vector<double>> by_length;
  int diverged = 0;  ///< forks whose loss ended, while BF16's of the same trunk and seed did not
};

struct ForkRules {
  double margin = 0;  ///< nats; a difference as large as this matters
  double level =
      0.05;  ///< chance of any wrong "equivalent", and of any wrong "worse" or "better", in a study
  double bound() const { return margin / 2; }
  double largest_floor() const { return margin / 10; }
};

enum class ForkOutcome : std::uint8_t { equivalent, worse, better, diverged, inconclusive };
const char* name_of(ForkOutcome outcome);

/// How far a recipe's forks end from BF16's at one age.
struct AgeInterval {
  std::int64_t age = 0;
  std::optional<MeanWithInterval> difference;  ///< nats, over the trunks; none with fewer than 2
};

struct ForkVerdict {
  std::string recipe;
  ForkOutcome outcome = ForkOutcome::inconclusive;
  std::string reason;  ///< one line: what decided, or what is missing and would settle it
  std::optional<MeanWithInterval>
      difference;                   ///< nats, over the trunks, at `age`; none with fewer than 2 trunks
  std::int64_t age = 0;             ///< where it is largest; of worse and better the one that shows it best
  std::vector<AgeInterval> by_age;  ///< youngest first: recipes are compared at one age, not each at its own
  std::optional<MeanWithInterval> trend;  ///< nats for each doubling of the fork's length; from 2 trunks on
  int trunks = 0, seeds = 0;              ///< of the age with the fewest
};

/// The largest magnitude that the interval of any age reaches: what forks differ by that differ in nothing that
/// matters. None where an age has fewer than two trunks.
std::optional<double> noise_floor(const ForkEvidence& neutral);

/// Whether a control's difference from the recipe that it is a variant of, mean over the ages that both have, is not zero
/// (both one-sided tests at level / 2).
bool told_apart(const ForkEvidence& control, const ForkEvidence& recipe, double level = 0.05);

/// About how many trunks would do if mean and spread stayed as they are, none within reason: to tell a control apart from its
/// recipe, to show another to be beyond the bound, and to bring the noise floor down to where it may be.
std::optional<int> trunks_to_tell_apart(const ForkEvidence& control, const ForkEvidence& recipe,
                                        double level = 0.05);
std::optional<int> trunks_to_pass_bound(const ForkEvidence& control, const ForkRules& rules);
std::optional<int> trunks_to_quiet(const ForkEvidence& neutral, const ForkRules& rules);

/// "about 7 trunks would", and where that is many or none, `guess`: what may help instead, which nothing here reckons.
std::string remedy_words(std::optional<int> trunks, const std::string& guess);

/// Whether a control is shown to be worse than anything that can be called equivalent: a one-sided t test over the trunks
/// puts it beyond the bound, or it diverged. Of the oldest age alone, which is fixed before anything is measured: the best
/// of several ages would be beyond by chance more often than the level says.
bool beyond_bound(const ForkEvidence& control, const ForkRules& rules);

/// One verdict a recipe, in their order. `floor`: none, where it was not measured; `quiet`: trunks_to_quiet, where it is too
/// high. `missed`: a name of each positive control that was not found, with what would find it; where there is one, or no
/// control at all (`controls` 0), nothing is equivalent.
std::vector<ForkVerdict> judge_forks(const std::vector<ForkEvidence>& recipes, std::optional<double> floor,
                                     int controls, const std::vector<std::string>& missed,
                                     const ForkRules& rules, std::optional<int> quiet = std::nullopt);

}  // namespace precbench
