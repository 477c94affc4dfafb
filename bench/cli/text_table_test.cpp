// Alignment and wrapping of tables.
#include "bench/cli/text_table.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("aligned: columns are padded to their widest cell without trailing spaces", "[cli]") {
  CHECK(aligned({{"name", "count", "note"}, {"a", "12", "first"}, {"longer", "7", ""}}, "lr") ==
        "name    count  note\n"
        "a          12  first\n"
        "longer      7\n");
  CHECK(aligned({{"a", "b"}, {"ccc"}}) == "a    b\nccc\n");
}

TEST_CASE("fitted: a table wider than the limit wraps its widest column between words", "[cli]") {
  const TextRows rows = {{"name", "what it has"}, {"a", "one two three"}, {"bb", "four"}};
  CHECK(fitted(rows, 19) == aligned(rows));
  CHECK(fitted(rows, 14) ==
        "name  what it\n"
        "      has\n"
        "a     one two\n"
        "      three\n"
        "bb    four\n");
  // Words are never broken.
  CHECK(fitted({{"incompressible", "columns"}}, 5) == "incompressible  columns\n");
}
