// A row's place in a study (precbench study): which fork of which trunk it is, so that whoever reads the rows can pair
// them and judge.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace precbench {

/// What a row of a study varies.
enum class StudyPart : std::uint8_t {
  trunk,          ///< a BF16 run whose states are forked
  fork,           ///< from one of them, at the study's own rate and batch
  learning_rate,  ///< a fork at `rung` times that rate
  bits,           ///< a fork with `rung` mantissa bits taken away from `base`
  exponent_bits,  ///< the same of exponent bits
  batch,          ///< a fork of `rung` sequences a rank
  sensitivity,    ///< variants of the recipe at the fork's first state; the fork itself is one step
};
constexpr bool takes_bits(StudyPart part) {
  return part == StudyPart::bits || part == StudyPart::exponent_bits;
}

/// Fewer trunks settle nothing: the trunk is the unit of every test.
inline constexpr int kFewestTrunks = 3;

/// Rows of one study and model, with equal trunk, age, seed and rung, began alike and had the same data.
struct StudyPlace {
  std::string study;  ///< 16 hex digits over what makes forks comparable: model, text, lengths, rates, rules
  StudyPart part = StudyPart::fork;
  std::int64_t trunk = 0;                 ///< from 1
  std::int64_t age = 0;                   ///< steps of the trunk before the fork; 0 of a trunk
  std::int64_t seed = 0;                  ///< of the fork's data, from 1; 0 of a trunk
  double rung = 0;                        ///< 0 in trunks and forks
  std::optional<std::string> base;        ///< of a part that takes bits: the recipe that lost them
  bool asked = false;                     ///< the recipe is one that the study is about
  std::optional<std::string> apart_from;  ///< a positive control: the recipe that it must be told apart from
  bool breaks = false;                    ///< a positive control: must be beyond half the margin
  double margin = 0;                      ///< a difference that matters, as a fraction of BF16's loss
  double level = 0;                       ///< chance of any wrong verdict
  /// Tokens that the trunks' first weights had seen before the study; null where the user did not say, and in studies whose
  /// trunks start from random weights.
  std::optional<std::int64_t> trained_tokens;
  /// True if the study chose the fork's age and the trunks' loss was steady from there on; null if the settings gave the ages,
  /// and for trunks.
  std::optional<bool> steady;

  bool operator==(const StudyPlace&) const = default;
};

const char* name_of(StudyPart part);

}  // namespace precbench
