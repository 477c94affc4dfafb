// Course of a recipe's loss gap along a fork: falling, flat or growing, and the plateau it settles at.
//
// The course of a trunk is d(t), the loss of the recipe's forks minus BF16's at step t, averaged over the
// data seeds. It is fitted by least squares as d(t) = plateau + amplitude * exp(-t / tau), with tau from a
// geometric grid. Right after the switch the recipe runs on weights that were trained in BF16; training with
// the recipe then relaxes the gap towards its remaining value.
//
// Shape. The change is the mean of the last quarter of the steps minus the mean of the first tenth. Its 95%
// interval over the trunks decides: below zero is falling, above zero growing, inside +-`small` flat,
// anything else unclear.
//
// Plateau. A flat course has one. Any other course has one if the joint fit of all trunks meets two
// conditions: tau is at most a third of the fork, so that less than 5% of the amplitude is left at the end;
// and the fit is better than a + b * ln(1 + t), which never settles. Each trunk is then fitted separately,
// and the 95% interval of the plateau is Student's t over the trunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {

enum class CourseShape : std::uint8_t { falling, flat, growing, unclear };
const char* name_of(CourseShape shape);

struct ForkCourse {
  CourseShape shape = CourseShape::unclear;
  MeanWithInterval change;                  ///< nats, last quarter minus first tenth, over the trunks
  std::optional<MeanWithInterval> plateau;  ///< nats, over the trunks; null if none is reached
  double tau = 0;                           ///< steps, from the joint fit of all trunks
  bool above_zero() const { return plateau && plateau->low > 0; }
};

/// Minimum number of steps of a course; shorter ones cannot be split into tenths.
inline constexpr std::size_t kFewestCourseSteps = 12;

/// Fits a recipe's courses at one age, one per trunk, in nats by step, truncated to the shortest. `small`:
/// largest change in nats that does not matter. Null for fewer than two trunks, fewer than kFewestCourseSteps
/// steps, or a non-finite value.
std::optional<ForkCourse> fit_course(const std::vector<std::vector<double>>& trunks, double small);

}  // namespace precbench
