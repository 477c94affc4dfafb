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

TEST_CASE("a table that is too wide has the words of its widest columns on several lines", "[cli]") {
  const TextRows rows = {{"name", "what it has"}, {"a", "one two three"}, {"bb", "four"}};
  CHECK(fitted(rows, 19) == aligned(rows));
  CHECK(fitted(rows, 14) ==
        "name  what it\n"
        "      has\n"
        "a     one two\n"
        "      three\n"
        "bb    four\n");
  // No word is cut.
  CHECK(fitted({{"incompressible", "columns"}}, 5) == "incompressible  columns\n");
}
