// The first missing instruction set of an older CPU is named, and this CPU is accepted.
#include "bench/machine/cpu_level.h"

#include <string>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("missing_feature: names the first instruction set that a CPU lacks") {
  const CpuFeature nehalem[] = {{"AVX2", false}, {"FMA", false}};
  const CpuFeature without_fma[] = {{"AVX2", true}, {"FMA", false}};
  const CpuFeature haswell[] = {{"AVX2", true}, {"FMA", true}};
  CHECK(std::string(missing_feature(nehalem, 2)) == "AVX2");
  CHECK(std::string(missing_feature(without_fma, 2)) == "FMA");
  CHECK(missing_feature(haswell, 2) == nullptr);
}

TEST_CASE("refuse_old_cpu: accepts the CPU that runs the tests") {
  refuse_old_cpu();  // would end the program
  SUCCEED();
}
