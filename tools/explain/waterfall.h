// Difference of two steps by class of work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/explain/findings.h"

namespace precbench {

struct WaterfallPart {
  std::string name;
  std::int64_t from = 0, to = 0;  ///< ns in the first and in the second step

  std::int64_t difference() const { return to - from; }
};

/// Parts whose differences add up to that of the steps.
struct Waterfall {
  std::int64_t from = 0, to = 0;  ///< ns of the steps
  std::vector<WaterfallPart>
      parts;  ///< largest difference first, idle time last; those without time left out
  /// FLOPs of the GEMMs of known shape in the second step over those in the first; 0: unknown.
  double work_ratio = 0;
};

Waterfall waterfall_of(const Explanation& from, const Explanation& to);

/// Time that two ranks of one job spend in collectives beyond the shorter of both, in which they wait for the other.
struct RankWaits {
  int collectives = 0;
  std::int64_t first = 0, second = 0;  ///< ns
};
/// Compares the collectives of a step in their order; null if the steps do not have equally many.
std::optional<RankWaits> waits_of_ranks(const StepWork& first, const StepWork& second);

/// Returns a number of ns for each, rounded to multiples of `unit` so that the parts still add up to the rounded end:
/// entry 0 is
/// `start`, the others are the differences.
std::vector<std::int64_t> rounded_parts(std::int64_t start, const std::vector<std::int64_t>& differences,
                                        std::int64_t unit);

}  // namespace precbench
