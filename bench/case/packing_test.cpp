// Cases with packed documents: what is refused before anything starts, and what the plan counts.
#include <fmt/format.h>

#include <string>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case packing_case(const std::string& path) {
  Case c = case_with("sample_packing", "on");
  c.device = "cpu";
  c.data = path;
  c.seq = 64;
  return c;
}

}  // namespace

TEST_CASE("packing: is part of a case and of its id where it is on", "[packing]") {
  const TempDirectory directory;
  const Case c = packing_case(directory.write("chat.jsonl", "{\"prompt\": [1, 2], \"answer\": [3]}\n"));
  CHECK(case_to_json(c).at("packing") == "on");
  CHECK(!case_to_json(Case{}).contains("packing"));
  Case off = c;
  off.packing = "off";
  CHECK(validate(off).id != validate(c).id);
}
