// The peaks table: dense, by exact name, and no answer for what it does not know.
#include "bench/machine/datasheet.h"

#include "tools/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("SXM parts of Hopper and Blackwell have the dense peaks of the method", "[bench]") {
  for (const char* name : {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}) {
    const auto peak = datasheet_rates(name);
    REQUIRE(peak.has_value());
    CHECK(peak->bf16_tflops == 989);
    CHECK(peak->fp8_tflops == 1979.0);
    CHECK_FALSE(peak->source.empty());
  }
  REQUIRE(datasheet_rates("NVIDIA B200").has_value());
  CHECK(datasheet_rates("NVIDIA B200")->bf16_tflops == 2250);
  CHECK(datasheet_rates("NVIDIA B200")->fp8_tflops == 4500.0);
}

TEST_CASE("cards are told apart from the SXM parts of the same name", "[bench]") {
  REQUIRE(datasheet_rates("NVIDIA H200 NVL").has_value());
  CHECK(datasheet_rates("NVIDIA H200 NVL")->bf16_tflops == 835);
  CHECK(datasheet_rates("NVIDIA H100 NVL")->fp8_tflops == 1671.0);
  CHECK(datasheet_rates("NVIDIA H100 PCIe")->bf16_tflops == 756);
}

TEST_CASE("Ampere has no FP8", "[bench]") {
  const auto peak = datasheet_rates("NVIDIA A100-SXM4-80GB");
  REQUIRE(peak.has_value());
  CHECK(peak->bf16_tflops == 312);
  CHECK_FALSE(peak->fp8_tflops.has_value());
}

TEST_CASE("an unknown GPU has no peak", "[bench]") {
  for (const char* name : {"", "NVIDIA", "NVIDIA H2000", "NVIDIA GeForce RTX 4090", "nvidia h200",
                           "NVIDIA H100 80GB HBM3 MIG 3g.40gb"})
    CHECK_FALSE(datasheet_rates(name).has_value());
}

}  // namespace
}  // namespace precbench
