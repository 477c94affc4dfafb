// Ratios with known answers, and the files of results/rates/ratios.
#include "bench/predict/speed_ratios.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

/// Returns a file with ratios of 2 and 4 along k, and of 3 in FP4.
nlohmann::json some_file() {
  const nlohmann::json axes = {{"spread", 0.05}, {"m", {10, 12}}, {"n", {10}}, {"k", {10, 12}}};
  nlohmann::json bf16 = axes, fp4 = axes;
  bf16.update({{"format", "bf16"}, {"over", "bf16"}, {"ratios", {2, 4, 2, 4}}});
  fp4.update({{"format", "nvfp4"}, {"over", "fp8"}, {"ratios", {3, 3, 3, 3}}});
  return {{"machine", "b200"},
          {"over", "h200"},
          {"source", {{"package", "tables"}, {"version", "1.0"}, {"license", "Apache-2.0"}}},
          {"gemm", {bf16, fp4}},
          {"attention",
           {{{"head_dim", 64}, {"spread", 0.1}, {"tokens", {10, 12}}, {"ratios", {1, 1.5}}},
            {{"head_dim", 128}, {"spread", 0.2}, {"tokens", {10, 12}}, {"ratios", {2, 3}}}}},
          {"cast", {{"ratio", 1.5}, {"spread", 0.03}}},
          {"bus_gb_per_s", {{"nccl", "2.0"}, {"all_gather", {{"2", {{1e6, 10}, {1e8, 40}}}}}}}};
}

OpCost gemm(std::int64_t m, std::int64_t n, std::int64_t k, OpFormat format = {},
            const char* name = "matmul fprop") {
  OpCost op{.name = name, .op_class = OpClass::gemm, .flops = 1e12, .bytes = 1e8};
  op.shape = {m, n, k};
  op.formats = {format, format};
  return op;
}

TEST_CASE("RatioGrid: linear between places in the logarithms and constant outside them", "[speed-ratios]") {
  const SpeedRatios ratios = speed_ratios_from_json(some_file(), "file");
  const auto at = [&](std::int64_t m, std::int64_t k) { return ratios.of(gemm(m, 512, k), false)->ratio; };
  CHECK(at(1024, 1024) == Approx(2));
  CHECK(at(4096, 4096) == Approx(4));
  CHECK(at(2048, 2048) == Approx(std::sqrt(8.0)));
  CHECK(at(16, 16) == Approx(2));
  CHECK(at(1 << 20, 1 << 20) == Approx(4));
}

TEST_CASE("SpeedRatios: formats that an H200 lacks are over its FP8 GEMMs", "[speed-ratios]") {
  const SpeedRatios ratios = speed_ratios_from_json(some_file(), "file");
  CHECK(ratios.source == "tables 1.0 (Apache-2.0)");
  const OpFormat fp4{DType::e2m1, Granularity::block_1x16, ScaleType::e4m3};
  const auto forward = ratios.of(gemm(1024, 1024, 1024, fp4), false);
  REQUIRE(forward);
  CHECK(forward->ratio == Approx(3));
  CHECK(forward->over_formats == "e4m3 tensor f32, e4m3 tensor f32");
  CHECK(ratios.of(gemm(1024, 1024, 1024, fp4, "matmul wgrad"), false)->over_formats ==
        "e5m2 tensor f32, e4m3 tensor f32");
  CHECK(ratios.of(gemm(1024, 1024, 1024), false)->over_formats.empty());
  // The file has no ratio of FP8.
  CHECK_FALSE(ratios.of(gemm(1024, 1024, 1024, {DType::e4m3, Granularity::tensor, ScaleType::f32}), false));
  for (const auto& [formats, name] : {std::pair{"", "bf16"},
                                      {"e4m3 tensor f32, e4m3 tensor f32", "fp8"},
                                      {"e5m2 row f32_pow2, e4m3 row f32_pow2", "fp8"},
                                      {"e4m3 1x128 f32, e4m3 128x128 f32", "fp8_block"},
                                      {"e4m3 1x32 ue8m0, e4m3 1x32 ue8m0", "mxfp8"},
                                      {"e2m1 1x16 e4m3, e2m1 16x16 e4m3", "nvfp4"},
                                      {"e4m3 row f32, bf16", ""}})
    CHECK(table_format(formats) == name);
}

TEST_CASE("SpeedRatios: attention by head width and length, none in windows and of soft-capped scores",
          "[speed-ratios]") {
  const SpeedRatios ratios = speed_ratios_from_json(some_file(), "file");
  const auto attention = [](const char* name, std::int64_t width, double flops) {
    OpCost op{.name = name, .op_class = OpClass::attention, .flops = flops, .bytes = 1e8};
    op.shape = {1, 4096, 4096, 0, 32, 8, width};
    return op;
  };
  const OpCost whole = attention("attention", 128, 1e15);
  CHECK(ratios.of(whole, false)->ratio == Approx(3));
  CHECK(ratios.of(whole, false)->measured);
  CHECK(ratios.of(attention("attention", 64, 1e15), false)->ratio == Approx(1.5));
  CHECK(ratios.of(attention("attention_backward", 128, 1e15), false)->ratio == Approx(3));
  CHECK_FALSE(ratios.of(attention("attention_backward", 128, 1e15), false)->measured);
  CHECK_FALSE(ratios.of(whole, true));
  CHECK_FALSE(ratios.of(attention("attention", 256, 1e15), false));
  CHECK_FALSE(ratios.of(attention("attention", 128, 1e9), false));
  const OpCost cast{.name = "quantize", .op_class = OpClass::quantize, .bytes = 1e8},
      norm{.name = "add_rmsnorm", .op_class = OpClass::norm_elementwise, .bytes = 1e8};
  CHECK(ratios.of(cast, false)->measured);
  CHECK_FALSE(ratios.of(norm, false)->measured);
  CHECK(ratios.of(norm, false)->ratio == 1.5);
}

TEST_CASE("speed_ratios_from_json: names what is wrong", "[speed-ratios]") {
  const auto refused = [](const char* pointer, nlohmann::json value) {
    nlohmann::json file = some_file();
    file[nlohmann::json::json_pointer(pointer)] = std::move(value);
    return refusal_of([&] { speed_ratios_from_json(file, "file"); });
  };
  CHECK(contains(refused("/gemm/0/ratios", {2, 4}), "file: gemm: bf16: 2 ratios at 4 places of the axes"));
  CHECK(contains(refused("/gemm/0/m", {12, 10}), "file: gemm: bf16: m: exponents do not ascend"));
  CHECK(contains(refused("/gemm/0/ratios/1", -1), "file: gemm: bf16: ratios: -1 is not a number from"));
  CHECK(contains(refused("/gemm/0/format", "int8"), "unknown format \"int8\""));
  CHECK(contains(refused("/gemm/1/over", "bf16"), "gemm: nvfp4 over bf16"));
  CHECK(contains(refused("/bus_gb_per_s/broadcast", nlohmann::json::object()),
                 "no collective is called \"broadcast\""));
  CHECK(contains(refused("/bus_gb_per_s/all_gather/2/1/0", 1e5), "sizes do not ascend"));
  nlohmann::json file = some_file();
  file.erase("attention");
  CHECK(contains(refusal_of([&] { speed_ratios_from_json(file, "file"); }), "file: "));
}

TEST_CASE("embedded_speed_ratios: Blackwell has ratios with source and license, and Hopper has none",
          "[speed-ratios]") {
  CHECK_FALSE(embedded_speed_ratios("h200"));
  for (const char* name : {"b200", "b300", "gb200-nvl72", "gb300-nvl72"}) {
    INFO(name);
    const SpeedRatios* ratios = embedded_speed_ratios(name);
    REQUIRE(ratios);
    CHECK(ratios->over == "h200");
    CHECK(ratios->source == "aiconfigurator-core 0.12.0 (Apache-2.0)");
    CHECK(ratios->gemms.size() == 5);
    for (const SpeedRatios::Gemm& gemm : ratios->gemms) {
      CHECK(gemm.grid.at({8192, 8192, 8192}) > 1.5);
      CHECK(gemm.grid.at({8192, 8192, 8192}) < 5);
      CHECK((gemm.grid.spread > 0 && gemm.grid.spread < 0.15));
    }
    CHECK(ratios->attention.size() == 2);
    CHECK(ratios->bus.at(Collective::all_gather).contains(4));
  }
}

}  // namespace
}  // namespace precbench
