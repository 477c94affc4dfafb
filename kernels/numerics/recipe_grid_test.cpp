// Recipe files with grids and scales with a mantissa: round trips, defaults, examples and refusals.
#include <string>
#include <vector>

#include "kernels/numerics/grid_testing.h"
#include "kernels/numerics/recipe_testing.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns mxfp8 under another name, with these operands in all GEMMs.
json row_of(const json& operand) {
  json row = copy_of("mxfp8");
  for (const char* gemm : {"fprop", "dgrad", "wgrad"})
    for (const char* side : {"a", "b"}) row[gemm][side] = operand;
  return row;
}

json operand_of(const json& grid, const char* granularity = "1x32") {
  return {{"format", {{"grid", grid}}}, {"granularity", granularity}};
}

std::string grid_error(const json& grid) { return error_of_row(row_of(operand_of(grid))); }

}  // namespace

TEST_CASE("recipe_from_json: a grid comes back as it was written", "[recipe][grid]") {
  for (const std::vector<float>& values : {nf4_values(), integers(-8, 7), e3m0_values(), e2m1_values()})
    for (const char* scale : {"ue8m0", "e4m3", "ue5m3"}) {
      json operand = operand_of(values);
      operand["scale"] = scale;
      operand["element_rounding"] = "stochastic";
      const Recipe recipe = recipe_from_json(row_of(operand));
      const QuantFormat& format = recipe.dgrad.a;
      CHECK(format.grid == make_grid(values));
      CHECK(format.element_rounding == ElementRounding::stochastic);
      const json written = recipe_to_json(recipe);
      CHECK(recipe_from_json(written) == recipe);
      CHECK(written.at("dgrad").at("a").at("format").at("grid").get<std::vector<float>>() == values);
    }
  // A mirrored grid is written by its half.
  const json whole = recipe_to_json(recipe_from_json(row_of(operand_of({-2, -1, 0, 1, 2}))));
  CHECK(whole.at("fprop").at("a").at("format") == json{{"grid", {0, 1, 2}}});
  CHECK(describe(recipe_from_json(row_of(operand_of({0, 1, 2}))).fprop.a) == "grid5 1x32 ue8m0/rceil");
}

TEST_CASE("recipe_from_json: scales of grids follow from the granularity", "[recipe][grid]") {
  const auto scale_of = [](const char* granularity) {
    return recipe_from_json(row_of(operand_of({0, 1, 2}, granularity))).wgrad.a.scale;
  };
  CHECK(scale_of("tensor") == ScaleType::f32);
  CHECK(scale_of("1x128") == ScaleType::f32);
  CHECK(scale_of("1x32") == ScaleType::ue8m0);
  CHECK(scale_of("16x16") == ScaleType::e4m3);
  json operand = {{"format", "e4m3"}, {"granularity", "1x32"}, {"scale", "ue5m3"}};
  CHECK(describe(recipe_from_json(row_of(operand)).fprop.a) == "e4m3 1x32 ue5m3");
  operand["scale"] = "e4m3", operand["global_scale"] = 448;
  CHECK(describe(recipe_from_json(row_of(operand)).fprop.a) == "e4m3 1x32 e4m3");
  operand["global_scale"] = 256;
  CHECK(error_of_row(row_of(operand)) == "fprop.a.global_scale: expected one of 448, got 256");
}

TEST_CASE("recipe_from_json: impossible grids are refused in one line that names the field", "[recipe][grid]") {
  CHECK(grid_error(json::array()) ==
        "fprop.a.format.grid: has no values; list them in ascending order, with 0");
  CHECK(grid_error({0, 2, 1}) ==
        "fprop.a.format.grid: 2: 1 is not above 2, the value before it; sort the list");
  CHECK(grid_error({-1, 1}) == "fprop.a.format.grid: has no 0, which padding and an all-zero block need");
  CHECK(grid_error({0, nullptr}) == "fprop.a.format.grid.1: expected a number, got null");
  CHECK(grid_error({0, "nan"}) == "fprop.a.format.grid.1: expected a number, got \"nan\"");
  CHECK(grid_error({0, 1e300}) == "fprop.a.format.grid: 1: inf is not a finite FP32 number");
  CHECK(grid_error(7) == "fprop.a.format.grid: expected an array of numbers, got 7");
  CHECK(grid_error(integers(0, 128)) ==
        "fprop.a.format.grid: has 257 values with their negatives; a byte numbers 256 at most");
  json operand = operand_of({0, 1});
  operand["format"] = {{"gird", {0, 1}}};
  CHECK(error_of_row(row_of(operand)) == "fprop.a.format.gird: unknown key; did you mean grid?");
  operand["format"] = json::object();
  CHECK(error_of_row(row_of(operand)) == "fprop.a.format.grid: missing; the values of the format, ascending");
  operand = operand_of({0, 1}, "tensor");
  operand["history"] = {{"length", 16}};
  CHECK(error_of_row(row_of(operand)) ==
        "fprop.a.history: a grid has no NaN, which delayed scaling needs; remove it");
  operand = operand_of({0, 1});
  operand["transform"] = {{"hadamard", 32}};
  CHECK(error_of_row(row_of(operand)) == "fprop.a.transform: only e2m1 has it; remove it");
  operand = operand_of({0, 1});
  operand["scale"] = "f32";
  CHECK(error_of_row(row_of(operand)) ==
        "fprop.a.scale: granularity 1x32 takes ue8m0, e4m3 or ue5m3, not f32");
  operand["scale"] = "ue8m0", operand["scale_rounding"] = "quest";
  CHECK(error_of_row(row_of(operand)) == "fprop.a.scale_rounding: quest is for e2m1, not grid");
}

TEST_CASE("recipe files: the grid example of the page and the committed file are what they say",
          "[recipe][grid]") {
  const Recipe file = find_recipe(PRECBENCH_SOURCE_DIR "/bench/sweeps/example-grid.json");
  CHECK(file.name == "nf4_forward_int4_gradients");
  CHECK(file.fprop.a.grid == make_grid(nf4_values()));
  CHECK(file.fprop.a.scale == ScaleType::e4m3);
  CHECK(file.dgrad.a.grid == make_grid(integers(-7, 7)));
  CHECK(file.dgrad.a.element_rounding == ElementRounding::stochastic);
  CHECK(file.dgrad.a.scale == ScaleType::ue5m3);

  const std::string text = file_text(PRECBENCH_SOURCE_DIR "/kernels/numerics/recipe-files.md");
  const std::size_t heading = text.find("## A format of your own"), begin = text.find("```json\n", heading) + 8;
  REQUIRE(heading != std::string::npos);
  const Recipe shown = recipe_from_json(json::parse(text.substr(begin, text.find("```", begin) - begin)));
  CHECK(shown == file);
}
