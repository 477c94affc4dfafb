// Tests that hidden tests only run if named, so that one process can run all others.
#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("filters that only exclude tests include no hidden test", "[testing]") {
  const auto names = [](const std::string& filter) {
    return output_of(PRECBENCH_BINARY_DIR "/precbench_tests --list-test-names-only " + filter).text;
  };
  const std::string hidden = "at torchao's own shape too",
                    shown = "filters that only exclude tests include no hidden test";
  for (const char* filter : {"'~[sweep]'", "'~[sweep]~[endurance]'", "'~[sweep]' '~[endurance]'",
                             "'~[sweep],~[cli]'", "'~what is shown'", "'~\"what is shown\" ~[cli]'"}) {
    INFO(filter);
    CHECK(!contains(names(filter), hidden));
    CHECK(contains(names(filter), shown));
  }
  CHECK(!contains(names(""), hidden));
  CHECK(contains(names("\"" + hidden + "\""), hidden));
  CHECK(contains(names("'[sqnr]~[sweep]'"), hidden));
}
