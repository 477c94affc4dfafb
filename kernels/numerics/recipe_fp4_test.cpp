// Built-in FP4 rows against their papers, and users' FP4 rows with their error messages.
#include <map>

#include "kernels/numerics/recipe_testing.h"

using namespace precbench;
using namespace precbench::testing;
using nlohmann::json;

TEST_CASE("recipe: NVFP4 rows match the paper and each variant lacks one part", "[recipe]") {
  std::vector<std::string> names;
  for (const Recipe& recipe : fp4_recipes()) names.push_back(recipe.name);
  CHECK(names == std::vector<std::string>{"nvfp4", "nvfp4_rne", "nvfp4_norht", "nvfp4_w1d", "nvfp4_all",
                                          "nvfp4_sr_fwd", "nvfp4_fprop_bf16", "mxfp4_bwd", "mxfp4_bwd_rne",
                                          "mxfp4_bwd_norht", "mxfp4_bwd_plain", "quartet", "quartet_sr",
                                          "quartet2"});
  const std::string fprop = "fprop: e2m1 1x16 e4m3 x e2m1 16x16 e4m3; ";
  const std::string dgrad = "dgrad: e2m1 1x16 e4m3 sr x e2m1 16x16 e4m3; ";
  const std::string wgrad = "wgrad: e2m1 1x16 e4m3 rht sr x e2m1 1x16 e4m3 rht; ";
  CHECK(row_text("nvfp4") == fprop + dgrad + wgrad);
  CHECK(row_text("nvfp4_all") == row_text("nvfp4"));
  CHECK(row_text("nvfp4_rne") == fprop + "dgrad: e2m1 1x16 e4m3 x e2m1 16x16 e4m3; " +
                                     "wgrad: e2m1 1x16 e4m3 rht x e2m1 1x16 e4m3 rht; ");
  CHECK(row_text("nvfp4_norht") == fprop + dgrad + "wgrad: e2m1 1x16 e4m3 sr x e2m1 1x16 e4m3; ");
  CHECK(row_text("nvfp4_w1d") ==
        "fprop: e2m1 1x16 e4m3 x e2m1 1x16 e4m3; "
        "dgrad: e2m1 1x16 e4m3 sr x e2m1 1x16 e4m3; " +
            wgrad);
  CHECK(row_text("nvfp4_sr_fwd") == "fprop: e2m1 1x16 e4m3 sr x e2m1 16x16 e4m3 sr; " + dgrad + wgrad);
  CHECK(row_text("nvfp4_fprop_bf16") == "fprop: bf16 x bf16; " + dgrad + wgrad);
  for (const Recipe& recipe : fp4_groups().front().recipes) {
    const bool all = recipe.name == "nvfp4_all";
    CHECK(words_of(recipe.keep_bf16) ==
          (all ? std::vector<std::string>{} : std::vector<std::string>{"last:0.15"}));
    REQUIRE(recipe.schedule.size() == (all ? 0 : 1));
    if (!all) CHECK(to_text(recipe.schedule[0]) == "bf16@0.82");
  }
}

TEST_CASE("recipe_from_json: invalid NVFP4 throws and names the field", "[recipe]") {
  CHECK(error_of_row(copy_of("nvfp4")) == "");
  CHECK(error_without("nvfp4", "/fprop/a", "global_scale") ==
        "fprop.a.global_scale: missing; e4m3 scales stand under one of the tensor: 448");
  CHECK(error_with("nvfp4", "/fprop/a/global_scale", 300) ==
        "fprop.a.global_scale: expected one of 448, 256, 255.99, got 300");
  CHECK(error_with("nvfp4", "/fprop/a/scale", "f32") ==
        "fprop.a.scale: granularity 1x16 takes e4m3 for e2m1, not f32");
  CHECK(error_with("rowwise", "/fprop/a/format", "e2m1") ==
        "fprop.a.granularity: e2m1 takes 1x16 or 16x16 with e4m3 scales or 1x32 with ue8m0, not row");
  CHECK(error_with("mxfp8", "/fprop/a/scale", "e4m3") ==
        "fprop.a.scale_rounding: only ue8m0 scales have a rounding, not e4m3; remove it");
  CHECK(error_with("nvfp4", "/fprop/a/scale", "ue5m3") ==
        "fprop.a.scale: granularity 1x16 takes e4m3 for e2m1, not ue5m3; "
        "{\"grid\": [0, 0.5, 1, 1.5, 2, 3, 4, 6]} takes it");
  CHECK(error_with("nvfp4", "/fprop/a/format", "e4m3") ==
        "fprop: an FP4 operand needs another FP4 operand with scales of the same type");
  CHECK(error_with("mxfp8", "/dgrad/a/element_rounding", "stochastic") ==
        "dgrad.a.element_rounding: only e2m1 and grids are rounded stochastically");
  CHECK(error_with("mxfp8", "/dgrad/a/element_rounding", "rne") == "");
  CHECK(error_with("mxfp8", "/dgrad/a/global_scale", 448) ==
        "dgrad.a.global_scale: only e4m3 scales have it; remove it");
  CHECK(error_with("mxfp8", "/wgrad/a/transform", {{"hadamard", 16}}) ==
        "wgrad.a.transform: only e2m1 has it; remove it");
  CHECK(error_with("mxfp8", "/wgrad/a/source", "fprop") == "wgrad.a.source: only W in dgrad and X in wgrad are operands of fprop too");
  CHECK(error_with("mxfp8", "/dgrad/b/source", "fprop") == "dgrad.b.source: fprop has no FP4 data");
  CHECK(error_with("tensorwise", "/wgrad/b/source", "fprop") ==
        "wgrad.b.source: fprop has no FP4 data, or FP8 data with scales that are powers of two");
  CHECK(error_with("mxfp8", "/wgrad/b/source", "fprop") == "");
  for (const auto& [key, value] :
       std::map<std::string, json>{{"global_scale", "none"},
                                   {"element_rounding", "rne"},
                                   {"transform", "none"},
                                   {"element_scale", 1},
                                   {"four_over_six", false},
                                   {"correction", "none"},
                                   {"source", "value"}}) {  // default of every operand without the key
    INFO(key);
    for (const char* recipe : {"tensorwise", "mxfp8"})
      CHECK(error_with(recipe, ("/wgrad/b/" + key).c_str(), value) == "");
  }
  CHECK(error_with("mxfp4_bwd", "/wgrad/b/global_scale", "none") == "");
  CHECK(error_with("mxfp4_bwd", "/wgrad/b/four_over_six", false) == "");
  CHECK(error_with("nvfp4", "/fprop/b/transform", {{"hadamard", 16}}) ==
        "fprop.b.transform: needs blocks of 1x16 or 1x32, not 16x16");
  CHECK(error_with("nvfp4", "/wgrad/a/transform", "none") ==
        "wgrad: both operands need the same transform, so that it cancels");
  CHECK(error_with("nvfp4", "/wgrad/a/transform/sign", "none") ==
        "wgrad: both operands need the same transform, so that it cancels");
  CHECK(error_with("nvfp4", "/wgrad/a/transform/sign", "tee") ==
        "wgrad.a.transform.sign: unknown value \"tee\"; did you mean te?");
  CHECK(error_with("nvfp4", "/wgrad/a/transform/hadamard", 48) ==
        "wgrad.a.transform.hadamard: expected one of 16, 32, 64, 128, got 48");
  CHECK(error_with("nvfp4", "/wgrad/a/transform/size", 16) ==
        "wgrad.a.transform.size: unknown key; did you mean sign?");
}

TEST_CASE("recipe: MXFP4 and Quartet rows match their papers", "[recipe]") {
  const auto both = [](const std::string& fprop, const std::string& a, const std::string& b) {
    const std::string pair = a + " x " + b + "; ";
    return "fprop: " + fprop + " x " + fprop + "; dgrad: " + pair + "wgrad: " + pair;
  };
  const std::string mx = "e2m1 1x32 ue8m0/floor";
  CHECK(row_text("mxfp4_bwd") == both("bf16", mx + " x0.75 rh64 sr", mx + " x0.75 rh64 sr"));
  CHECK(row_text("mxfp4_bwd_rne") == both("bf16", mx + " rh64", mx + " rh64"));
  CHECK(row_text("mxfp4_bwd_norht") == both("bf16", mx + " x0.75 sr", mx + " x0.75 sr"));
  CHECK(row_text("mxfp4_bwd_plain") == both("bf16", mx, mx));
  const std::string quest = "e2m1 1x32 ue8m0/quest h32";
  CHECK(row_text("quartet") == both(quest, mx + " x0.75 rh32", mx + " x0.75 rh32 of fprop"));
  CHECK(row_text("quartet_sr") == both(quest, mx + " x0.75 rh32 sr", mx + " x0.75 rh32 sr of fprop"));
  CHECK(row_text("quartet2") == both("e2m1 1x16 e4m3 4/6", "e2m1 1x16 e4m3 x1.012 rh128 eden",
                                     "e2m1 1x16 e4m3 x1.012 rh128 eden of fprop"));
  json wide = copy_of("quartet2");
  wide["dgrad"]["a"]["correction"]["eden"] = 128;
  const Recipe read = recipe_from_json(wide);
  CHECK(describe(read.dgrad.a) == "e2m1 1x16 e4m3 x1.012 rh128 eden128");
  CHECK(recipe_from_json(recipe_to_json(read)) == read);
  for (const Recipe& recipe : fp4_recipes())
    CHECK(recipe.mask_clipped == (recipe.name == "quartet" || recipe.name == "quartet_sr"));
}

TEST_CASE("recipe_from_json: invalid MXFP4 and Quartet throw and name the field", "[recipe]") {
  CHECK(error_with("mxfp8", "/fprop/a/scale_rounding", "quest") ==
        "fprop.a.scale_rounding: quest is for e2m1, not e4m3");
  CHECK(error_with("nvfp4", "/fprop/a/element_scale", 0.75) ==
        "fprop.a.element_scale: needs a global_scale of 256 or 255.99, Quartet II's order of operations");
  CHECK(error_with("nvfp4", "/fprop/a/four_over_six", true) ==
        "fprop.a.four_over_six: needs a global_scale of 256 or 255.99, Quartet II's order of operations");
  CHECK(error_with("nvfp4", "/wgrad/b/correction", {{"eden", 16}}) ==
        "wgrad.b.correction: needs a global_scale of 256 or 255.99, Quartet II's order of operations");
  CHECK(error_with("quartet2", "/wgrad/b/correction", {{"eden", 128}}) == "");
  CHECK(error_with("quartet2", "/wgrad/b/correction", {{"eden", 64}}) ==
        "wgrad.b.correction.eden: expected one of 16, 128, got 64");
  CHECK(error_with("quartet2", "/fprop/a/element_rounding", "stochastic") ==
        "fprop.a.four_over_six: needs round-to-nearest; remove element_rounding");
  CHECK(error_with("quartet2", "/dgrad/a/element_rounding", "stochastic") ==
        "dgrad.a.correction: needs round-to-nearest; remove element_rounding");
  CHECK(error_with("quartet2", "/dgrad/a/transform", "none") ==
        "dgrad.a.correction: needs a transform to be unbiased");
  CHECK(error_with("quartet2", "/dgrad/a/transform/hadamard", 16) ==
        "dgrad: both operands need the same transform, so that it cancels");
  CHECK(error_with("mxfp4_bwd", "/dgrad/a/global_scale", 448) ==
        "dgrad.a.global_scale: only e4m3 scales have it; remove it");
  CHECK(error_with("mxfp4_bwd", "/dgrad/a/transform/hadamard", 16) ==
        "dgrad.a.transform.hadamard: 16 elements are no whole blocks of 1x32");
  CHECK(error_with("mxfp4_bwd", "/dgrad/a/transform/sign", "te") ==
        "dgrad.a.transform.sign: te has signs for 16 elements, not 64");
  CHECK(error_with("mxfp4_bwd", "/dgrad/a/element_scale", 3) ==
        "dgrad.a.element_scale: expected a number from 0.25 to 2, got 3");
  CHECK(error_with("mxfp4_bwd", "/dgrad/a/format", "e4m3") ==
        "dgrad.a.element_rounding: only e2m1 and grids are rounded stochastically");
  CHECK(error_with("mxfp4_bwd", "/dgrad/b/source", "fprop") == "dgrad.b.source: fprop has no FP4 data");
  CHECK(error_with("quartet", "/dgrad/a/source", "fprop") ==
        "dgrad.a.source: only W in dgrad and X in wgrad are operands of fprop too");
  CHECK(error_with("quartet", "/dgrad/b/source", "x") ==
        "dgrad.b.source: unknown value \"x\"; one of value, fprop");
  CHECK(error_with("quartet", "/dgrad/b/source", "value") ==
        "mask_clipped: needs source fprop in dgrad.b and wgrad.b");
  CHECK(error_with("quartet", "/fprop/a/scale_rounding", "floor") ==
        "mask_clipped: needs quest scales and a transform in fprop, whose casts clip");
  CHECK(error_with("quartet", "/mask_clipped", 1) == "mask_clipped: expected true or false, got 1");
  CHECK(error_with("quartet", "/fprop/a/transform/sign", "gemm") ==
        "fprop: both operands need the same transform, so that it cancels");
  json eden = copy_of("quartet2");
  for (const char* side : {"a", "b"}) {
    eden["wgrad"][side]["transform"]["hadamard"] = 64;
    eden["wgrad"][side]["correction"] = {{"eden", 128}};
  }
  CHECK(error_of_row(eden) ==
        "wgrad.a.correction.eden: a group of 128 elements needs a transform of 128, not 64");
  json row = copy_of("quartet");
  for (const char* side : {"a", "b"}) row["fprop"][side]["transform"]["sign"] = "gemm";
  CHECK(error_of_row(row) == "fprop.a.transform.sign: gemm is for dgrad and wgrad");
}
