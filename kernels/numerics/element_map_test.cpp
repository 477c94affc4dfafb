// Places of elements in a larger tensor.
#include "kernels/numerics/element_map.h"

#include <limits>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("ElementMap: columns of a matrix, from any element on", "[element_map][tensor]") {
  constexpr std::int64_t kCols = 5, kOwn = 2, kFirst = 3;  // columns 3 and 4 of rows of 5
  const ElementMap columns(kFirst, kOwn, kCols);
  for (std::int64_t first = 0; first < 8; ++first) {
    const ElementMap rest = columns.from(first);
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t element = first + i;
      CHECK(rest.of(i) == element / kOwn * kCols + kFirst + element % kOwn);
      CHECK(rest.within(100).of(i) == 100 + rest.of(i));
      CHECK(rest.consecutive(i) == kOwn - element % kOwn);
      CHECK(rest.from(i) == columns.from(element));
    }
  }
}

TEST_CASE("ElementMap: a range of consecutive elements", "[element_map][tensor]") {
  const ElementMap range = 7;
  CHECK(range.of(3) == 10);
  CHECK(range.from(3) == ElementMap(10));
  CHECK(range.consecutive(3) == std::numeric_limits<std::int64_t>::max());
}
