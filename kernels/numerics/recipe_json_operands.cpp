// An operand of a recipe's JSON:
//   {"format": "bf16"}
//   {"format": "e4m3", "granularity": "1x32", "scale": "ue8m0", "scale_rounding": "rceil"}
//   {"format": "e4m3", "granularity": "tensor", "scale": "f32",
//    "history": {"length": 1024, "algorithm": "max", "first": "current", "margin": 0, "update": "step",
//                "reduce": true}}
//   {"format": "e2m1", "granularity": "1x16", "scale": "e4m3", "global_scale": 448,
//    "element_rounding": "stochastic", "transform": {"hadamard": 16, "sign": "te"}}
//   {"format": {"grid": [0, 0.5, 1, 1.5, 2, 3, 4, 6]}, "granularity": "1x32", "scale": "ue5m3",
//    "element_rounding": "stochastic"}
// FP4 also has "four_over_six": true, "correction": {"eden": 16}, "source": "fprop" (README.md explains
// them). Defaults: scale_rounding rceil for a ue8m0 scale, element_rounding rne, transform none. {"like":
// "x", "format": "e5m2"} copies the keys of "x" from the recipe's "operands" and replaces some.
#include "kernels/numerics/grid.h"
#include "kernels/numerics/recipe_json_read.h"

namespace precbench::recipe_json {
namespace {

/// An element format and its name in a file.
struct Element {
  DType dtype;
  std::uint8_t dropped_bits;
};
const char* name_of(Element e) { return element_name({.dtype = e.dtype, .dropped_bits = e.dropped_bits}); }

// Formats that a row can use.
constexpr Element kFormats[] = {{DType::bf16, 0}, {DType::e4m3, 0}, {DType::e5m2, 0}, {DType::e4m3, 1},
                                {DType::e4m3, 2}, {DType::e5m2, 1}, {DType::e5m3, 0}, {DType::e4m4, 0},
                                {DType::e3m4, 0}, {DType::e3m3, 0}, {DType::e2m1, 0}};
constexpr const char* kFormatNames =
    "one of bf16, e4m3, e5m2, e4m2, e4m1, e5m1, e5m3, e4m4, e3m4, e3m3, e2m1, or {\"grid\": [VALUES]}";
constexpr Granularity kGranularities[] = {
    Granularity::tensor,        Granularity::row,         Granularity::block_1x128,
    Granularity::block_128x128, Granularity::block_1x32,  Granularity::block_32x32,
    Granularity::block_1x16,    Granularity::block_16x16, Granularity::block_1x64};
constexpr ScaleType kScales[] = {ScaleType::f32, ScaleType::f32_pow2, ScaleType::ue8m0, ScaleType::e4m3,
                                 ScaleType::ue5m3};
constexpr ScaleRounding kRoundings[] = {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil,
                                        ScaleRounding::even, ScaleRounding::quest};
constexpr HistoryAlgorithm kAlgorithms[] = {HistoryAlgorithm::max, HistoryAlgorithm::most_recent};
constexpr FirstScale kFirsts[] = {FirstScale::current, FirstScale::one, FirstScale::window};
constexpr HistoryUpdate kUpdates[] = {HistoryUpdate::step, HistoryUpdate::micro};
constexpr int kLongestHistory = 8192, kLargestMargin = 15;

/// Reads the history of an operand with one FP32 scale per tensor.
History read_history(const json& object, const std::string& path) {
  check_keys(object, path, {"length", "algorithm", "first", "margin", "update", "reduce"});
  History history;
  const auto at = [&](const char* key) { return child(path, key); };
  history.length = read_whole<std::uint16_t>(
      require(object, path, "length", "the steps that it looks back on"), at("length"), 1, kLongestHistory);
  if (object.contains("algorithm"))
    history.algorithm = read_enum(object.at("algorithm"), at("algorithm"), kAlgorithms);
  if (object.contains("first")) history.first = read_enum(object.at("first"), at("first"), kFirsts);
  if (object.contains("update")) history.update = read_enum(object.at("update"), at("update"), kUpdates);
  if (object.contains("reduce")) history.reduce = read_bool(object.at("reduce"), at("reduce"));
  if (object.contains("margin"))
    history.margin = read_whole<std::uint8_t>(object.at("margin"), at("margin"), 0, kLargestMargin);
  return history;
}

/// Omits the defaults of `update` and `reduce`, so that records from before these keys existed stay
/// unchanged.
json history_to_json(const History& history) {
  json object = {{"length", history.length},
                 {"algorithm", name_of(history.algorithm)},
                 {"first", name_of(history.first)},
                 {"margin", history.margin}};
  if (history.update != HistoryUpdate::step) object["update"] = name_of(history.update);
  if (!history.reduce) object["reduce"] = false;
  return object;
}

/// Reads an element format: a name, or an object with a grid.
void read_elements(const json& format, const std::string& path, QuantFormat& operand) {
  if (!format.is_object()) {
    const Element element = read_enum(format, path, kFormats);
    operand.dtype = element.dtype;
    operand.dropped_bits = element.dropped_bits;
    return;
  }
  check_keys(format, path, {"grid"});
  const json& list = require(format, path, "grid", "the values of the format, ascending");
  const std::string at = child(path, "grid");
  if (!list.is_array()) fail(at, "expected an array of numbers, got " + list.dump());
  std::vector<float> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number()) fail(fmt::format("{}.{}", at, i), "expected a number, got " + list[i].dump());
    values.push_back(list[i].get<float>());
  }
  try {
    operand.grid = make_grid(std::move(values));
    operand.dtype = code_type(*operand.grid);
  } catch (const InvalidInput& error) {
    fail(at, error.what());
  }
}

/// Returns the values as a file lists them, without the negative ones of a mirrored grid.
json grid_to_json(const Grid& grid) {
  json list = json::array();
  for (int i = grid.mirrored() ? grid.zero : 0; i < grid.count; ++i)
    list.push_back(short_number(grid.values[i]));
  return {{"grid", list}};
}

/// Reads the type of the scale; a missing one follows from the granularity.
void read_scale(const json& object, const std::string& path, QuantFormat& operand) {
  const std::int64_t block = block_length(operand.granularity);
  const bool of_32 = block == 32, of_16 = block == 16, fp4 = operand.dtype == DType::e2m1;
  operand.scale = of_32 ? ScaleType::ue8m0 : of_16 ? ScaleType::e4m3 : ScaleType::f32;
  if (!object.contains("scale")) return;
  const ScaleType usual = operand.scale;
  operand.scale = read_enum(object.at("scale"), child(path, "scale"), kScales);
  const bool byte = operand.scale == ScaleType::e4m3 || operand.scale == ScaleType::ue5m3;
  const bool takes_other = of_32 || of_16 ? byte && !fp4 : operand.scale == ScaleType::f32_pow2;
  if (operand.scale == usual || takes_other) return;
  const std::string valid = !of_32 && !of_16 ? "f32 or f32_pow2"
                            : fp4            ? name_of(usual)
                            : of_32          ? "ue8m0, e4m3 or ue5m3"
                                             : "e4m3 or ue5m3";
  fail(child(path, "scale"),
       fmt::format("granularity {} takes {}{}, not {}{}", name_of(operand.granularity), valid,
                   fp4 ? " for e2m1" : "", name_of(operand.scale),
                   fp4 && byte ? "; {\"grid\": [0, 0.5, 1, 1.5, 2, 3, 4, 6]} takes it" : ""));
}

/// Reads an operand without `like`.
QuantFormat read_operand(const json& object, const std::string& path) {
  if (object.is_object() && object.contains("rounding"))
    fail(child(path, "rounding"), "renamed to scale_rounding");
  std::vector<std::string> keys = {"format", "granularity", "scale", "scale_rounding", "history"};
  keys.insert(keys.end(), std::begin(kFp4Keys), std::end(kFp4Keys));
  check_keys(object, path, keys);
  QuantFormat operand;
  read_elements(require(object, path, "format", kFormatNames), child(path, "format"), operand);
  if (!operand.quantized()) {
    keys.erase(keys.begin());
    for (const std::string& key : keys)
      if (object.contains(key)) fail(child(path, key), "bf16 has no scale; remove it");
    return operand;
  }
  operand.granularity =
      read_enum(require(object, path, "granularity",
                        "one of tensor, row, 1x128, 128x128, 1x64, 1x32, 32x32, 1x16, 16x16"),
                child(path, "granularity"), kGranularities);
  read_scale(object, path, operand);
  if (operand.granularity == Granularity::block_1x64 && !operand.grid)
    fail(child(path, "granularity"), fmt::format("1x64 is for grids, not {}", element_name(operand)));
  const bool exponent = operand.scale == ScaleType::ue8m0;
  if (exponent) operand.scale_rounding = ScaleRounding::rceil;
  if (object.contains("scale_rounding")) {
    if (!exponent)
      fail(child(path, "scale_rounding"),
           fmt::format("only ue8m0 scales have a rounding, not {}; remove it", name_of(operand.scale)));
    operand.scale_rounding =
        read_enum(object.at("scale_rounding"), child(path, "scale_rounding"), kRoundings);
  }
  if (object.contains("history")) {
    if (operand.granularity != Granularity::tensor)
      fail(child(path, "history"), "delayed scaling needs granularity tensor and an f32 scale; remove it");
    if (operand.grid)
      fail(child(path, "history"), "a grid has no NaN, which delayed scaling needs; remove it");
    operand.history = read_history(object.at("history"), child(path, "history"));
  }
  read_fp4(object, path, operand);
  return operand;
}

}  // namespace

Operands::Operands(const json& recipe) {
  if (!recipe.contains("operands")) return;
  named_ = recipe.at("operands");
  if (!named_.is_object()) fail("operands", "expected a JSON object");
  for (const auto& [name, operand] : named_.items())
    if (!operand.is_object()) fail("operands." + name, "expected a JSON object");
}

const json& Operands::named(const std::string& name, const std::string& path) {
  if (!named_.contains(name)) {
    std::vector<std::string> names;
    for (const auto& [known, operand] : named_.items()) names.push_back(known);
    fail(path, fmt::format("unknown operand \"{}\"{}", name,
                           names.empty() ? "; \"operands\" of the recipe has none" : hint(name, names)));
  }
  used_.insert(name);
  return named_.at(name);
}

json Operands::whole(json operand, const std::string& path) {
  std::set<std::string> seen;
  while (operand.is_object() && operand.contains("like")) {
    const std::string at = child(path, "like"), name = read_string(operand.at("like"), at);
    json base = named(name, at);
    if (!seen.insert(name).second) fail(at, fmt::format("{} refers to itself", name));
    operand.erase("like");
    base.update(operand);
    operand = std::move(base);
  }
  return operand;
}

QuantFormat Operands::read(const json& operand, const std::string& path) {
  if (!operand.is_string()) return read_operand(whole(operand, path), path);
  const auto name = operand.get<std::string>();
  const std::string there = "operands." + name;
  return read_operand(whole(named(name, path), there), there);
}

void Operands::check_all_used() const {
  for (const auto& [name, operand] : named_.items())
    if (used_.count(name) == 0) fail("operands." + name, "no GEMM uses it; remove it");
}

json operand_to_json(const QuantFormat& operand) {
  json object = {{"format", operand.grid ? grid_to_json(*operand.grid) : json(element_name(operand))}};
  if (!operand.quantized()) return object;
  object["granularity"] = name_of(operand.granularity);
  object["scale"] = name_of(operand.scale);
  if (operand.scale_rounding != ScaleRounding::none)
    object["scale_rounding"] = name_of(operand.scale_rounding);
  if (operand.delayed()) object["history"] = history_to_json(operand.history);
  if (operand.dtype == DType::e2m1) fp4_to_json(operand, object);
  if (operand.grid && operand.element_rounding != ElementRounding::rne)
    object["element_rounding"] = name_of(operand.element_rounding);
  return object;
}

}  // namespace precbench::recipe_json
