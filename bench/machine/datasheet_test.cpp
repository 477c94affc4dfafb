// The peaks table: dense rates, exact names, and no guess for unknown GPUs.
#include "bench/machine/datasheet.h"

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

TEST_CASE("datasheet_names: lists every GPU once, each with its rates", "[datasheet]") {
  const std::vector<std::string> names = datasheet_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK(names.size() >= 20);
  for (const std::string& name : names) CHECK(datasheet_rates(name));
}

TEST_CASE("datasheet_rates: SXM parts of Hopper and Blackwell have dense peaks", "[bench]") {
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

TEST_CASE("find_datasheet_gpu: any words of a name find the most common board", "[bench]") {
  const auto name_of = [](const char* words) { return find_datasheet_gpu(words).name; };
  CHECK(name_of("h100") == "NVIDIA H100 80GB HBM3");
  CHECK(name_of("NVIDIA H100 80GB HBM3") == "NVIDIA H100 80GB HBM3");
  CHECK(name_of("H100 PCIe") == "NVIDIA H100 PCIe");
  CHECK(name_of("h20") == "NVIDIA H20");
  CHECK(name_of("b200") == "NVIDIA B200");
  CHECK(name_of("a100") == "NVIDIA A100-SXM4-80GB");
  CHECK(name_of("a100-40gb") == "NVIDIA A100-SXM4-40GB");
  CHECK(name_of("rtx4090") == "NVIDIA GeForce RTX 4090");
  CHECK(name_of("l4") == "NVIDIA L4");
  // So do names of machine files, also where the driver's name is not known.
  CHECK(name_of("mi300x") == "mi300x");
  CHECK(name_of("5060") == name_of("rtx-5060-ti"));
  CHECK(name_of("h100-pcie") == "NVIDIA H100 PCIe");
  for (const char* unknown : {"h1000", "", "-", "h100 nvlink"})
    CHECK(contains(refusal_of([&] { find_datasheet_gpu(unknown); }), "--gpu: no data sheet of \""));
}

TEST_CASE("find_datasheet_gpu: less memory than the driver reports, by at most 2%", "[bench]") {
  // Values of the committed records.
  const std::int64_t h100 = 85'017'493'504, h200 = 150'109'880'320;
  for (const auto& [name, reported] : {std::pair("h100", h100), std::pair("h200", h200)}) {
    const DatasheetGpu gpu = find_datasheet_gpu(name);
    CHECK(gpu.bytes <= reported);
    CHECK(static_cast<double>(gpu.bytes) > 0.98 * static_cast<double>(reported));
  }
}

TEST_CASE("datasheet_rates: PCIe and NVL cards differ from SXM parts", "[bench]") {
  REQUIRE(datasheet_rates("NVIDIA H200 NVL").has_value());
  CHECK(datasheet_rates("NVIDIA H200 NVL")->bf16_tflops == 835);
  CHECK(datasheet_rates("NVIDIA H100 NVL")->fp8_tflops == 1671.0);
  CHECK(datasheet_rates("NVIDIA H100 PCIe")->bf16_tflops == 756);
}

TEST_CASE("datasheet_rates: Ampere has no FP8 rate", "[bench]") {
  const auto peak = datasheet_rates("NVIDIA A100-SXM4-80GB");
  REQUIRE(peak.has_value());
  CHECK(peak->bf16_tflops == 312);
  CHECK_FALSE(peak->fp8_tflops.has_value());
}

TEST_CASE("datasheet_rates: Blackwell has FP4 rates and Hopper and Ada have none", "[bench]") {
  struct Expected {
    const char* name;
    double bf16, fp8;
    std::optional<double> fp4;
    double gb_per_s;
  };
  for (const Expected& e :
       {Expected{"NVIDIA B200", 2250, 4500, 9000, 8000}, Expected{"NVIDIA GB200", 2500, 5000, 10000, 8000},
        Expected{"NVIDIA B300 SXM6 AC", 2250, 4500, 13500, 8000},
        Expected{"NVIDIA GB300", 2500, 5000, 15000, 8000},
        Expected{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 1007.6, 2015.2, 1792},
        Expected{"NVIDIA GeForce RTX 5090", 209.5, 419, 1676, 1792},
        Expected{"NVIDIA GeForce RTX 4090", 165.2, 330.3, {}, 1008},
        Expected{"NVIDIA L40S", 362.05, 733, {}, 864}, Expected{"NVIDIA L4", 121, 242.5, {}, 300},
        Expected{"NVIDIA H20", 148, 296, {}, 4000}, Expected{"NVIDIA H800", 989, 1979, {}, 3350},
        Expected{"NVIDIA H200", 989, 1979, {}, 4800}}) {
    INFO(e.name);
    const auto peak = datasheet_rates(e.name);
    REQUIRE(peak.has_value());
    CHECK(peak->bf16_tflops == e.bf16);
    CHECK(peak->fp8_tflops == e.fp8);
    CHECK(peak->fp4_tflops == e.fp4);
    CHECK(peak->memory_gb_per_s == e.gb_per_s);
    CHECK_FALSE(peak->source.empty());
  }
}

TEST_CASE("parse_peaks: parts may come in any order and bf16 and memory are required", "[bench]") {
  const DatasheetRates all = parse_peaks("memory=1792,fp4=2015.2,bf16=503.8,fp8=1007.6");
  CHECK(all.bf16_tflops == 503.8);
  CHECK(all.fp8_tflops == 1007.6);
  CHECK(all.fp4_tflops == 2015.2);
  CHECK(all.memory_gb_per_s == 1792);
  CHECK(all.source == "given by hand (PRECBENCH_PEAKS)");
  const DatasheetRates two = parse_peaks("bf16=71,memory=936");
  CHECK_FALSE(two.fp8_tflops.has_value());
  CHECK_FALSE(two.fp4_tflops.has_value());
  for (const char* bad :
       {"", "bf16=1", "memory=1", "bf16=1,memory=0", "bf16=-1,memory=1", "bf16=1,memory=1,fp16=1",
        "bf16=1,bf16=2,memory=1", "bf16=1x,memory=1", "bf16,memory", "bf16=inf,memory=1", "989", ","}) {
    INFO(bad);
    const std::string refusal = refusal_of([&] { parse_peaks(bad); });
    CHECK(refusal.starts_with("PRECBENCH_PEAKS: "));
    CHECK(contains(refusal, "bf16=TFLOPS"));
  }
}

TEST_CASE("known_peaks: the environment variable takes precedence over the table", "[bench]") {
  CHECK(known_peaks("NVIDIA H200")->bf16_tflops == 989);
  CHECK_FALSE(known_peaks("NVIDIA Unknown").has_value());
  setenv(kPeaksVariable, "bf16=100,memory=1000", 1);
  CHECK(known_peaks("NVIDIA Unknown")->bf16_tflops == 100);
  CHECK(known_peaks("NVIDIA H200")->bf16_tflops == 100);
  CHECK_NOTHROW(check_peaks_variable());
  setenv(kPeaksVariable, "bf16=100", 1);
  CHECK_THROWS_AS(check_peaks_variable(), InvalidInput);
  unsetenv(kPeaksVariable);
}

TEST_CASE("datasheet_rates: an unknown GPU has no peak", "[bench]") {
  for (const char* name : {"", "NVIDIA", "NVIDIA H2000", "NVIDIA GeForce RTX 3090", "nvidia h200",
                           "NVIDIA H100 80GB HBM3 MIG 3g.40gb"})
    CHECK_FALSE(datasheet_rates(name).has_value());
}

}  // namespace
}  // namespace precbench
