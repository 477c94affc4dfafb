// Runs of elements that an ElementMap places one behind the other, for hosts that copy, write or sum them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/numerics/element_map.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// Calls visit(i, first, count) for each run of `size` local elements: the `count` from local element i on lie from
/// element `first` of the whole on.
template <class Visit>
void for_each_run(const ElementMap& place, std::int64_t size, const Visit& visit) {
  for (std::int64_t i = 0, count = 0; i < size; i += count) {
    count = std::min(size - i, place.consecutive(i));
    visit(i, place.of(i), count);
  }
}

/// Range of the whole from the first of some elements to the last; end is exclusive.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

/// Returns the range of `size` local elements, which are at least one.
inline ElementRange range_of(const ElementMap& place, std::int64_t size) {
  return {place.of(0), place.of(size - 1) + 1};
}

/// Returns the places of the elements' bytes.
inline ElementMap in_bytes(ElementMap place, DType dtype) {
  for (std::int64_t* n : {&place.first, &place.run, &place.pitch, &place.skipped}) *n = bytes_of(dtype, *n);
  return place;
}

}  // namespace precbench
