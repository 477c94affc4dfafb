// The command line of explain.
#include <filesystem>

#include "bench/cli/cli_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/explain/trace_testing.h"

namespace precbench {

using namespace testing;

TEST_CASE("explain: the command prints findings, JSON and a waterfall", "[explain][cli]") {
  const TempDirectory folder;
  const std::string bf16 = folder.write("bf16.json", StepWriter(false, Planted::nothing).steps()),
                    fp8 = folder.write("fp8.json", StepWriter(true, Planted::casts).steps());
  const Answer text = precbench_says("explain " + bf16 + " " + fp8);
  CHECK(text.status == 0);
  CHECK_THAT(text.text, ContainsText("Casts are not fused"));
  CHECK_THAT(text.text, ContainsText("step, second trace"));
  CHECK_THAT(precbench_says("explain --json " + fp8).text, ContainsText("\"id\": \"casts\""));
  CHECK_THAT(precbench_says("explain --gpu b200 " + fp8).text, ContainsText("borrowed"));
}

TEST_CASE("explain: a figure is drawn, or the program says why not", "[explain][cli]") {
  const TempDirectory folder;
  const std::string trace = folder.write("a.json", StepWriter(true, Planted::casts).steps());
  const Answer answer = precbench_says("explain --plots " + (folder / "plots") + " " + trace);
  INFO(answer.text);
  if (answer.status == 0)
    CHECK(std::filesystem::file_size(folder / "plots/explain.svg") > 1000);
  else
    CHECK_THAT(answer.text, ContainsText("gnuplot"));
  CHECK_THAT(answer.text, !ContainsText("could not draw"));
}

TEST_CASE("explain: bad input ends with status 2 and one line", "[explain][cli]") {
  const TempDirectory folder;
  const std::string log = folder.write("run.log", "step 1\n"),
                    good = folder.write("a.json", StepWriter(false, Planted::nothing).steps(1));
  CHECK_THAT(refused("explain " + log), ContainsText("neither JSON"));
  CHECK_THAT(refused("explain " + folder.path().string() + "/missing.json"), ContainsText("cannot read"));
  CHECK_THAT(refused("explain --gpu abacus " + good), ContainsText("--gpu"));
  CHECK_THAT(refused("explain " + good + " " + good + " " + good), ContainsText("3 are named"));
}

}  // namespace precbench
