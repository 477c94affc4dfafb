// A user's recipe row as JSON, checked so that everything accepted can be computed and errors name the field:
//   {"name": "mine", "reference": "...",
//    "fprop": {"a": OPERAND, "b": OPERAND, "fast_accum": false}, "dgrad": ..., "wgrad": ...}
// An operand is an object, or the name of one of "operands" (recipe_json_operands.cpp).
// reference and fast_accum are optional, and so are these keys, in the syntax of selection.h:
//   "layers": {"keep_bf16": ["first:1", "last:0.15", "o"]}    linear layers that stay in BF16
//   "schedule": ["bf16@0.82"]                                 another recipe from a step on
//   "optimizer": {"m": "coat", "v": "coat"}                   formats of the moments; also "master",
//                                                             and "weights" of linear layers
//   "gradients": {"format": "e4m3", "sum": "f32"}             format of stored and reduced gradients, and
//                                                             rounding of sums over ranks of e4m3 ones
//   "weight_only": OPERAND                                    format that weights are stored in; all GEMMs are
//                                                             BF16, on dequantized weights
//   "flow": true                                              wgrad's X and dY are transposed codes
//   "kept": {"activation": "quantized"}, or "torchao"         activations in memory for the backward pass
// recipe.schema.json describes the same for editors. Ablations (ablations.h) are such files in the program.
#include <cctype>
#include <stdexcept>

#include "kernels/base/description.h"
#include "kernels/base/near_words.h"
#include "kernels/base/standard_input.h"
#include "kernels/base/untrusted_input.h"
#include "kernels/numerics/ablations.h"
#include "kernels/numerics/ablations_text.h"
#include "kernels/numerics/recipe_json_read.h"
#include "kernels/numerics/state_formats.h"

namespace precbench {
using namespace recipe_json;
namespace {

constexpr StateFormat kStateFormatsKnown[] = {StateFormat::fp32, StateFormat::bf16, StateFormat::fp16,
                                              StateFormat::e4m3, StateFormat::coat};

/// Checks that the operands' scales factor out of the same partial sums: the whole contraction (tensor, row),
/// or blocks of 128, 32 or 16. Only then can they be multiplied.
void check_pair(const GemmRecipe& gemm, const std::string& path) {
  const auto& [a, b, fast_accum] = gemm;
  if (a.quantized() != b.quantized())
    fail(child(path, a.quantized() ? "b" : "a"), "a GEMM needs both operands quantized or neither");
  if (block_length(a.granularity) != block_length(b.granularity))
    fail(path,
         fmt::format("{} x {} has no GEMM: their scales span different lengths of the contracted dimension",
                     name_of(a.granularity), name_of(b.granularity)));
  const bool fp4 = a.dtype == DType::e2m1;
  if (fp4 != (b.dtype == DType::e2m1) || (fp4 && a.scale != b.scale))
    fail(path, "an FP4 operand needs another FP4 operand with scales of the same type");
  if (!(a.transform == b.transform)) fail(path, "both operands need the same transform, so that it cancels");
  if (a.granularity == Granularity::block_1x64)
    fail(path, "blocks of 1x64 are for weight_only, not for operands of GEMMs");
  if (a.granularity == Granularity::block_128x128 && b.granularity == Granularity::block_128x128)
    fail(path, "128x128 x 128x128 has no GEMM; make one operand 1x128");
  if (fast_accum && block_length(a.granularity) > 0)
    fail(child(path, "fast_accum"),
         "only tensor and row scales support fast accumulation; blocks are promoted to FP32");
  if (fast_accum && !a.quantized())
    fail(child(path, "fast_accum"), "a bf16 GEMM has no fast accumulation; remove it");
}

GemmRecipe read_gemm(const json& recipe, GemmRole role, Operands& operands) {
  const std::string path = name_of(role);
  const json& object = require(recipe, "", path.c_str(), "a recipe has fprop, dgrad and wgrad");
  check_keys(object, path, {"a", "b", "fast_accum"});
  GemmRecipe gemm;
  gemm.a = operands.read(require(object, path, "a", "a GEMM has operands a and b"), child(path, "a"));
  gemm.b = operands.read(require(object, path, "b", "a GEMM has operands a and b"), child(path, "b"));
  if (object.contains("fast_accum"))
    gemm.fast_accum = read_bool(object.at("fast_accum"), child(path, "fast_accum"));
  check_pair(gemm, path);
  return gemm;
}

/// Reads the format of stored weights, which must not depend on random numbers or on earlier steps.
void read_weight_only(const json& object, Operands& operands, Recipe& recipe) {
  if (!object.contains("weight_only")) return;
  const QuantFormat format = operands.read(object.at("weight_only"), "weight_only");
  if (!format.quantized()) fail("weight_only.format", "bf16 weights need no weight_only; remove it");
  if (recipe.quantized())
    fail("weight_only",
         "GEMMs read the dequantized weights in BF16; make all operands of fprop, dgrad and wgrad bf16");
  if (format.delayed())
    fail("weight_only.history", "weights are stored with the scales of their own amax; remove it");
  if (format.element_rounding != ElementRounding::rne || format.transform || format.eden ||
      format.from_fprop || format.element_scale != 1)
    fail(
        "weight_only",
        "takes format, granularity, scale, scale_rounding, global_scale and four_over_six; the value is rounded to nearest");
  recipe.weight_only = format;
}

constexpr KeptAs kNormKept[] = {KeptAs::value, KeptAs::quantized};
constexpr KeptAs kOutputKept[] = {KeptAs::value, KeptAs::recompute};
constexpr KeptAs kActivationKept[] = {KeptAs::value, KeptAs::quantized, KeptAs::recompute};

/// Reads the format of an input of a norm or an activation function, which must not depend on random numbers or earlier
/// steps.
QuantFormat read_kept_format(const json& kept, const char* key, Operands& operands) {
  if (!kept.contains(key)) return {};
  const std::string path = child("kept", key);
  const QuantFormat format = operands.read(kept.at(key), path);
  if (format.delayed() || format.element_rounding != ElementRounding::rne || format.transform ||
      format.eden || format.from_fprop || block_rows(format.granularity) > 1)
    fail(path,
         "is rounded to nearest, with the scales of its own amaxes, of the tensor, rows or blocks in a row");
  return format;
}

KeptActivations read_kept(const json& kept, Operands& operands) {
  if (kept.is_string()) try {
      return kept_by(kept.get<std::string>());
    } catch (const InvalidInput& error) {
      fail("kept", error.what());
    }
  check_keys(kept, "kept",
             {"norm", "activation", "attention", "gemm_output", "norm_input", "activation_input"});
  KeptActivations read;
  if (kept.contains("norm")) read.norm = read_enum(kept.at("norm"), "kept.norm", kNormKept);
  if (kept.contains("activation"))
    read.activation = read_enum(kept.at("activation"), "kept.activation", kActivationKept);
  if (kept.contains("attention"))
    read.attention = read_enum(kept.at("attention"), "kept.attention", kNormKept);
  if (kept.contains("gemm_output"))
    read.gemm_output = read_enum(kept.at("gemm_output"), "kept.gemm_output", kOutputKept);
  read.norm_input = read_kept_format(kept, "norm_input", operands);
  read.activation_input = read_kept_format(kept, "activation_input", operands);
  return read;
}

json kept_to_json(const KeptActivations& kept) {
  json object = {{"norm", name_of(kept.norm)},
                 {"activation", name_of(kept.activation)},
                 {"attention", name_of(kept.attention)}};
  if (kept.gemm_output != KeptActivations{}.gemm_output) object["gemm_output"] = name_of(kept.gemm_output);
  if (kept.norm_input.quantized()) object["norm_input"] = operand_to_json(kept.norm_input);
  if (kept.activation_input.quantized()) object["activation_input"] = operand_to_json(kept.activation_input);
  return object;
}

/// Checks that an operand has the same scale in both GEMMs that use it, and that the recipe has one kind of
/// history.
void check_histories(const Recipe& recipe) {
  const History& history = recipe.fprop.a.history;
  for (const GemmRole role : kGemmRoles)
    for (const auto& [side, operand] :
         {std::pair{"a", recipe.gemm(role).a}, std::pair{"b", recipe.gemm(role).b}})
      if (operand.quantized() && !(operand.history == history))
        fail(fmt::format("{}.{}.history", name_of(role), side),
             "differs from that of fprop.a; a recipe has one kind of history, or none");
  if (history.length == 0) return;
  const auto same = [](const char* path, const QuantFormat& is, const char* other, const QuantFormat& was) {
    if (is.quantized() && was.quantized() && !(is == was))
      fail(path, fmt::format("differs from {}, the same matrix with the same scale", other));
  };
  same("dgrad.b", recipe.dgrad.b, "fprop.b", recipe.fprop.b);
  same("wgrad.a", recipe.wgrad.a, "dgrad.a", recipe.dgrad.a);
  same("wgrad.b", recipe.wgrad.b, "fprop.a", recipe.fprop.a);
}

/// Reads an array of words, comma-separated on the command line, with `parse`.
template <class Parse>
auto read_words(const json& value, const std::string& path, Parse&& parse) {
  if (!value.is_array()) fail(path, "expected an array of words, got " + value.dump());
  std::vector<std::string> words;
  for (std::size_t i = 0; i < value.size(); ++i)
    words.push_back(read_string(value[i], fmt::format("{}.{}", path, i)));
  try {
    return parse(fmt::format("{}", fmt::join(words, ",")));
  } catch (const InvalidInput& error) {
    fail(path, error.what());
  }
}

void read_layers_and_schedule(const json& object, Recipe& recipe) {
  if (const auto layers = object.find("layers"); layers != object.end()) {
    check_keys(*layers, "layers", {"keep_bf16"});
    if (layers->contains("keep_bf16"))
      recipe.keep_bf16 = read_words(layers->at("keep_bf16"), "layers.keep_bf16", parse_keep_bf16);
  }
  if (const auto schedule = object.find("schedule"); schedule != object.end())
    recipe.schedule = read_words(*schedule, "schedule", parse_switches);
}

/// Reads a word of `known`; empty if the key is missing.
std::string read_word(const json& object, const std::string& path, const char* key,
                      const std::vector<std::string>& known) {
  if (!object.contains(key)) return "";
  const std::string word = read_string(object.at(key), child(path, key));
  if (std::count(known.begin(), known.end(), word) == 0)
    fail(child(path, key), fmt::format("unknown value \"{}\"; one of {}", word, fmt::join(known, ", ")));
  return word;
}

void read_optimizer(const json& object, Recipe& recipe) {
  if (const auto gradients = object.find("gradients"); gradients != object.end()) {
    check_keys(*gradients, "gradients", {"format", "sum"});
    recipe.optimizer.gradients = read_word(*gradients, "gradients", "format", {"fp32", "bf16", "e4m3"});
    const std::string sum = read_word(*gradients, "gradients", "sum", {"f32", "e4m3"});
    if (sum == "e4m3" && recipe.optimizer.gradients != "e4m3")
      fail("gradients.sum", "only gradients whose format is e4m3 are summed in e4m3");
    if (sum != "f32") recipe.optimizer.gradient_sum = sum;
  }
  const auto optimizer = object.find("optimizer");
  if (optimizer == object.end()) return;
  check_keys(*optimizer, "optimizer", {"m", "v", "master", "weights"});
  recipe.optimizer.master = read_word(*optimizer, "optimizer", "master", {"fp32", "bf16", "bf16_sr", "fp16"});
  recipe.optimizer.weights = read_word(*optimizer, "optimizer", "weights", {"bf16", "e4m3"});
  for (const auto& [key, word] : {std::pair("m", &recipe.optimizer.m), std::pair("v", &recipe.optimizer.v)})
    if (optimizer->contains(key))
      *word = name_of(read_enum(optimizer->at(key), child("optimizer", key), kStateFormatsKnown));
}

/// Checks a name: names appear in comma-separated lists, file names and tables.
void check_name(const std::string& name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), allowed))
    fail("name", fmt::format("\"{}\" must be made of letters, digits, '_', '-' and '.'", name));
}

Recipe read_file(const std::string& path) {
  const std::string text = read_input(path, kDescriptionLimits.bytes, "--recipe");
  try {
    return recipe_from_json(parse_strictly<json>(text));
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", name_of_input(path), error.what()));
  }
}

/// Reads a row without comparing its name with those of built-in recipes.
Recipe row_from_json(const json& object) {
  check_keys(object, "",
             {"name", "reference", "operands", "fprop", "dgrad", "wgrad", "layers", "schedule",
              "mask_clipped", "optimizer", "gradients", "flow", "weight_only", "kept"});
  Recipe recipe;
  recipe.name = read_string(require(object, "", "name", "the name it has in records"), "name");
  check_name(recipe.name);
  if (object.contains("reference")) recipe.reference = read_string(object.at("reference"), "reference");
  Operands operands(object);
  recipe.fprop = read_gemm(object, GemmRole::fprop, operands);
  recipe.dgrad = read_gemm(object, GemmRole::dgrad, operands);
  recipe.wgrad = read_gemm(object, GemmRole::wgrad, operands);
  read_weight_only(object, operands, recipe);
  if (object.contains("kept")) recipe.kept = read_kept(object.at("kept"), operands);
  operands.check_all_used();
  check_histories(recipe);
  if (object.contains("mask_clipped"))
    recipe.mask_clipped = read_bool(object.at("mask_clipped"), "mask_clipped");
  check_fp4_backward(recipe);
  if (object.contains("flow")) recipe.flow = read_bool(object.at("flow"), "flow");
  if (recipe.flow)
    if (const auto why = flow_unsupported_reason(recipe)) fail("flow", *why);
  if (recipe.flow && recipe.kept != KeptActivations{})
    fail("kept", "flow keeps the rowwise codes, which wgrad transposes; remove it");
  read_layers_and_schedule(object, recipe);
  read_optimizer(object, recipe);
  return recipe;
}

/// Returns the text of an ablation's file; null if there is none.
const char* ablation_text(const std::string& name) {
  for (const auto& [known, text] : kAblations)
    if (name == known) return text;
  return nullptr;
}

}  // namespace

Recipe recipe_from_json(const json& object) {
  Recipe recipe = row_from_json(object);
  for (const Recipe& builtin : named_recipes())
    if (builtin.name == recipe.name && builtin != recipe)
      fail("name",
           fmt::format("{} is a built-in recipe with other values; choose another name", recipe.name));
  return recipe;
}

bool is_ablation(const std::string& name) { return ablation_text(name) != nullptr; }

Recipe ablation(const std::string& name) {
  const char* text = ablation_text(name);
  if (!text) throw std::logic_error("no ablation " + name);
  return row_from_json(parse_strictly<json>(text));
}

json recipe_to_json(const Recipe& recipe) {
  json object = {{"name", recipe.name}};
  if (!recipe.reference.empty()) object["reference"] = recipe.reference;
  for (GemmRole role : kGemmRoles) {
    const GemmRecipe& gemm = recipe.gemm(role);
    object[name_of(role)] = {
        {"a", operand_to_json(gemm.a)}, {"b", operand_to_json(gemm.b)}, {"fast_accum", gemm.fast_accum}};
  }
  if (recipe.mask_clipped) object["mask_clipped"] = true;
  if (recipe.flow) object["flow"] = true;
  if (recipe.kept != KeptActivations{}) object["kept"] = kept_to_json(recipe.kept);
  if (recipe.weight_only.quantized()) object["weight_only"] = operand_to_json(recipe.weight_only);
  if (const auto words = words_of(recipe.keep_bf16); !words.empty()) object["layers"]["keep_bf16"] = words;
  for (const RecipeSwitch& change : recipe.schedule) object["schedule"].push_back(to_text(change));
  const RecipeState& kept = recipe.optimizer;
  for (const auto& [key, word] : {std::pair("m", kept.m), std::pair("v", kept.v),
                                  std::pair("master", kept.master), std::pair("weights", kept.weights)})
    if (!word.empty()) object["optimizer"][key] = word;
  if (!kept.gradients.empty()) object["gradients"]["format"] = kept.gradients;
  if (!kept.gradient_sum.empty()) object["gradients"]["sum"] = kept.gradient_sum;
  return object;
}

namespace {

/// Returns what to write in place of an unknown name. Other programs call the recipes after their formats.
std::string recipe_hint(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  for (const char* format : {"float8", "f8", "e4m3", "fp8_e4m3", "float8_e4m3fn", "hybrid"})
    if (equal_but_for_case(word, format)) return "did you mean tensorwise, or the set fp8?";
  for (const char* format : {"float4", "f4", "e2m1", "float4_e2m1fn_x2"})
    if (equal_but_for_case(word, format)) return "did you mean nvfp4, or the set fp4?";
  if (const std::string near = nearest_strictly(word, names); !near.empty())
    return fmt::format("did you mean {}?", near);
  return fmt::format("the nearest are {}; precbench list recipes has all",
                     fmt::join(nearest_few(word, names, kShown), ", "));
}

}  // namespace

Recipe find_recipe(const std::string& name_or_path) {
  if (name_or_path.ends_with(".json") || name_or_path == kStandardInput) return read_file(name_or_path);
  std::vector<std::string> names;
  for (const Recipe& recipe : named_recipes()) {
    if (equal_but_for_case(recipe.name, name_or_path)) return recipe;
    names.push_back(recipe.name);
  }
  throw InvalidInput(
      fmt::format("unknown recipe \"{}\"; {}", name_or_path, recipe_hint(name_or_path, names)));
}

}  // namespace precbench
