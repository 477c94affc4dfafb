// How a recipe's price changes along a fork: whether it falls, stays or grows, and where it settles.
//
// The course of a trunk is d(t), the loss of the recipe's forks minus BF16's at step t, mean over the data seeds. It is
// fitted by d(t) = plateau + amplitude * exp(-t / tau): least squares, with tau from a geometric grid. Right after the
// switch the recipe meets weights that were trained in BF16; training in the recipe then relaxes towards what remains.
//
// Shape. The change is the mean of the last quarter of the steps minus that of the first tenth. Its 95% interval over the
// trunks decides: below zero is falling, above zero growing, inside +-`small` flat, anything else unclear.
//
// Plateau. A flat course is one. Any other has reached one if the fit that all trunks share meets two conditions: its tau is at
// most a third of the fork, so that less than 5% of the amplitude is left at the end; and it fits better than
// a + b * ln(1 + t), which never settles. Each trunk is then fitted by itself, and the 95% interval of the plateau is
// Student's t over the trunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "results/statistics.h"

namespace precbench {

enum class CourseShape : std::uint8_t { falling, flat, growing, unclear };
const char* name_of(CourseShape shape);

struct ForkCourse {
  CourseShape shape = CourseShape::unclear;
  MeanWithInterval change;                  ///< nats, last quarter minus first tenth, over the trunks
  std::optional<MeanWithInterval> plateau;  ///< nats, over the trunks; null where none is reached
  double tau = 0;                           ///< steps, of the fit that all trunks share
  bool above_zero() const { return plateau && plateau->low > 0; }
};

/// Fewest steps of a course: shorter ones have no tenths.
inline constexpr std::size_t kFewestCourseSteps = 12;

/// Fits a recipe's courses at one age: one a trunk, nats by step, compared as far as the shortest goes. `small`: nats, a
/// change that does not matter. Null for fewer than two trunks, for fewer than kFewestCourseSteps steps, and where a value
/// is not finite.
std::optional<ForkCourse> fit_course(const std::vector<std::vector<double>>& trunks, double small);

}  // namespace precbench
