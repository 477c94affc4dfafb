// Columns of text.
#include "bench/cli/text_table.h"

#include "tools/testing/catch.h"

using namespace precbench;

TEST_CASE("columns are aligned, and lines end where their text does", "[cli]") {
  CHECK(aligned({{"name", "count", "note"}, {"a", "12", "first"}, {"longer", "7", ""}}, "lr") ==
        "name    count  note\n"
        "a          12  first\n"
        "longer      7\n");
  CHECK(aligned({{"a", "b"}, {"ccc"}}) == "a    b\nccc\n");
}
