// Long text is cut off between characters.
#include "results/record/short_text.h"

#include <string>

#include "kernels/testing/catch.h"

namespace precbench {

TEST_CASE("short_printable: long text is cut off at a character", "[printable]") {
  CHECK(short_printable("short", 10) == "short");
  CHECK(short_printable(std::string(100'000, 'a'), 10) == "aaaaaaa...");
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "\U0001f600";
  CHECK(short_printable(wide, 5) == "\U0001f600\U0001f600...");
  CHECK(short_printable("\x1b[2J" + std::string(100, 'b'), 8) == " [2Jb...");
}

}  // namespace precbench
