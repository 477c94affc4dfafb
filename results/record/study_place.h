// A row's place in a study (precbench study): its fork and trunk, so that readers can pair rows and judge
// them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// The part of a study that a row belongs to, i.e. what it varies.
enum class StudyPart : std::uint8_t {
  trunk,          ///< a BF16 run whose states are forked
  fork,           ///< a run from one of these states, at the study's own rate and batch
  learning_rate,  ///< a fork at `rung` times that rate
  bits,           ///< a fork with `rung` mantissa bits removed from `base`
  exponent_bits,  ///< a fork with `rung` exponent bits removed from `base`
  batch,          ///< a fork with `rung` sequences per rank
  sensitivity,    ///< variants of the recipe at the fork's initial state; the fork itself is one step
};
constexpr bool takes_bits(StudyPart part) {
  return part == StudyPart::bits || part == StudyPart::exponent_bits;
}

/// Minimum number of trunks for a verdict: the trunk is the unit of every test.
inline constexpr int kFewestTrunks = 3;

/// Size that the settings of a study ask for.
struct StudySize {
  std::int64_t trunks = 0, seeds = 0, ages = 0;  ///< seeds of data per trunk, ages at which each is forked

  auto operator<=>(const StudySize&) const = default;
};

/// Rows of one study and model with equal trunk, age, seed and rung started from the same state and saw the
/// same data.
struct StudyPlace {
  /// 16 hex digits over everything that makes forks comparable: model, text, lengths, rates, rules.
  std::string study;
  StudyPart part = StudyPart::fork;
  std::int64_t trunk = 0;                 ///< from 1
  std::int64_t age = 0;                   ///< steps of the trunk before the fork; 0 for a trunk
  std::int64_t seed = 0;                  ///< of the fork's data, from 1; 0 for a trunk
  double rung = 0;                        ///< 0 in trunks and forks
  std::optional<std::string> base;        ///< the recipe before bits were removed
  bool asked = false;                     ///< the recipe is one that the study judges
  std::optional<std::string> apart_from;  ///< positive control: the recipe it must be distinguished from
  bool breaks = false;                    ///< positive control: must differ by more than half the margin
  double margin = 0;                      ///< smallest difference that matters, as a fraction of BF16's loss
  double level = 0;                       ///< probability of any wrong verdict
  /// Tokens that the trunks' initial weights were trained on before the study. Null if the user did not say
  /// or trunks start from random weights.
  std::optional<std::int64_t> trained_tokens;
  /// True if the study chose the fork's age and the trunks' loss was steady from there on. Null if the
  /// settings gave the ages, and for trunks.
  std::optional<bool> steady;
  /// Incumbent: the recipe that the row's recipe is compared with, besides BF16. Null without --against, and
  /// for rows of parts and recipes that are not compared.
  std::optional<std::string> against = std::nullopt;
  /// Sizes that the study had when it ran or kept this row, oldest first, each once: every one is an occasion to look at
  /// the verdict. Null in older records and for parts other than fork.
  std::optional<std::vector<StudySize>> sizes = std::nullopt;

  bool operator==(const StudyPlace&) const = default;
};

const char* name_of(StudyPart part);

}  // namespace precbench
