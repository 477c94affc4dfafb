// The command line of explain.
#include <filesystem>
#include <nlohmann/json.hpp>

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

TEST_CASE("explain: MXFP8, NVFP4 and grouped GEMMs have expected times where the GPU multiplies them",
          "[explain][cli]") {
  const std::string e4m3 = "c10::Float8_e4m3fn", e8m0 = "c10::Float8_e8m0fnu", fp4 = "c10::Float4_e2m1fn_x2",
                    bf16 = "c10::BFloat16";
  constexpr std::int64_t size = 8192;
  KinetoWriter writer;
  writer.begin_step(1);
  writer.kernel("aten::mm", "nvjet_tst", 900, {{size, size}, {size, size}}, {bf16, bf16});
  writer.kernel("aten::_scaled_mm", "nvjet_qq", 400, {{size, size}, {size, size}, {size * 256}, {size * 256}},
                {e4m3, e4m3, e8m0, e8m0});
  writer.kernel("aten::_scaled_mm", "nvjet_oo", 200,
                {{size, size / 2}, {size / 2, size}, {size * 512}, {size * 512}}, {fp4, fp4, e4m3, e4m3});
  writer.kernel("aten::_grouped_mm", "cutlass_grouped", 950, {{size, size}, {16, size, size}, {16}},
                {bf16, bf16, "int"});
  writer.end_step();
  const TempDirectory folder;
  const std::string trace = folder.write("a.json", writer.json());
  const auto expected = [&](const std::string& gpu, const std::string& format, std::int64_t groups) {
    const auto json = nlohmann::json::parse(precbench_says("explain --json --gpu " + gpu + " " + trace).text);
    for (const auto& gemm : json["traces"][0]["gemms"])
      if (gemm["scaled_format"] == format && gemm["groups"] == groups)
        return gemm["expected_ms"].is_null() ? 0 : gemm["expected_ms"].get<double>();
    return -1.0;
  };
  CHECK(expected("h200", "MXFP8", 1) == 0);  // H200 has no such tensor cores
  CHECK(expected("h200", "NVFP4", 1) == 0);
  CHECK(expected("h200", "BF16", 16) > 0);
  const double wide = expected("b200", "BF16", 1), mx = expected("b200", "MXFP8", 1),
               nv = expected("b200", "NVFP4", 1);
  CHECK(wide > 1.5 * mx);
  CHECK(mx > 1.3 * nv);
  CHECK(nv > 0);
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
