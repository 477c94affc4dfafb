// Builds the definition of a case, its record and the case's id. See definition.h.
#include "bench/case/definition.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "bench/case/case_words.h"
#include "bench/case/choose_layers.h"
#include "bench/case/fingerprint.h"
#include "bench/case/rules.h"
#include "kernels/base/errors.h"
#include "models/data/documents.h"
#include "models/data/files.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSynthetic = "synthetic";
constexpr const char* kBf16 = "bf16";
constexpr const char* kCheckpointFiles = "*.safetensors*";

/// Rejects folders: a file stream opens one without an error and then reads nothing.
void refuse_folder(const Field& field, const std::string& path) {
  if (path.ends_with(".json") && std::filesystem::is_directory(path))
    throw InvalidInput(fmt::format("{}: {}: Is a directory", flag_of(field), path));
}

ModelConfig model_of(const std::string& name) {
  refuse_folder(*find_field("model"), name);
  return find_model(name);
}

Recipe recipe_of(const std::string& name) {
  refuse_folder(*find_field("recipe"), name);
  return find_recipe(name);
}

/// Returns "text", or the extension of a file of tokens or documents. Documents are one file: in a folder JSON Lines
/// are text.
std::string kind_of(const std::string& file, bool in_folder) {
  if (!in_folder && is_documents(file)) return "jsonl";
  for (const std::string_view ending : {".bin", ".u16", ".u32"})
    if (file.ends_with(ending)) return std::string(ending.substr(1));
  return "text";
}

struct Content {
  std::uint64_t fingerprint = 0;
  std::string kind;
};

/// Returns the content of a file or a folder; null if it does not exist. `below`: as in fingerprint_of.
std::optional<Content> content_of(const std::string& path, const std::string& glob,
                                  Below below = Below::all) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Content> known;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  const std::lock_guard lock(mutex);
  const auto [content, added] = known.try_emplace({path, glob});
  if (added) {
    const bool folder = std::filesystem::is_directory(path, error);
    const auto files = folder ? find_files(path, glob, below).paths : std::vector<std::string>{path};
    content->second = {fingerprint_of(path, glob, below),
                       files.empty() ? "text" : kind_of(files.front(), folder)};
  }
  return content->second;
}

DataDefinition data_of(const Case& c) {
  if (c.data == kSynthetic) return {kSynthetic, std::nullopt, c.seed};
  const auto content = content_of(c.data, c.glob);
  if (!content) return {kind_of(c.data, false), std::nullopt, c.seed};
  return {content->kind, content->fingerprint, c.seed};
}

InitDefinition init_of(const Case& c) {
  InitDefinition init;
  init.forked = !c.fork_from.empty();
  init.drawn = c.init_from.empty() && !init.forked;
  init.seed = c.seed;
  init.perturbed = kPerturbWords.find(c.perturb).value();
  init.stress = parse_stress(c.stress);
  if (const auto content = content_of(init.forked ? c.fork_from : c.init_from, kCheckpointFiles, Below::none))
    init.fingerprint = content->fingerprint;
  return init;
}

Json hex(const std::optional<std::uint64_t>& fingerprint) {
  return fingerprint ? Json(fmt::format("{:016x}", *fingerprint)) : Json();
}

/// Writes changes of the first weights only if there are any.
Json init_record(const InitDefinition& init) {
  Json json = {{"kind", init.forked  ? "fork"
                        : init.drawn ? "normal"
                                     : "checkpoint"},
               {"fingerprint", hex(init.fingerprint)},
               {"deviation", init.drawn ? Json(init.deviation) : Json()},
               {"seed", init.drawn ? Json(init.seed) : Json()}};
  if (init.stress) json["stress"] = to_text(*init.stress);
  if (init.perturbed) json["perturb"] = kPerturbWords.of(true);
  return json;
}

/// Leaves all layers in BF16, now and later, for a recipe that is refused.
void leave_in_bf16(Definition& definition) {
  definition.converted.assign(static_cast<std::size_t>(definition.model.layers), {});
  definition.head_converted = false;
  definition.later.clear();
}

/// Returns the layers that each recipe of --eval-recipes converts.
std::vector<ConvertedLayers> readings_of(const Case& c, const ModelConfig& model) {
  std::vector<ConvertedLayers> readings;
  for (std::size_t begin = 0; begin < c.eval_recipes.size();) {
    const std::size_t end = std::min(c.eval_recipes.find(',', begin), c.eval_recipes.size());
    try {
      Recipe recipe = recipe_of(c.eval_recipes.substr(begin, end - begin));
      for (GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad})
        gemm->a.history = gemm->b.history = {};
      if (c.lora_rank > 0) recipe = recipe_of_frozen(std::move(recipe));
      const auto same = [&](const ConvertedLayers& other) { return other.recipe.name == recipe.name; };
      if (recipe.name != kBf16 && std::none_of(readings.begin(), readings.end(), same))
        readings.push_back(convert(c, model, recipe));
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("--eval-recipes: {}", error.what()));
    }
    begin = end + 1;
  }
  return readings;
}

DefinitionPart part_of(Json json) { return std::make_shared<const Json>(std::move(json)); }

}  // namespace

void define(Plan& plan, const ModelConfig* model, Refusals refusals) {
  const Case& c = plan.fields;
  if (!model)
    for (const Field& field : case_fields()) check_word(field, get_text(c, field));  // also those from JSON
  plan.model = model ? *model : model_of(c.model);
  try {
    plan.model = cut_to(plan.model, c.layers);
  } catch (const InvalidInput& error) {
    throw InvalidInput(c.layers > 0 ? fmt::format("--layers: {}", error.what()) : error.what());
  }
  plan.recipe = recipe_of(c.recipe);
  if (const auto why = broken_rule(Verdict::invalid, plan)) throw InvalidInput(*why);
  try {
    choose_layers(c, plan, model != nullptr);  // other parts of the model may be converted
  } catch (const InvalidInput& error) {
    plan.refusal = error.what();
    leave_in_bf16(plan);
  }
  if (c.kept != Case{}.kept) plan.recipe.kept = kept_by(c.kept);
  if (c.recompute != "selective") plan.recipe.kept.gemm_output = KeptActivations{}.gemm_output;  // no effect
  for (LaterLayers& later : plan.later) later.recipe.kept = plan.recipe.kept;
  if (kSwitchWords.find(c.flow).value()) {
    plan.recipe.flow = true;
    for (LaterLayers& later : plan.later) later.recipe.flow = later.recipe.quantized();
  }
  if (c.lora_rank > 0) {
    plan.recipe = recipe_of_frozen(std::move(plan.recipe));
    for (LaterLayers& later : plan.later) later.recipe = recipe_of_frozen(std::move(later.recipe));
  }
  if (!plan.refusal) plan.refusal = broken_rule(Verdict::refused, plan);
  if (plan.refusal && refusals == Refusals::thrown) throw InvalidInput(*plan.refusal);
  plan.data = data_of(c);
  plan.init = init_of(c);
  plan.fidelity_stresses = parse_fidelity_stress(c.fidelity_stress);
  plan.sensitivity = parse_sensitivity(c.sensitivity);
  plan.readings = readings_of(c, plan.model);
  if (const auto content = content_of(c.eval_data, c.glob)) plan.held_out = content->fingerprint;
}

DefinitionRecord definition_record(const Definition& definition) {
  Json model = {{"name", definition.model.name}};
  model.update(Json(model_to_json(definition.model)));
  Json recipe = layers_record(definition);
  for (const LaterLayers& later : definition.later) {
    Json json = {{"from", later.from}};
    json.update(layers_record(later));
    recipe["schedule"].push_back(std::move(json));
  }
  const DataDefinition& data = definition.data;
  return {part_of(std::move(model)), part_of(std::move(recipe)),
          part_of({{"kind", data.kind}, {"fingerprint", hex(data.fingerprint)}, {"seed", data.seed}}),
          part_of(init_record(definition.init))};
}

std::string case_id(const Case& c, const Definition& definition) {
  std::uint64_t state = kFingerprintStart;
  add_to_fingerprint(state, fmt::format("method={}\n", kMethodVersion));
  add_to_fingerprint(state, canonical_text(definition_record(definition)));
  for (const Field& field : case_fields()) {
    if (field.is_defined() || !changes_work(field.name)) continue;
    if (field.identity == Identity::always || is_set(c, field.member))
      add_to_fingerprint(state, fmt::format("{}={}\n", field.name, get_text(c, field)));
  }
  if (!c.eval_data.empty())
    add_to_fingerprint(
        state, fmt::format("held_out={} tokens={}\n", hex(definition.held_out).dump(), c.eval_tokens));
  for (const Stress& stress : definition.fidelity_stresses)
    add_to_fingerprint(state, fmt::format("fidelity_stress={}\n", to_text(stress)));
  for (const ConvertedLayers& reading : definition.readings) {
    const DefinitionPart none = part_of(Json::object());
    add_to_fingerprint(
        state, "reading=" + canonical_text({none, part_of(layers_record(reading)), none, none}) + "\n");
  }
  if (definition.refusal) add_to_fingerprint(state, fmt::format("refusal={}\n", *definition.refusal));
  return fmt::format("{:016x}", state);
}

void check_value(const Field& field, const std::string& text) {
  check_word(field, text);
  const std::string_view name = field.name;
  if (name == "model") model_of(text);
  if (name == "recipe") recipe_of(text);
}

DataOptions data_options(const Case& c, const ModelConfig& model) {
  return {c.data == kSynthetic ? "" : c.data,  c.glob, static_cast<std::uint64_t>(c.seed), model.vocab, c.seq,
          kSwitchWords.find(c.packing).value()};
}

DataOptions held_out_options(const Case& c, const ModelConfig& model) {
  return {c.eval_data, c.glob, 0, model.vocab, c.seq, kSwitchWords.find(c.packing).value()};
}

}  // namespace precbench
