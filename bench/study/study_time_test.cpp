// Steps timed for the estimate of a study's time.
#include "bench/study/study_time.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("measure_pace: returns nothing if steps take too long and throws if they fail", "[study]") {
  Case c;
  c.device = "cpu";
  CHECK(!measure_pace({"/bin/sleep", "3600"}, c, "rowwise", 0.1));
  CHECK(contains(refusal_of([&] { measure_pace({"/bin/false"}, c, "rowwise", 3600); }),
                 "tiny bf16 does not run here"));
}
