// FP4 keys of a recipe's JSON. See recipe_json_read.h; README.md explains the values.
#include <initializer_list>
#include <map>

#include "kernels/numerics/recipe_json_read.h"

namespace precbench::recipe_json {
namespace {

constexpr ElementRounding kElementRoundings[] = {ElementRounding::rne, ElementRounding::stochastic};

constexpr Signs kSigns[] = {Signs::none, Signs::te, Signs::backward, Signs::gemm};
constexpr int kTransforms[] = {16, 32, 64, 128};
constexpr int kEdenGroups[] = {16, 128};
constexpr float kGlobalScales[] = {448.0f, 256.0f, 255.99f};
constexpr double kLeastElementScale = 0.25, kLargestElementScale = 2;

Transform read_transform(const json& object, const std::string& path) {
  if (object == "none") return {};
  if (!object.is_object()) fail(path, "expected none or {hadamard, sign}, got " + object.dump());
  check_keys(object, path, {"hadamard", "sign"});
  Transform transform;
  transform.length = static_cast<std::uint8_t>(read_number(
      require(object, path, "hadamard", "the elements that it mixes"), child(path, "hadamard"), kTransforms));
  if (object.contains("sign")) transform.signs = read_enum(object.at("sign"), child(path, "sign"), kSigns);
  if (transform.signs == Signs::te && transform.length != 16)
    fail(child(path, "sign"), fmt::format("te has signs for 16 elements, not {}", transform.length));
  return transform;
}

void read_fp4_keys(const json& object, const std::string& path, QuantFormat& operand) {
  const auto at = [&](const char* key) { return child(path, key); };
  const auto has = [&](const char* key) { return object.contains(key); };
  if (has("element_rounding"))
    operand.element_rounding =
        read_enum(object.at("element_rounding"), at("element_rounding"), kElementRoundings);
  if (has("transform")) operand.transform = read_transform(object.at("transform"), at("transform"));
  if (has("four_over_six"))
    operand.four_over_six = read_bool(object.at("four_over_six"), at("four_over_six"));
  if (has("element_scale")) {
    const json& value = object.at("element_scale");
    if (!value.is_number() || value < kLeastElementScale || value > kLargestElementScale)
      fail(at("element_scale"), fmt::format("expected a number from {} to {}, got {}", kLeastElementScale,
                                            kLargestElementScale, value.dump()));
    operand.element_scale = value.get<float>();
  }
  if (has("correction") && object.at("correction") != "none") {
    check_keys(object.at("correction"), at("correction"), {"eden"});
    operand.eden = static_cast<std::uint8_t>(
        read_number(require(object.at("correction"), at("correction"), "eden", "the elements that share it"),
                    at("correction.eden"), kEdenGroups));
  }
  if (has("source") && object.at("source") != "value") {
    if (object.at("source") != "fprop")
      fail(at("source"), "unknown value " + object.at("source").dump() + "; one of value, fprop");
    operand.from_fprop = true;
  }
}

/// Returns true for FP8 data that BF16 holds exactly when dequantized.
bool exact_in_bf16(const QuantFormat& format) {
  return (format.dtype == DType::e4m3 || format.dtype == DType::e5m2) && !format.delayed() &&
         (format.scale == ScaleType::f32_pow2 || format.scale == ScaleType::ue8m0);
}

/// Throws if one of these keys differs from its default. Any operand may spell out a default.
void refuse_set(const json& object, const std::string& path, const QuantFormat& operand,
                std::initializer_list<const char*> keys, const char* why) {
  const QuantFormat plain;
  const std::map<std::string_view, bool> set = {
      {"global_scale", object.contains("global_scale") && object.at("global_scale") != "none"},
      {"transform", operand.transform != plain.transform},
      {"element_scale", operand.element_scale != plain.element_scale},
      {"four_over_six", operand.four_over_six != plain.four_over_six},
      {"correction", operand.eden != plain.eden},
      {"source", operand.from_fprop != plain.from_fprop}};
  for (const char* key : keys)
    if (set.at(key)) fail(child(path, key), why);
}

/// Checks the options of e4m3 scales: TransformerEngine's order of operations, or Quartet II's.
void check_e4m3_scales(const std::string& path, const QuantFormat& operand) {
  const bool transformer_engine = operand.global_scale == kGlobalScales[0];
  const auto refuse = [&](const char* key) {
    fail(child(path, key), "needs a global_scale of 256 or 255.99, Quartet II's order of operations");
  };
  if (transformer_engine && operand.element_scale != 1) refuse("element_scale");
  if (transformer_engine && operand.four_over_six) refuse("four_over_six");
  if (transformer_engine && operand.eden) refuse("correction");
  const bool stochastic = operand.element_rounding == ElementRounding::stochastic;
  if (operand.four_over_six && stochastic)
    fail(child(path, "four_over_six"), "needs round-to-nearest; remove element_rounding");
  if (operand.eden && stochastic)
    fail(child(path, "correction"), "needs round-to-nearest; remove element_rounding");
  if (operand.eden && !operand.transform) fail(child(path, "correction"), "needs a transform to be unbiased");
  if (operand.eden > 16 && operand.transform.length != operand.eden)
    fail(child(path, "correction.eden"), fmt::format("a group of {} elements needs a transform of {}, not {}",
                                                     operand.eden, operand.eden, operand.transform.length));
  if (!transformer_engine && operand.granularity != Granularity::block_1x16)
    fail(child(path, "global_scale"),
         fmt::format("Quartet II's order of operations needs blocks of 1x16, not {}",
                     name_of(operand.granularity)));
}

}  // namespace

void read_fp4(const json& object, const std::string& path, QuantFormat& operand) {
  read_fp4_keys(object, path, operand);
  if (operand.dtype != DType::e2m1) {
    if (operand.scale_rounding == ScaleRounding::quest)
      fail(child(path, "scale_rounding"), fmt::format("quest is for e2m1, not {}", element_name(operand)));
    if (operand.element_rounding != ElementRounding::rne && !operand.grid)
      fail(child(path, "element_rounding"), "only e2m1 and grids are rounded stochastically");
    if (operand.scale == ScaleType::e4m3 && object.contains("global_scale")) {
      constexpr float kOnly[] = {448.0f};
      read_number(object.at("global_scale"), child(path, "global_scale"), kOnly);
    } else {
      refuse_set(object, path, operand, {"global_scale"}, "only e4m3 scales have it; remove it");
    }
    refuse_set(object, path, operand, {"transform", "element_scale", "four_over_six", "correction"},
               "only e2m1 has it; remove it");
    return;
  }
  const bool e4m3 = operand.scale == ScaleType::e4m3;
  if (!e4m3 && operand.granularity != Granularity::block_1x32)
    fail(child(path, "granularity"),
         fmt::format("e2m1 takes 1x16 or 16x16 with e4m3 scales or 1x32 with ue8m0, not {}",
                     name_of(operand.granularity)));
  if (e4m3) {
    operand.global_scale =
        read_number(require(object, path, "global_scale", "e4m3 scales stand under one of the tensor: 448"),
                    child(path, "global_scale"), kGlobalScales);
    check_e4m3_scales(path, operand);
  } else {
    refuse_set(object, path, operand, {"global_scale", "four_over_six", "correction"},
               "only e4m3 scales have it; remove it");
  }
  if (!operand.transform) return;
  if (block_rows(operand.granularity) > 1)
    fail(child(path, "transform"),
         fmt::format("needs blocks of 1x16 or 1x32, not {}", name_of(operand.granularity)));
  if (operand.transform.length % block_length(operand.granularity) != 0)
    fail(child(path, "transform.hadamard"),
         fmt::format("{} elements are no whole blocks of {}", operand.transform.length,
                     name_of(operand.granularity)));
}

void fp4_to_json(const QuantFormat& operand, json& object) {
  if (operand.scale == ScaleType::e4m3) object["global_scale"] = short_number(operand.global_scale);
  if (operand.element_rounding != ElementRounding::rne)
    object["element_rounding"] = name_of(operand.element_rounding);
  if (operand.transform)
    object["transform"] = {{"hadamard", operand.transform.length},
                           {"sign", name_of(operand.transform.signs)}};
  if (operand.element_scale != 1) object["element_scale"] = short_number(operand.element_scale);
  if (operand.four_over_six) object["four_over_six"] = true;
  if (operand.eden) object["correction"] = {{"eden", operand.eden}};
  if (operand.from_fprop) object["source"] = "fprop";
}

void check_fp4_backward(const Recipe& recipe) {
  const GemmRecipe& fprop = recipe.fprop;
  for (const GemmRole role : kGemmRoles)
    for (const auto& [side, operand] :
         {std::pair{"a", recipe.gemm(role).a}, std::pair{"b", recipe.gemm(role).b}}) {
      const std::string path = fmt::format("{}.{}", name_of(role), side);
      const Signs signs = operand.transform.signs;
      if (role == GemmRole::fprop && (signs == Signs::backward || signs == Signs::gemm))
        fail(child(path, "transform.sign"), fmt::format("{} is for dgrad and wgrad", name_of(signs)));
      if (!operand.from_fprop) continue;
      if (role == GemmRole::fprop || std::string_view(side) == "a")
        fail(child(path, "source"), "only W in dgrad and X in wgrad are operands of fprop too");
      const bool fp8 = role == GemmRole::wgrad && exact_in_bf16(fprop.a);
      if (fprop.a.dtype != DType::e2m1 && !fp8)
        fail(child(path, "source"),
             fmt::format("fprop has no FP4 data{}",
                         role == GemmRole::wgrad ? ", or FP8 data with scales that are powers of two" : ""));
    }
  if (!recipe.mask_clipped) return;
  if (fprop.a.scale_rounding != ScaleRounding::quest || fprop.b.scale_rounding != ScaleRounding::quest ||
      !fprop.a.transform)
    fail("mask_clipped", "needs quest scales and a transform in fprop, whose casts clip");
  if (!recipe.dgrad.b.from_fprop || !recipe.wgrad.b.from_fprop)
    fail("mask_clipped", "needs source fprop in dgrad.b and wgrad.b");
}

}  // namespace precbench::recipe_json
