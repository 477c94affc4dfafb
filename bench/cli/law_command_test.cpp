// The command line of law.
#include "bench/cli/cli_testing.h"
#include "kernels/testing/catch.h"

namespace precbench::testing {

TEST_CASE("law: the table of studies compares those that --studies names", "[law][cli]") {
  const auto asked = [](const std::string& studies) {
    return precbench_says("law --table studies --format md --studies " + studies);
  };
  CHECK_THAT(asked("h200/deployment-smollm2,h200/causes-smollm2-prose").text,
             ContainsText("| BF16       |      1 |                4 |           4 |"));
  CHECK_THAT(asked("h200/deployment-smollm2").text, ContainsText("|           0 |                        - |"));
  const auto refused = asked("h200/deployment-smollm2,h200/none");
  CHECK(refused.status == 2);
  CHECK_THAT(refused.text, ContainsText("--studies: no study of \"h200/none\""));
}

}  // namespace precbench::testing
