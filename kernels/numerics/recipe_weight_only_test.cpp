// Recipe files and recipes of weight-only quantization: round trips, shapes and refusals.
#include <nlohmann/json.hpp>

#include "kernels/numerics/recipe_testing.h"

using namespace precbench;
using namespace precbench::testing;
using nlohmann::json;

namespace {

json row_of_weights(const json& operand) {
  const json bf16 = {{"format", "bf16"}}, gemm = {{"a", bf16}, {"b", bf16}};
  return {{"name", "mine"}, {"fprop", gemm}, {"dgrad", gemm}, {"wgrad", gemm}, {"weight_only", operand}};
}

const json kRowScales = {{"format", "e4m3"}, {"granularity", "row"}};

}  // namespace

TEST_CASE("recipe_from_json: weight-only recipes are read back as they are written", "[recipe]") {
  REQUIRE(weight_only_group().recipes.size() == 3);
  for (const Recipe& recipe : weight_only_group().recipes) {
    INFO(recipe.name);
    CHECK(find_recipe(recipe.name) == recipe);
    CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
    CHECK(recipe.quantized());
    CHECK(stored_formats(recipe) == std::pair(recipe.weight_only, QuantFormat{}));
    for (const GemmRole role : kGemmRoles) CHECK(recipe.gemm(role) == GemmRecipe{});
  }
  CHECK(describe(find_recipe("nf4_weights").weight_only) == "grid16 1x64 f32");
  CHECK(recipe_from_json(row_of_weights(kRowScales)).weight_only == find_recipe("fp8_weights").weight_only);
  CHECK(!recipe_to_json(find_recipe("rowwise")).contains("weight_only"));
}

TEST_CASE("recipe_from_json: impossible weight-only formats are refused in one line", "[recipe]") {
  CHECK(error_of_row(row_of_weights({{"format", "bf16"}})) ==
        "weight_only.format: bf16 weights need no weight_only; remove it");
  json mixed = recipe_to_json(find_recipe("rowwise"));
  mixed["name"] = "mine", mixed["weight_only"] = kRowScales;
  CHECK(
      error_of_row(mixed) ==
      "weight_only: GEMMs read the dequantized weights in BF16; make all operands of fprop, dgrad and wgrad bf16");
  json operand = {{"format", "e4m3"}, {"granularity", "tensor"}, {"history", {{"length", 16}}}};
  CHECK(error_of_row(row_of_weights(operand)) ==
        "weight_only.history: weights are stored with the scales of their own amax; remove it");
  operand = {{"format", {{"grid", {0, 1}}}}, {"granularity", "1x64"}, {"element_rounding", "stochastic"}};
  CHECK(
      error_of_row(row_of_weights(operand)) ==
      "weight_only: takes format, granularity, scale, scale_rounding, global_scale and four_over_six; the value is "
      "rounded to nearest");
  operand = {{"format", "e4m3"}, {"granularity", "1x64"}};
  CHECK(error_of_row(row_of_weights(operand)) == "weight_only.granularity: 1x64 is for grids, not e4m3");
  json gemm = recipe_to_json(find_recipe("bf16"));
  gemm["name"] = "mine";
  gemm["fprop"]["a"] = gemm["fprop"]["b"] = {{"format", {{"grid", {0, 1}}}}, {"granularity", "1x64"}};
  CHECK(error_of_row(gemm) == "fprop: blocks of 1x64 are for weight_only, not for operands of GEMMs");
}

TEST_CASE("shape_unsupported_reason: stored weights have whole blocks of input features", "[recipe]") {
  const Recipe nf4 = find_recipe("nf4_weights");
  CHECK(!shape_unsupported_reason(nf4, 7, 9, 64));
  CHECK(shape_unsupported_reason(nf4, 64, 64, 96) == "K=96 is not a multiple of 64 (weight_only 1x64)");
  Recipe rows = nf4;  // two codes a byte need even rows
  rows.weight_only.granularity = Granularity::row;
  CHECK(!shape_unsupported_reason(rows, 7, 9, 62));
  CHECK(shape_unsupported_reason(rows, 7, 9, 63) == "K=63 is odd (weight_only grid: two codes a byte)");
  CHECK(shape_unsupported_reason(find_recipe("nvfp4_weights"), 64, 64, 48) ==
        "K=48 is not a multiple of 32 (weight_only e2m1)");
  CHECK(!shape_unsupported_reason(find_recipe("fp8_weights"), 7, 48, 80));
  CHECK(shape_unsupported_reason(find_recipe("fp8_weights"), 7, 9, 16) ==
        "N=9 is not a multiple of 16 (weight_only e4m3)");
}
