// Places of consecutive local elements in a larger tensor, of which they are all of a range or, with tensor
// parallelism, a part of every row.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/numerics/formats.h"

namespace precbench {

/// Maps local element i to an element of the whole. Converts from the place of element 0, for elements that are
/// consecutive there.
struct ElementMap {
  std::int64_t first = 0;    ///< place of the first element of the first run
  std::int64_t run = 0;      ///< consecutive elements; 0: all are
  std::int64_t pitch = 0;    ///< distance of the first elements of two runs
  std::int64_t skipped = 0;  ///< elements of the first run before local element 0

  constexpr ElementMap(std::int64_t first_element = 0)  // NOLINT(google-explicit-constructor)
      : first(first_element) {}
  constexpr ElementMap(std::int64_t first_element, std::int64_t run_length, std::int64_t distance)
      : first(first_element), run(run_length), pitch(distance) {}

  PRECBENCH_HD constexpr std::int64_t of(std::int64_t i) const {
    if (run == 0) return first + i;
    const std::int64_t at = skipped + i, runs = at / run;
    return first + runs * pitch + at - runs * run;
  }
  /// Returns the number of elements from local element i on that are consecutive in the whole.
  constexpr std::int64_t consecutive(std::int64_t i) const {
    return run == 0 ? std::numeric_limits<std::int64_t>::max() : run - (skipped + i) % run;
  }
  /// Returns the map of the elements from local element i on.
  constexpr ElementMap from(std::int64_t i) const {
    ElementMap rest = *this;
    if (run == 0) {
      rest.first += i;
    } else {
      rest.first += (skipped + i) / run * pitch;
      rest.skipped = (skipped + i) % run;
    }
    return rest;
  }
  /// Returns the map into a tensor in which the whole begins at element `begin`.
  constexpr ElementMap within(std::int64_t begin) const {
    ElementMap moved = *this;
    moved.first += begin;
    return moved;
  }
  bool operator==(const ElementMap&) const = default;
};

}  // namespace precbench
