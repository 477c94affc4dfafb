// Cases with packed documents: their records and ids.

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("packing: is part of a case and of its id where it is on", "[packing]") {
  const TempDirectory directory;
  const Case c = case_of_flags("--sample-packing on --seq 64 --data " +
                               directory.write("chat.jsonl", "{\"prompt\": [1, 2], \"answer\": [3]}\n"));
  CHECK(case_to_json(c).at("packing") == "on");
  CHECK(!case_to_json(Case{}).contains("packing"));
  Case off = c;
  off.packing = "off";
  CHECK(validate(off).id != validate(c).id);
}
