// Reads a Hugging Face config.json by the row of its family. Source of the rows: the configuration classes of transformers 4 and
// 5, or the modeling files in the models' own repositories if transformers has no class for them.
#include "models/config/hugging_face.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "models/config/model_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr std::int64_t kQwenWindow = 4096, kQwenFullLayers = 28;  // defaults of Qwen with use_sliding_window

const Family& family_of(const json& object) {
  std::string model_type;
  read(object, "model_type", model_type);
  if (const Family* known = find_family(model_type)) return *known;
  if (!model_type.empty()) throw InvalidInput(unsupported_type(object, model_type));
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.model_type);
  refuse("model_type: missing; known: {}", fmt::join(names, ", "));
}

/// Reads a key of the file, `theirs`, into the member of our key. A null of some keys switches them off.
void read_value(const json& object, std::string_view ours, const std::string& theirs, std::int64_t& to) {
  const auto found = object.find(theirs);
  const bool null = found != object.end() && found->is_null();
  if (null && ours == "q_lora_rank") to = 0;
  if (ours == "dense_layers" && (null || (found != object.end() && *found == 0))) return void(to = 0);
  read(object, theirs.c_str(), to);
}

void read_value(const json& object, std::string_view ours, const std::string& theirs, double& to) {
  if (theirs.starts_with("1/")) {
    double divisor = 1 / to;
    read(object, theirs.c_str() + 2, divisor);
    to = 1 / divisor;
  } else {
    if (ours.ends_with("_softcap") && object.contains(theirs)) to = given(object, theirs.c_str()) ? to : 0;
    read(object, theirs.c_str(), to);
  }
}

/// Reads the keys of a group that the family's files have names for.
void read_group(Keys group, const json& object, const Family& family, ModelConfig& config) {
  // DeepSeek chooses experts in groups unless it is greedy.
  std::string method = group == Keys::experts ? family.row.value("topk_method", "") : "";
  if (!method.empty()) read(object, "topk_method", method);
  const bool greedy = method == "greedy";
  each_key(group, config, [&](const char* ours, auto& member) {
    using Member = std::decay_t<decltype(member)>;
    const auto found = family.names.find(ours);
    if (found == family.names.end() || (greedy && std::string_view(ours).starts_with("group"))) return;
    const std::string theirs = family.name_in(object, found->second);
    if constexpr (std::is_same_v<Member, std::int64_t> || std::is_same_v<Member, double>)
      read_value(object, ours, theirs, member);
    else if constexpr (std::is_same_v<Member, bool>)
      read(object, theirs.c_str(), member);
  });
}

void read_dimensions(const json& object, const Family& family, ModelConfig& config) {
  // Null means as many as heads and the width by the heads, not the default.
  if (object.contains("num_key_value_heads")) config.kv_heads = 0;
  if (object.contains("head_dim")) config.head_dim = 0;
  read_group(Keys::dimensions, object, family, config);
  read_group(Keys::numbers, object, family, config);
  if (!config.latent) return;
  if (object.contains("kv_lora_rank") && !given(object, "kv_lora_rank"))
    refuse("kv_lora_rank: null, but a {} has latent attention (MLA)", family.model_type);
  read_group(Keys::latent, object, family, config);
  // The head_dim of a file is the width of the RoPE part in transformers 5.
  config.head_dim = length(object, "qk_nope_head_dim", 128) + config.latent.rope_dim;
}

/// Returns a test for local layers from a pattern of L and G that repeats, or from the period of layers without a window.
std::function<bool(std::int64_t layer)> local_by_pattern(const json& object, const json& window,
                                                         std::int64_t layers) {
  std::string pattern = window.at("layers");
  const std::string key = window.value("pattern", "");
  const auto found = key.empty() ? object.end() : object.find(key);
  const bool letters = found != object.end() && found->is_string() && window.value("letters", false);
  if (letters) {
    pattern = found->get<std::string>();
    if (pattern.empty() || pattern.find_first_not_of("LG") != pattern.npos)
      refuse("{}: expected a number or letters L and G, got {}", key, shown(*found));
  } else if (!key.empty()) {
    const std::int64_t period = length(object, key, static_cast<std::int64_t>(pattern.size()));
    return [=](std::int64_t layer) { return (layer + 1) % period != 0; };
  }
  // The last layer of a file with letters has no window, whatever its letter.
  return [=](std::int64_t layer) {
    return !(letters && layer + 1 == layers) &&
           pattern[static_cast<std::size_t>(layer) % pattern.size()] == 'L';
  };
}

/// Reads the window of all layers or, for Qwen 2 and 3, of those behind the first ones.
void read_window(const json& object, const Family& family, ModelConfig& config) {
  const json& window = rule_of(family.row, "window");
  const bool off = object.contains("sliding_window") && !given(object, "sliding_window");
  if (window.contains("default")) {
    if (!off) config.sliding_window = window.at("default");
    return read(object, "sliding_window", config.sliding_window);
  }
  bool used = false;
  read(object, "use_sliding_window", used);
  if (!used || off || (window.value("if_given", false) && !given(object, "sliding_window"))) return;
  config.sliding_window = length(object, "sliding_window", kQwenWindow);
  if (!window.contains("full_layers")) return;
  const std::string key = window.at("full_layers");
  const std::int64_t full = object.value(key, json()) == 0 ? 0 : length(object, key, kQwenFullLayers);
  read_local_layers(
      object, [=](std::int64_t layer) { return layer >= full; }, config);
}

/// Reads the angles of local layers, whose base is `theta` by default.
void read_local_rope(const json& object, double theta, ModelConfig& config) {
  read(object, "rope_local_base_freq", theta);
  const json& local = rule_of(rule_of(object, "rope_parameters"), kSlidingAttention);
  read(local, "rope_theta", theta);
  const json type = local.is_object() ? local.value("rope_type", json("default")) : json("default");
  if (type != "default")
    refuse("rope_parameters: {}: rope_type {} is not supported; \"default\" is", kSlidingAttention,
           shown(type));
  if (config.sliding_window > 0) config.block.local_rope_theta = theta;
}

/// Reads which layers have the window, and which of these have RoPE.
void read_layers_with_window(const json& object, const Family& family, ModelConfig& config) {
  const json& window = rule_of(family.row, "window");
  const std::string rope = window.value("rope", "");  // "local": layers without a window have none
  if (!window.contains("layers") || (rope == "local_if_any" && config.sliding_window == 0)) return;
  read_local_layers(object, local_by_pattern(object, window, config.layers), config);
  for (std::int64_t layer = 0; !rope.empty() && layer < config.layers; ++layer)
    if (config.window(layer) == 0) config.block.layers_without_rope.push_back(layer);
  const json theta = window.value("local_rope", json());
  if (theta.is_null()) return;
  read_local_rope(object, theta.is_number() ? theta.get<double>() : config.rope_theta, config);
  // OLMo 3's local layers have the base of the others, and are never scaled.
  if (!theta.is_number() && config.rope_scaling == RopeScaling{} &&
      config.block.local_rope_theta == config.rope_theta)
    config.block.local_rope_theta = 0;
}

/// Sets DeepSeek's scale of attention's scores, which grows with the context of YaRN.
void read_attention_scale(const RopeKeys& rope, ModelConfig& config) {
  double all_dim = 0;
  read(rope.values, "mscale_all_dim", all_dim);
  if (config.rope_scaling.kind != RopeScaling::Kind::yarn || all_dim == 0) return;
  const double temperature = yarn_temperature(config.rope_scaling.factor, all_dim);
  config.block.attention_scale = temperature * temperature / std::sqrt(static_cast<double>(config.head_dim));
}

void read_rope(const json& object, const RopeKeys& rope, const Family& family, ModelConfig& config) {
  read(object, "rope_theta", config.rope_theta);
  const json& rules = rule_of(family.row, "rope");
  if (rules.contains("theta")) read(object, rules.at("theta").get<std::string>().c_str(), config.rope_theta);
  if (!rope.key) return;
  read(rope.values, "rope_theta", config.rope_theta);
  if (rope.dynamic()) {
    config.dynamic_rope = true;
    config.not_modelled.push_back(fmt::format(
        "{} \"dynamic\" is not applied: longer sequences than {} (max_position_embeddings) are unsupported",
        rope.key, config.max_positions));
    return;
  }
  const ReadRopeScaling found = rope_scaling_from_json(rope.values, config.max_positions);
  config.rope_scaling = *found.scaling;
  config.original_context_only = config.rope_scaling.kind == RopeScaling::Kind::longrope;
  for (const std::string& unknown : found.unknown)
    if (unknown == "llama_4_scaling_beta" && config.rope_scaling.original_context > 0)
      config.original_context_only = true;  // a scale of the queries from there on
    else
      config.not_modelled.push_back(
          fmt::format("{}: {} is not known here and was left out", rope.key, unknown));
  if (config.latent) read_attention_scale(rope, config);
}

/// Reads the number of a head's elements that rotate, rounded as transformers does, if the family's can be a part.
void read_rotary_dim(const json& object, const RopeKeys& rope, const Family& family, ModelConfig& config) {
  if (!family.row.contains("rotary")) return;
  const bool known = config.head_dim > 0 || config.heads == 0;
  const std::int64_t head = known ? config.head_dim : config.width / config.heads;
  double share = family.row.at("rotary");
  if (family.reads("rotary_pct")) read(object, "rotary_pct", share);
  share = rope.share(object, share);
  if (!std::isfinite(share) || share <= 0 || share > 1)
    refuse("partial_rotary_factor: must be above 0 and at most 1, got {}", share);
  std::int64_t rotary = static_cast<std::int64_t>(static_cast<double>(head) * share);
  if (family.reads("rotary_dim") && !given(object, "partial_rotary_factor"))
    read(object, "rotary_dim", rotary);
  config.block.rotary_dim = rotary == head ? 0 : rotary;
}

/// Sets the number of first layers without experts from a list of them. Throws InvalidInput if the list has others.
void read_dense_list(const json& object, const std::string& key, ModelConfig& config) {
  if (!given(object, key.c_str())) return;
  std::int64_t next = 0;
  const json& list = object.at(key);
  for (const json& layer : list.is_array() ? list : json::array({list}))
    if (layer != next++)
      refuse("{}: {} has a layer without experts between others, which is not supported", key, shown(list));
  config.moe.dense_layers = next;
}

void read_experts(const json& object, const Family& family, ModelConfig& config) {
  const json& row = family.row;
  if (row.contains("without_experts"))
    if (const std::string key = family.name_in(object, family.names.at("experts"));
        object.value(key, json()) == 0)
      refuse("{}: 0 is {}", key, row.at("without_experts").get<std::string>());
  read_group(Keys::experts, object, family, config);
  if (row.contains("shared_experts")) {
    const std::string key = row.at("shared_experts").at(0);
    const auto found = object.find(key);
    const bool none = found != object.end() && (found->is_null() || *found == 0);
    config.moe.shared_ffn =
        none ? 0 : config.moe.expert_ffn * length(object, key, row.at("shared_experts").at(1));
  }
  if (row.contains("dense_list")) read_dense_list(object, row.at("dense_list"), config);
}

/// Reads the activation under the names of the family's files.
void read_activation(const json& object, const Family& family, ModelConfig& config) {
  if (!family.row.contains("activation")) return;
  const json& rule = family.row.at("activation");
  static const json usual = {{"gelu_new", "gelu_tanh"},  {"gelu_pytorch_tanh", "gelu_tanh"},
                             {"gelu_fast", "gelu_tanh"}, {"gelu", "gelu"},
                             {"silu", "silu"},           {"relu2", "relu2"}};
  const json names = rule.value("names", usual);
  const std::string key = family.name_in(object, rule.at("key"));
  std::string name = rule.at("default");
  read(object, key.c_str(), name);
  if (!names.contains(name) || (config.block.gated && name == "relu2"))
    refuse("{}: \"{}\" is not supported; {}", key, name,
           rule.contains("names") ? "gelu_pytorch_tanh, gelu and silu are"
                                  : rule.at("default").get<std::string>() + " is the model_type's");
  read_own_keys({{"activation", names.at(name)}}, config);
}

}  // namespace

RopeKeys::RopeKeys(const json& object, const Family& family) {
  const json& rules = rule_of(family.row, "rope");
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (given(object, name) && !object.at(name).empty()) key = name;
  if (!key && rules.contains("default")) {
    key = "rope_parameters";
    values = rules.at("default");
  } else if (key) {
    values = object.at(key);
  }
  if (!key) return;
  if (!values.is_object()) refuse("{}: expected an object, got {}", key, shown(values));
  if (given(object, "original_max_position_embeddings"))
    values["original_max_position_embeddings"] = object.at("original_max_position_embeddings");
  const json& types = rule_of(rules, "types");
  for (const char* name : {"type", "rope_type"})
    if (const json type = values.value(name, json());
        type.is_string() && types.contains(type.get<std::string>()))
      values[name] = types.at(type.get<std::string>());
  if (rules.contains("original_context") && !given(values, "original_max_position_embeddings"))
    values["original_max_position_embeddings"] = rules.at("original_context");
  const json& parameters = rule_of(object, "rope_parameters");
  if (!rules.value("by_layer_type", false) ||
      (!parameters.contains(kFullAttention) && !parameters.contains(kSlidingAttention)))
    return;
  // Takes the angles of layers with full attention from an object for each type; rope_scaling adds to them.
  json full = parameters.value(kFullAttention, json::object());
  if (!full.is_object())
    refuse("rope_parameters: {}: expected an object, got {}", kFullAttention, shown(full));
  if (std::string_view(key) == "rope_scaling") full.update(values);
  values = full;
}

double RopeKeys::share(const json& object, double otherwise) const {
  read(object, "partial_rotary_factor", otherwise);
  read(values, "partial_rotary_factor", otherwise);
  return otherwise;
}

std::int64_t length(const json& object, const std::string& key, std::int64_t otherwise) {
  read(object, key.c_str(), otherwise);
  return otherwise;
}

std::vector<std::string> layer_types(const json& object, std::int64_t layers,
                                     const std::vector<std::string>& types) {
  if (!given(object, "layer_types")) return {};
  const json& list = object.at("layer_types");
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) != layers)
    refuse("layer_types: expected the type of each of {} layers, got {}", layers, shown(list));
  for (const json& type : list)
    if (std::none_of(types.begin(), types.end(), [&](const std::string& known) { return type == known; }))
      refuse("layer_types: {} is neither {} nor {}", shown(type), types.at(0), types.at(1));
  return list.get<std::vector<std::string>>();
}

void read_local_layers(const json& object, const std::function<bool(std::int64_t layer)>& is_local,
                       ModelConfig& config) {
  const bool listed = given(object, "layer_types");
  const std::vector<std::string> types =
      layer_types(object, config.layers, {kSlidingAttention, kFullAttention});
  std::vector<std::int64_t>& local = config.block.local_layers;
  for (std::int64_t layer = 0; config.sliding_window > 0 && layer < config.layers; ++layer)
    if (listed ? types[static_cast<std::size_t>(layer)] == kSlidingAttention : is_local(layer))
      local.push_back(layer);
  if (local.empty()) config.sliding_window = 0;
  if (static_cast<std::int64_t>(local.size()) == config.layers) local.clear();
}

KeyNames hugging_face_names(const json& object) {
  const Family& family = family_of(object);
  std::map<std::string, std::string> names = family_file().at("every_family").at("names_in_errors");
  for (const auto& [ours, theirs] : family.names)
    names[ours] = family.name_in(object, theirs.starts_with("1/") ? theirs.substr(2) : theirs);
  return {names};
}

ModelConfig from_hugging_face(const json& object) {
  const Family& family = family_of(object);
  check_aliases(object, family);
  ModelConfig config;
  // Defaults of the model_type instead of ours, because its checkpoint was trained with them.
  read_own_keys(family.model, config);
  read_dimensions(object, family, config);
  const RopeKeys rope(object, family);
  refuse_other_models(object, family, rope, config);
  check_quantization(object, family.model_type);
  if (!config.latent) read_window(object, family, config);
  read_rope(object, rope, family, config);
  read_rotary_dim(object, rope, family, config);
  read_experts(object, family, config);
  read_group(Keys::attention, object, family, config);
  read_group(Keys::block, object, family, config);
  for (const auto& [key, choice] : rule_of(family.row, "choices").items()) {
    bool chosen = choice.at(0);
    read(object, key.c_str(), chosen);
    read_own_keys(choice.at(chosen ? 1 : 2), config);
  }
  read_activation(object, family, config);
  read_layers_with_window(object, family, config);
  for (const json& form : rule_of(family.row, "forms")) read_form(form, object, family, config);
  note_what_is_left_out(object, family, config);
  return config;
}

}  // namespace precbench::config_keys
