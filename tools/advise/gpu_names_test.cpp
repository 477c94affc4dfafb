// Tests finding a GPU model by the words that people type.
#include "tools/advise/gpu_names.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("find_gpu_name: words in any case find the first name that has them all", "[advise]") {
  const std::vector<std::string> names = {"NVIDIA H100 80GB HBM3",  "NVIDIA H100 PCIe", "NVIDIA H200",
                                          "NVIDIA H200 NVL",        "NVIDIA GB200",     "NVIDIA B200",
                                          "NVIDIA GeForce RTX 4090"};
  CHECK(find_gpu_name("h100", names) == "NVIDIA H100 80GB HBM3");
  CHECK(find_gpu_name("H100-PCIe", names) == "NVIDIA H100 PCIe");
  CHECK(find_gpu_name("nvidia h200", names) == "NVIDIA H200");
  CHECK(find_gpu_name("NVIDIA H200 NVL", names) == "NVIDIA H200 NVL");
  CHECK(find_gpu_name("b200", names) == "NVIDIA B200");
  CHECK(find_gpu_name("rtx_4090", names) == "NVIDIA GeForce RTX 4090");
  CHECK(contains(refusal_of([&] { find_gpu_name("h300", names); }),
                 "--gpu: unknown GPU \"h300\"; known are NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe"));
  CHECK(contains(refusal_of([&] { find_gpu_name("", names); }), "unknown GPU \"\""));
}
