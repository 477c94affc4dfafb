// The language model of a multimodal config.json, and files of model_types that compute what another model_type computes: the
// rows "same" of families.json.

#include "models/config/hugging_face.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// Returns the model_type, which a file may name only by its class; then a warning says so.
std::string type_of(const json& object, std::vector<std::string>& warnings) {
  std::string model_type;
  read(object, "model_type", model_type);
  const json architectures = object.value("architectures", json());
  // Some files of GLM-4.5 have the model_type of the dense GLM.
  if (model_type == "glm" && architectures == json::array({"Glm4MoeForCausalLM"})) return "glm4_moe";
  if (!model_type.empty() || architectures.is_null()) return model_type;
  for (const char* rows : {"families", "same"})
    for (const json& row : family_file().at(rows))
      if (row.contains("class") && architectures == json::array({row.at("class")})) {
        const std::string type = row.at("model_type");
        warnings.push_back(fmt::format("model_type is missing: \"{}\" comes from architectures", type));
        return type;
      }
  return model_type;
}

/// Turns multimodal RoPE into RoPE: on text alone, the positions of time, height and width are equal, and so are the angles.
void replace_rope(json& object) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(object, key) || !object.at(key).is_object()) continue;
    json& rope = object.at(key);
    for (const char* type : {"type", "rope_type"})
      if (rope.value(type, json()) == "mrope") rope[type] = "default";
    rope.erase("mrope_section");
    rope.erase("mrope_interleaved");
  }
}

/// Changes keys of a file as a row says. A null default stays, because transformers does not replace it by the default. A file
/// that has both names of a renamed key keeps the other's value only if the first is null.
void translate(const json& row, json& object) {
  const auto part = [&](const char* name) -> const json& { return rule_of(row, name); };
  for (const auto& [key, value] : part("defaults").items())
    if (!object.contains(key)) object[key] = value;
  for (const auto& [key, value] : part("unless_given").items())
    if (!given(object, key.c_str())) object[key] = value;
  for (const json& rule : part("require")) {
    const std::string key = rule.at(0), what = rule.at(2);
    if (given(object, key.c_str()) && object.at(key) != rule.at(1))
      refuse("{}: {} is not supported; set it to {} to measure the model without", key, what,
             rule.at(1).dump());
  }
  for (const auto& [from, to] : part("rename").items()) {
    if (given(object, from.c_str())) object[to.get<std::string>()] = object.at(from);
    object.erase(from);
  }
  if (row.contains("rope_scaling") && !given(object, "rope_parameters") && !given(object, "rope_scaling"))
    object["rope_scaling"] = row.at("rope_scaling");
  if (row.contains("change")) change_file(row.at("change"), object);
  object.update(part("set"));
  for (const json& key : part("ignored")) object.erase(key.get<std::string>());
}

/// Reads a file whose model_type has a row, as that of the model_type with the same model.
void read_as_same(const json& row, const json& file, TextConfig& text, std::string& model_type) {
  if (row.contains("refused"))
    refuse("model_type: \"{}\" is not supported: {}", model_type, row.at("refused").get<std::string>());
  if (row.contains("language_model")) {
    if (!given(file, "text_config") && !given(file, "num_hidden_layers") && !given(file, "hidden_size"))
      refuse(
          "model_type: \"{}\" has its language model in text_config, or in older files at the top level, and this file "
          "in neither",
          model_type);
    if (row.value("mrope", false)) replace_rope(text.object);
    return void(model_type = row.at("language_model"));
  }
  translate(row, text.object);
  const std::string same = row.at("same_as");
  text.model = rule_of(row, "model");
  if (row.value("other_tensors", false))
    text.warnings.push_back(fmt::format(
        "read as model_type \"{}\"; checkpoints of \"{}\" have other tensors, which --init-from does not read",
        same, model_type));
  model_type = same;
}

}  // namespace

TextConfig text_config_of(const json& file) {
  TextConfig text{file, {}};
  std::string model_type = type_of(file, text.warnings);
  for (const char* part : kTextConfigs) {
    if (!given(file, part)) continue;
    if (!file.at(part).is_object()) refuse("{}: expected an object, got {}", part, shown(file.at(part)));
    text.object = file.at(part);
    const std::string own = type_of(text.object, text.warnings);
    if (!own.empty()) model_type = own;
    if (const Family* family = find_family(model_type))  // LLaVA leaves out dimensions
      for (const auto& [key, value] : rule_of(family->row, "wrapper_defaults").items())
        if (!given(text.object, key.c_str())) text.object[key] = value;
    for (const char* outer : {"tie_word_embeddings", "quantization_config"})
      if (given(file, outer)) text.object[outer] = file.at(outer);
    text.warnings.push_back(fmt::format("{} alone is read: the model without images, sound and video", part));
    break;
  }
  for (const json& row : family_file().at("same"))
    if (row.at("model_type") == model_type) {
      read_as_same(row, file, text, model_type);
      break;
    }
  if (!model_type.empty()) text.object["model_type"] = model_type;
  return text;
}

}  // namespace precbench::config_keys
