// recipe.h: the built-in table as documented, users' rows with their error messages, and unsupported shapes.
#include "kernels/numerics/recipe.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kernels/numerics/ablations.h"
#include "kernels/numerics/recipe_testing.h"

using namespace precbench;
using namespace precbench::testing;
using nlohmann::json;

TEST_CASE("recipe: the built-in table is the documented one", "[recipe]") {
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) names.push_back(recipe.name);
  CHECK(names == std::vector<std::string>{"bf16",
                                          "tensorwise",
                                          "rowwise",
                                          "rowwise_gw_hp",
                                          "tensorwise_delayed",
                                          "tensorwise_delayed_recent",
                                          "tensorwise_delayed_e4m3",
                                          "blockwise",
                                          "blockwise_pow2",
                                          "mxfp8",
                                          "mxfp8_floor",
                                          "mxfp8_ceil",
                                          "mxfp8_even",
                                          "mxfp8_e5m2",
                                          "mxfp8_wgrad_hp",
                                          "mxfp8_w2d",
                                          "bf16_moments",
                                          "coat",
                                          "msamp_o1",
                                          "msamp_o2",
                                          "msamp_o3"});
  CHECK(row_text("bf16") == "fprop: bf16 x bf16; dgrad: bf16 x bf16; wgrad: bf16 x bf16; ");
  CHECK(row_text("tensorwise") ==
        "fprop: e4m3 tensor f32 x e4m3 tensor f32 fast; dgrad: e5m2 tensor f32 x e4m3 tensor f32; "
        "wgrad: e5m2 tensor f32 x e4m3 tensor f32; ");
  CHECK(row_text("rowwise") ==
        "fprop: e4m3 row f32_pow2 x e4m3 row f32_pow2 fast; dgrad: e4m3 row f32_pow2 x e4m3 row f32_pow2; "
        "wgrad: e4m3 row f32_pow2 x e4m3 row f32_pow2; ");
  CHECK(row_text("rowwise_gw_hp") ==
        "fprop: e4m3 row f32_pow2 x e4m3 row f32_pow2 fast; dgrad: e4m3 row f32_pow2 x e4m3 tensor f32_pow2; "
        "wgrad: bf16 x bf16; ");
  CHECK(row_text("blockwise") ==
        "fprop: e4m3 1x128 f32 x e4m3 128x128 f32; dgrad: e4m3 1x128 f32 x e4m3 128x128 f32; "
        "wgrad: e4m3 1x128 f32 x e4m3 1x128 f32; ");
  CHECK(row_text("blockwise_pow2") ==
        "fprop: e4m3 1x128 f32_pow2 x e4m3 128x128 f32_pow2; dgrad: e4m3 1x128 f32_pow2 x e4m3 128x128 "
        "f32_pow2; wgrad: e4m3 1x128 f32_pow2 x e4m3 1x128 f32_pow2; ");
  CHECK(find_recipe("blockwise_pow2").reference.ends_with(", but with a floor of 1e-12 under amax"));
  for (const auto& [name, rounding] : {std::pair{"mxfp8", "rceil"}, std::pair{"mxfp8_floor", "floor"},
                                       std::pair{"mxfp8_ceil", "ceil"}, std::pair{"mxfp8_even", "even"}}) {
    const std::string operand = std::string("e4m3 1x32 ue8m0/") + rounding;
    const std::string pair = operand + " x " + operand + "; ";
    CHECK(row_text(name) == "fprop: " + pair + "dgrad: " + pair + "wgrad: " + pair);
  }
  CHECK(row_text("mxfp8_e5m2") ==
        "fprop: e4m3 1x32 ue8m0/rceil x e4m3 1x32 ue8m0/rceil; dgrad: e5m2 1x32 ue8m0/rceil x e4m3 1x32 "
        "ue8m0/rceil; wgrad: e5m2 1x32 ue8m0/rceil x e4m3 1x32 ue8m0/rceil; ");
  CHECK(row_text("mxfp8_wgrad_hp") ==
        "fprop: e4m3 1x32 ue8m0/rceil x e4m3 1x32 ue8m0/rceil; dgrad: e4m3 1x32 ue8m0/rceil x e4m3 1x32 "
        "ue8m0/rceil; wgrad: bf16 x bf16; ");
  CHECK(row_text("mxfp8_w2d") ==
        "fprop: e4m3 1x32 ue8m0/rceil x e4m3 32x32 ue8m0/rceil; dgrad: e4m3 1x32 ue8m0/rceil x e4m3 32x32 "
        "ue8m0/rceil; wgrad: e4m3 1x32 ue8m0/rceil x e4m3 1x32 ue8m0/rceil; ");
  CHECK_FALSE(find_recipe("bf16").quantized());
  CHECK(find_recipe("rowwise_gw_hp").quantized());
}

TEST_CASE("recipe_to_json: every built-in row survives a round trip", "[recipe]") {
  for (const Recipe& recipe : builtin_recipes()) CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
  for (const Recipe& recipe : control_recipes()) CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
  for (const Recipe& recipe : fp4_recipes()) CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
}

TEST_CASE("recipe: controls equal rowwise except for their known defect", "[recipe]") {
  std::vector<std::string> names;
  for (const Recipe& recipe : control_recipes()) names.push_back(recipe.name);
  CHECK(names == std::vector<std::string>{"rowwise_e5m2", "rowwise_e4m1"});
  CHECK(row_text("rowwise_e5m2") ==
        "fprop: e5m2 row f32_pow2 x e4m3 row f32_pow2 fast; dgrad: e5m2 row f32_pow2 x e4m3 row f32_pow2; "
        "wgrad: e5m2 row f32_pow2 x e5m2 row f32_pow2; ");
  CHECK(row_text("rowwise_e4m1") ==
        "fprop: e4m1 row f32_pow2 x e4m1 row f32_pow2 fast; dgrad: e4m1 row f32_pow2 x e4m1 row f32_pow2; "
        "wgrad: e4m1 row f32_pow2 x e4m1 row f32_pow2; ");
}

TEST_CASE("recipe_from_json: formats without hardware support work with every scale", "[recipe]") {
  for (const auto& [word, dtype, dropped] : {std::tuple{"e4m2", DType::e4m3, 1},
                                             {"e4m1", DType::e4m3, 2},
                                             {"e5m1", DType::e5m2, 1},
                                             {"e5m3", DType::e5m3, 0},
                                             {"e4m4", DType::e4m4, 0},
                                             {"e3m4", DType::e3m4, 0},
                                             {"e3m3", DType::e3m3, 0}})
    for (const char* base :
         {"tensorwise", "rowwise", "blockwise", "blockwise_pow2", "mxfp8", "mxfp8_floor"}) {
      json row = copy_of(base);
      row["wgrad"]["b"]["format"] = word;
      const Recipe recipe = recipe_from_json(row);
      QuantFormat want = find_recipe(base).wgrad.b;
      want.dtype = dtype;
      want.dropped_bits = static_cast<std::uint8_t>(dropped);
      CHECK(recipe.wgrad.b == want);
      CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
      CHECK(describe(recipe.wgrad.b).rfind(word, 0) == 0);
    }
}

TEST_CASE("find_recipe: ablations are files of one folder, found by name and with the values of that file", "[recipe]") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRECBENCH_SOURCE_DIR "/kernels/numerics/ablations")) {
    const std::string name = entry.path().stem().string();
    INFO(name);
    ++files;
    CHECK(is_ablation(name));
    const Recipe found = find_recipe(name);
    CHECK(found == find_recipe(entry.path().string()));
    CHECK((found.name == name && !found.reference.empty()));
    CHECK(found.quantized());
  }
  CHECK(files == 12);
  CHECK_FALSE(is_ablation("nvfp4"));
}

TEST_CASE("find_recipe: the example file is a valid row", "[recipe]") {
  const Recipe recipe = find_recipe(PRECBENCH_SOURCE_DIR "/bench/sweeps/example-recipe.json");
  CHECK(recipe.name == "mxfp8_wgrad_bf16");
  CHECK(recipe.fprop == find_recipe("mxfp8").fprop);
  CHECK(recipe.dgrad == find_recipe("mxfp8").dgrad);
  CHECK(recipe.wgrad == find_recipe("bf16").wgrad);
}

TEST_CASE("find_recipe: unknown names and unreadable files give different errors", "[recipe]") {
  CHECK(refusal_of([] { find_recipe("mxpf8"); }) == "unknown recipe \"mxpf8\"; did you mean mxfp8?");
  CHECK(refusal_of([] { find_recipe("zzzzzzzzzzzz"); })
            .ends_with("; precbench list recipes has all"));
  CHECK(refusal_of([] { find_recipe(std::string(500, 'z')); }).size() < 700);
  CHECK(refusal_of([] { find_recipe("float8"); }) ==
        "unknown recipe \"float8\"; did you mean tensorwise, or the set fp8?");
  CHECK(find_recipe("MXFP8").name == "mxfp8");
  CHECK(refusal_of([] { find_recipe("no/such.json"); }) == "no/such.json: no such file");

  const std::string path = PRECBENCH_BINARY_DIR "/recipe_test.json";
  std::ofstream(path) << "{\"name\": ";
  CHECK(refusal_of([&] { find_recipe(path); }) == path + ": not valid JSON in line 1, column 10");
  std::ofstream(path) << R"({"name": "mine", "fprop": {"a": {"format": "e4m3", "format": "e5m2"}}})";
  CHECK(refusal_of([&] { find_recipe(path); }) ==
        path + ": fprop.a.format: given twice; remove one of the two");
  std::ofstream(path) << "\xEF\xBB\xBF{\"name\": NaN}";
  CHECK(refusal_of([&] { find_recipe(path); }) ==
        path + ": fprop: missing; a recipe has fprop, dgrad and wgrad");
  std::ofstream(path) << "{\"name\": \"mine\"}";
  CHECK(refusal_of([&] { find_recipe(path); }) ==
        path + ": fprop: missing; a recipe has fprop, dgrad and wgrad");
  std::remove(path.c_str());
}

TEST_CASE("recipe_from_json: a bad row names its field and the nearest valid value", "[recipe]") {
  CHECK(error_of_row(json::array()) == "recipe: expected a JSON object");
  CHECK(error_with("mxfp8", "/fprob", 1) == "fprob: unknown key; did you mean fprop?");
  CHECK(error_with("mxfp8", "/fprop/fast_acum", true) ==
        "fprop.fast_acum: unknown key; did you mean fast_accum?");
  CHECK(error_with("mxfp8", "/wgrad/b/granularty", "1x32") ==
        "wgrad.b.granularty: unknown key; did you mean granularity?");
  CHECK(error_with("mxfp8", "/wgrad/b/granularity", "1x3") ==
        "wgrad.b.granularity: unknown value \"1x3\"; did you mean 1x32?");
  CHECK(error_with("mxfp8", "/dgrad/a/format", "e4m3fn") ==
        "dgrad.a.format: unknown value \"e4m3fn\"; did you mean e4m3?");
  CHECK(error_with("mxfp8", "/dgrad/a/format", 8) == "dgrad.a.format: expected a string, got 8");
  CHECK(error_with("mxfp8", "/dgrad/a/scale_rounding", "rciel") ==
        "dgrad.a.scale_rounding: unknown value \"rciel\"; did you mean rceil?");
  CHECK(error_with("mxfp8", "/dgrad/a", 3) == "dgrad.a: expected a JSON object");
  CHECK(error_with("tensorwise", "/fprop/fast_accum", 1) ==
        "fprop.fast_accum: expected true or false, got 1");
  CHECK(error_with("mxfp8", "/reference", 1) == "reference: expected a string, got 1");
  CHECK(error_with("mxfp8", "/name", "a,b") ==
        "name: \"a,b\" must be made of letters, digits, '_', '-' and '.'");
  CHECK(error_without("mxfp8", "", "name") == "name: missing; the name it has in records");
  CHECK(error_without("mxfp8", "/wgrad", "b") == "wgrad.b: missing; a GEMM has operands a and b");
  CHECK(
      error_without("mxfp8", "/wgrad/b", "format") ==
      "wgrad.b.format: missing; one of bf16, e4m3, e5m2, e4m2, e4m1, e5m1, e5m3, e4m4, e3m4, e3m3, e2m1, or "
      "{\"grid\": [VALUES]}");
  CHECK(error_without("rowwise", "/wgrad/b", "granularity") ==
        "wgrad.b.granularity: missing; one of tensor, row, 1x128, 128x128, 1x64, 1x32, 32x32, 1x16, 16x16");
}

TEST_CASE("recipe_from_json: the default scale type is the plain one of the granularity", "[recipe]") {
  const auto named = [](const char* recipe) {
    json row = recipe_to_json(find_recipe(recipe));
    row["name"] = "own";
    for (const GemmRole role : kGemmRoles)
      for (const char* side : {"a", "b"}) row[name_of(role)][side].erase("scale");
    return recipe_from_json(row).wgrad.b.scale;
  };
  CHECK(named("tensorwise") == ScaleType::f32);
  CHECK(named("rowwise") == ScaleType::f32);  // rowwise sets powers of two explicitly
  CHECK(named("blockwise") == ScaleType::f32);
  CHECK(named("mxfp8") == ScaleType::ue8m0);
  CHECK(named("nvfp4") == ScaleType::e4m3);
}

TEST_CASE("recipe_from_json: a row that nothing can compute throws", "[recipe]") {
  CHECK(error_with("blockwise", "/fprop/a/granularity", "128x128") ==
        "fprop: 128x128 x 128x128 has no GEMM; make one operand 1x128");
  CHECK(error_with("blockwise", "/fprop/a/granularity", "row") ==
        "fprop: row x 128x128 has no GEMM: their scales span different lengths of the contracted dimension");
  CHECK(error_with("tensorwise", "/fprop/a/scale", "ue8m0") ==
        "fprop.a.scale: granularity tensor takes f32 or f32_pow2, not ue8m0");
  CHECK(error_with("mxfp8", "/fprop/a/scale", "f32") ==
        "fprop.a.scale: granularity 1x32 takes ue8m0, e4m3 or ue5m3, not f32");
  CHECK(error_with("rowwise", "/fprop/a/scale_rounding", "rceil") ==
        "fprop.a.scale_rounding: only ue8m0 scales have a rounding, not f32_pow2; remove it");
  CHECK(error_with("mxfp8", "/fprop/b", json{{"format", "bf16"}}) ==
        "fprop.b: a GEMM needs both operands quantized or neither");
  CHECK(error_with("mxfp8", "/fprop/a", json{{"format", "bf16"}}) ==
        "fprop.a: a GEMM needs both operands quantized or neither");
  CHECK(error_with("bf16", "/fprop/a/scale", "f32") == "fprop.a.scale: bf16 has no scale; remove it");
  CHECK(error_with("bf16", "/wgrad/fast_accum", true) ==
        "wgrad.fast_accum: a bf16 GEMM has no fast accumulation; remove it");
  CHECK(
      error_with("blockwise", "/wgrad/fast_accum", true) ==
      "wgrad.fast_accum: only tensor and row scales support fast accumulation; blocks are promoted to FP32");
  const json fp4 = {{"format", "e2m1"}, {"granularity", "1x32"}, {"scale", "ue8m0"}, {"element_scale", 0.75}};
  for (const char* side : {"/fprop/a", "/fprop/b"})
    CHECK(error_with("mxfp8", side, fp4) ==
          "fprop: an FP4 operand needs another FP4 operand with scales of the same type");
  for (const char* taken : {"mxfp8_floor", "rowwise_e4m1"})
    CHECK(error_with("mxfp8", "/name", taken) ==
          std::string("name: ") + taken + " is a built-in recipe with other values; choose another name");
}

TEST_CASE("recipe_from_json: delayed scaling defaults are those of TransformerEngine and Megatron",
          "[recipe]") {
  CHECK(
      row_text("tensorwise_delayed") ==
      "fprop: e4m3 tensor f32 max of 1024 x e4m3 tensor f32 max of 1024 fast; dgrad: e5m2 tensor f32 max of "
      "1024 x e4m3 tensor f32 max of 1024; wgrad: e5m2 tensor f32 max of 1024 x e4m3 tensor f32 max of 1024; ");
  CHECK(
      row_text("tensorwise_delayed_recent") ==
      "fprop: e4m3 tensor f32 most_recent of 1 x e4m3 tensor f32 most_recent of 1 fast; dgrad: e5m2 tensor f32 "
      "most_recent of 1 x e4m3 tensor f32 most_recent of 1; wgrad: e5m2 tensor f32 most_recent of 1 x e4m3 "
      "tensor f32 most_recent of 1; ");
  CHECK(find_recipe("tensorwise_delayed_e4m3").dgrad.a == find_recipe("tensorwise_delayed").fprop.a);
}

TEST_CASE("recipe_from_json: operands may be named and derived from others", "[recipe]") {
  const auto gemms_of = [](const char* text) {
    const Recipe recipe = recipe_from_json(json::parse(text));
    return std::vector{recipe.fprop, recipe.dgrad, recipe.wgrad};
  };
  const auto built_in = [](const char* name) {
    const Recipe recipe = find_recipe(name);
    return std::vector{recipe.fprop, recipe.dgrad, recipe.wgrad};
  };
  CHECK(gemms_of(R"({"name": "mine", "operands": {
      "p": {"format": "e4m3", "granularity": "tensor", "scale": "f32",
            "history": {"length": 1024, "algorithm": "max", "first": "current"}},
      "g": {"like": "p", "format": "e5m2"}},
    "fprop": {"a": "p", "b": "p", "fast_accum": true}, "dgrad": {"a": "g", "b": "p"},
    "wgrad": {"a": "g", "b": "p"}})") == built_in("tensorwise_delayed"));
  CHECK(gemms_of(R"({"name": "mine", "operands": {
      "x": {"format": "e2m1", "granularity": "1x16", "scale": "e4m3", "global_scale": 448},
      "w": {"like": "x", "granularity": "16x16"}, "g": {"like": "x", "element_rounding": "stochastic"},
      "xt": {"like": "x", "transform": {"hadamard": 16, "sign": "te"}},
      "gt": {"like": "xt", "element_rounding": "stochastic"}},
    "fprop": {"a": "x", "b": "w"}, "dgrad": {"a": "g", "b": "w"}, "wgrad": {"a": "gt", "b": "xt"}})") ==
        built_in("nvfp4"));
  CHECK(gemms_of(R"({"name": "mine", "operands": {
      "x": {"format": "e2m1", "granularity": "1x16", "scale": "e4m3", "global_scale": 256, "four_over_six": true},
      "g": {"format": "e2m1", "granularity": "1x16", "scale": "e4m3", "global_scale": 255.99,
            "element_scale": 1.0120177, "correction": {"eden": 16},
            "transform": {"hadamard": 128, "sign": "backward"}}},
    "fprop": {"a": "x", "b": "x"}, "dgrad": {"a": "g", "b": {"like": "g", "source": "fprop"}},
    "wgrad": {"a": "g", "b": {"like": "g", "source": "fprop"}}})") == built_in("quartet2"));

  json row = copy_of("rowwise");
  const json x = row["fprop"]["a"];
  const auto error_of = [&](const json& operands, const json& a) {
    row["operands"] = operands;
    row["fprop"]["a"] = a;
    return error_of_row(row);
  };
  CHECK(error_of({{"x", x}}, "x") == "");
  CHECK(error_of({{"x", x}}, "dY, in E5M2") == "fprop.a: unknown operand \"dY, in E5M2\"; one of x");
  CHECK(error_of({{"activation", x}}, "activaton") ==
        "fprop.a: unknown operand \"activaton\"; did you mean activation?");
  CHECK(error_of(json::object(), {{"like", "x"}}) ==
        "fprop.a.like: unknown operand \"x\"; \"operands\" of the recipe has none");
  CHECK(error_of({{"x", x}}, x) == "operands.x: no GEMM uses it; remove it");
  CHECK(error_of({{"x", {{"like", "y"}}}, {"y", {{"like", "x"}}}}, "x") ==
        "operands.x.like: y refers to itself");
  CHECK(error_of({{"x", {{"like", "x"}}}}, "x") == "operands.x.like: x refers to itself");
  CHECK(error_of({{"x", {{"format", "e4m3"}}}}, "x").starts_with("operands.x.granularity: missing"));
  CHECK(error_of({{"x", "y"}}, "x") == "operands.x: expected a JSON object");
  CHECK(error_of(3, x) == "operands: expected a JSON object");
  CHECK(error_of({{"x", x}}, {{"like", 3}}) == "fprop.a.like: expected a string, got 3");
}

TEST_CASE("recipe_from_json: the old key of scale_rounding is reported", "[recipe]") {
  CHECK(error_with("mxfp8", "/dgrad/a/rounding", "rceil") == "dgrad.a.rounding: renamed to scale_rounding");
}

TEST_CASE("recipe_from_json: a row may exclude layers and schedule another recipe", "[recipe]") {
  json row = copy_of("rowwise");
  row["layers"] = {{"keep_bf16", {"first:1", "last:0.15", "head"}}};
  row["schedule"] = {"bf16@0.82"};
  const Recipe recipe = recipe_from_json(row);
  CHECK(recipe.keep_bf16 == parse_keep_bf16("first:1,last:0.15,head"));
  CHECK(recipe.schedule == parse_switches("bf16@0.82"));
  CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
  CHECK(!recipe_to_json(find_recipe("rowwise")).contains("layers"));
  CHECK(error_with("rowwise", "/layers", 1) == "layers: expected a JSON object");
  CHECK(error_with("rowwise", "/layers/keep", 1) == "layers.keep: unknown key; did you mean keep_bf16?");
  CHECK(error_with("rowwise", "/layers/keep_bf16", "o") ==
        "layers.keep_bf16: expected an array of words, got \"o\"");
  CHECK(error_with("rowwise", "/layers/keep_bf16", {1}) == "layers.keep_bf16.0: expected a string, got 1");
  CHECK(error_with("rowwise", "/layers/keep_bf16", {"up"})
            .starts_with("layers.keep_bf16: \"up\": \"up\" is unknown or repeated; known: "));
  CHECK(error_with("rowwise", "/schedule", {"bf16"}).starts_with("schedule: \"bf16\" is not RECIPE@STEP"));
  row["name"] = "rowwise";
  CHECK(error_of_row(row) == "name: rowwise is a built-in recipe with other values; choose another name");
}

TEST_CASE("recipe_from_json: scale_rounding and fast_accum and reference are optional", "[recipe]") {
  json row = copy_of("mxfp8");
  row.erase("reference");
  row["fprop"].erase("fast_accum");
  row["fprop"]["a"].erase("scale_rounding");
  const Recipe recipe = recipe_from_json(row);
  CHECK(recipe.fprop == find_recipe("mxfp8").fprop);
  CHECK(recipe.reference.empty());
}

TEST_CASE("why_shape_unsupported: names the dimension that does not fit", "[recipe]") {
  const auto why = [](const char* name, std::int64_t M, std::int64_t N, std::int64_t K) {
    return shape_unsupported_reason(find_recipe(name), M, N, K);
  };
  for (const Recipe& recipe : builtin_recipes()) CHECK(!shape_unsupported_reason(recipe, 256, 384, 128));
  CHECK(!why("bf16", 7, 5, 3));
  CHECK(!why("tensorwise", 16, 48, 80));
  CHECK(why("tensorwise", 16, 48, 100) == "K=100 is not a multiple of 16 (fprop in e4m3)");
  CHECK(why("tensorwise", 16, 56, 96) == "N=56 is not a multiple of 16 (fprop in e4m3)");
  CHECK(why("rowwise_gw_hp", 17, 48, 96) == "M=17 is not a multiple of 16 (fprop in e4m3)");
  for (const char* name : {"blockwise", "blockwise_pow2"}) {  // their last blocks may be partial
    CHECK(!why(name, 128, 128, 96));
    CHECK(!why(name, 128, 960, 576));
    CHECK(!why(name, 48, 2112, 2880));
    CHECK(why(name, 128, 128, 100) == "K=100 is not a multiple of 16 (fprop in e4m3)");
    CHECK(why(name, 128, 72, 128) == "N=72 is not a multiple of 16 (fprop in e4m3)");
    CHECK(why(name, 40, 128, 128) == "M=40 is not a multiple of 16 (fprop in e4m3)");
  }
  Recipe flow = find_recipe("blockwise_pow2");
  flow.flow = true;
  CHECK(!shape_unsupported_reason(flow, 256, 384, 128));
  const auto of_flow = [](char letter) {
    return std::string(1, letter) + "=192 is not a multiple of 128 (flow: FP8 data is transposed in squares)";
  };
  CHECK(shape_unsupported_reason(flow, 192, 384, 128) == of_flow('M'));
  CHECK(shape_unsupported_reason(flow, 256, 192, 128) == of_flow('N'));
  CHECK(shape_unsupported_reason(flow, 256, 384, 192) == of_flow('K'));
  CHECK(!why("mxfp8", 96, 96, 96));
  CHECK(why("mxfp8", 96, 96, 48) == "K=48 is not a multiple of 32 (fprop.a 1x32)");
  CHECK(!why("nvfp4", 64, 96, 160));
  // 16 bytes are 32 elements of FP4; dimensions that are not contracted belong to BF16 or FP32 matrices.
  CHECK(why("nvfp4", 64, 96, 208) == "K=208 is not a multiple of 32 (fprop in e2m1)");
  CHECK(why("nvfp4", 64, 80, 160) == "N=80 is not a multiple of 32 (dgrad in e2m1)");
  CHECK(why("nvfp4", 48, 96, 160) == "M=48 is not a multiple of 32 (wgrad in e2m1)");
  CHECK(!why("nvfp4_fprop_bf16", 64, 96, 208));
  CHECK(why("nvfp4", 48, 80, 100) == "K=100 is not a multiple of 16 (fprop.a 1x16)");
  CHECK(!why("mxfp4_bwd", 64, 128, 48));
  CHECK(why("mxfp4_bwd", 64, 96, 64) == "N=96 is not a multiple of 64 (dgrad.a transform)");
  CHECK(why("quartet2", 64, 128, 32) == "M=64 is not a multiple of 128 (wgrad.a transform)");
  CHECK(why("mxfp8", 48, 96, 96) == "M=48 is not a multiple of 32 (wgrad.a 1x32)");
}

TEST_CASE("name_of: names of dtypes", "[recipe]") {
  CHECK(std::string(name_of(DType::f32)) == "f32");
  CHECK(std::string(name_of(DType::bf16)) == "bf16");
  CHECK(std::string(name_of(DType::ue8m0)) == "ue8m0");
  CHECK(std::string(name_of(DType::i32)) == "i32");
}

TEST_CASE("recipe_from_json: a row may set the formats of the moments", "[recipe]") {
  CHECK(find_recipe("coat").optimizer == RecipeState{"coat", "coat"});
  CHECK(find_recipe("bf16").optimizer.empty());
  nlohmann::json row = recipe_to_json(find_recipe("rowwise"));
  row["name"] = "mine";
  row["optimizer"] = {{"v", "fp16"}};
  const Recipe mine = recipe_from_json(row);
  CHECK(mine.optimizer == RecipeState{"", "fp16"});
  CHECK(recipe_from_json(recipe_to_json(mine)) == mine);
  row["optimizer"]["m"] = "fp8";
  CHECK(refusal_of([&] { recipe_from_json(row); }).starts_with("optimizer.m: unknown value \"fp8\""));
  row["optimizer"] = {{"master", "fp16"}, {"weights", "e4m3"}};
  row["gradients"] = {{"format", "e4m3"}};
  const Recipe kept = recipe_from_json(row);
  CHECK(kept.optimizer == RecipeState{.master = "fp16", .weights = "e4m3", .gradients = "e4m3"});
  CHECK(recipe_from_json(recipe_to_json(kept)) == kept);
  CHECK(!recipe_to_json(kept)["gradients"].contains("sum"));
  row["gradients"]["sum"] = "e4m3";
  const Recipe rounded = recipe_from_json(row);
  CHECK(rounded.optimizer ==
        RecipeState{.master = "fp16", .weights = "e4m3", .gradients = "e4m3", .gradient_sum = "e4m3"});
  CHECK(recipe_to_json(rounded)["gradients"]["sum"] == "e4m3");
  CHECK(recipe_from_json(recipe_to_json(rounded)) == rounded);
  row["gradients"]["sum"] = "f32";
  CHECK(recipe_from_json(row) == kept);
  row["gradients"]["sum"] = "bf16";
  CHECK(refusal_of([&] { recipe_from_json(row); }) ==
        "gradients.sum: unknown value \"bf16\"; one of f32, e4m3");
  for (const char* format : {"fp32", "bf16"}) {
    row["gradients"] = {{"format", format}, {"sum", "e4m3"}};
    CHECK(refusal_of([&] { recipe_from_json(row); }) ==
          "gradients.sum: only gradients whose format is e4m3 are summed in e4m3");
  }
  row["gradients"] = {{"format", "e4m3"}};
  row["optimizer"]["master"] = "fp8";
  CHECK(refusal_of([&] { recipe_from_json(row); }) ==
        "optimizer.master: unknown value \"fp8\"; one of fp32, bf16, bf16_sr, fp16");
  row["optimizer"].erase("master");
  row["gradients"]["format"] = "e5m2";
  CHECK(refusal_of([&] { recipe_from_json(row); }) ==
        "gradients.format: unknown value \"e5m2\"; one of fp32, bf16, e4m3");
  row.erase("gradients");
  row["optimizer"] = {{"w", "fp16"}};
  CHECK(refusal_of([&] { recipe_from_json(row); }).starts_with("optimizer.w: unknown key"));
}

TEST_CASE("recipe_from_json: kept activations are a stack or an object and survive a round trip", "[recipe]") {
  json row = recipe_to_json(find_recipe("tensorwise"));
  row["name"] = "mine";
  CHECK(!row.contains("kept"));
  for (const KeptStack& stack : kept_stacks()) {
    row["kept"] = stack.name;
    const Recipe recipe = recipe_from_json(row);
    CHECK(recipe.kept == stack.kept);
    CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
  }
  for (const Recipe& recipe : named_recipes()) {  // those with the name of a stack
    const bool msamp = recipe.name.starts_with("msamp_");
    CHECK(recipe.kept == kept_by(msamp ? "transformer_engine" : "precbench"));
  }
  row["operands"] = {{"groups", {{"format", "e4m3"}, {"granularity", "1x16"}, {"scale", "ue5m3"}}}};
  row["kept"] = {{"attention", "quantized"}, {"activation_input", "groups"}};
  const KeptActivations kept = recipe_from_json(row).kept;
  CHECK(describe(kept) ==
        "norm quantized, activation recompute, attention quantized, activation input e4m3 1x16 ue5m3");
  row.erase("operands");
  const auto error = [&](const json& value) {
    row["kept"] = value;
    return error_of_row(row);
  };
  CHECK(error("te") ==
        "kept: \"te\" is no stack; one of precbench, transformer_engine, torchao, torchao_nvfp4, coat");
  CHECK(error({{"norm", "recompute"}}) == "kept.norm: unknown value \"recompute\"; one of value, quantized");
  CHECK(error({{"gemm_output", "quantized"}}) ==
        "kept.gemm_output: unknown value \"quantized\"; one of value, recompute");
  CHECK(error({{"attentoin", "value"}}) == "kept.attentoin: unknown key; did you mean attention?");
  CHECK(error({{"norm_input", {{"format", "e4m3"}, {"granularity", "128x128"}}}}) ==
        "kept.norm_input: is rounded to nearest, with the scales of its own amaxes, of the tensor, rows or blocks in a row");
  row = recipe_to_json(find_recipe("blockwise_pow2"));
  row["name"] = "mine", row["flow"] = true;
  CHECK(error("torchao") == "kept: flow keeps the rowwise codes, which wgrad transposes; remove it");
}
