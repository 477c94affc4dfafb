// Counts of things in messages.
#include "kernels/base/plural.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("plural: a count of one is singular", "[plural]") {
  CHECK(plural(1, "trunk") == "1 trunk");
  CHECK(plural(0, "trunk") == "0 trunks");
  CHECK(plural(std::size_t{2}, "BF16 trunk") == "2 BF16 trunks");
}
