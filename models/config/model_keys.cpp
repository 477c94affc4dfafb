// Reads and writes a model under our own keys. See model_keys.h.
#include "models/config/model_keys.h"

#include <algorithm>
#include <type_traits>

#include "models/config/config_keys.h"
#include "models/config/tensor_layout.h"

namespace precbench {
namespace config_keys {
namespace {

using nlohmann::json;

// clang-format off
constexpr EnumNames<QkNormOver, 2> names_of(QkNormOver) { return {{"head", "heads"}}; }
constexpr EnumNames<RouterScore, 2> names_of(RouterScore) { return {{"softmax", "sigmoid"}}; }
constexpr EnumNames<GroupScore, 2> names_of(GroupScore) { return {{"max", "top2"}}; }
constexpr EnumNames<WeightAt, 2> names_of(WeightAt) { return {{"swiglu", "input"}}; }
constexpr EnumNames<ExpertNames, 6> names_of(ExpertNames) { return {{"qwen3", "mixtral", "llama4", "qwen2", "ernie4_5", "gpt_oss"}}; }
constexpr EnumNames<NormPlace, 3> names_of(NormPlace) { return {{"before", "after", "both"}}; }
constexpr EnumNames<Activation, 4> names_of(Activation) { return {{"silu", "gelu_tanh", "gelu", "relu2"}}; }
constexpr EnumNames<NormNames, 2> names_of(NormNames) { return {{"gemma", "glm4"}}; }
constexpr EnumNames<RopePairs, 2> names_of(RopePairs) { return {{"halves", "interleaved"}}; }
constexpr EnumNames<NormKind, 2> names_of(NormKind) { return {{"rms", "layer"}}; }
constexpr EnumNames<Residual, 3> names_of(Residual) { return {{"sequential", "parallel", "parallel_one_norm"}}; }
// clang-format on

template <class Value>
void read_member(const json& object, const char* key, Value& to) {
  if constexpr (std::is_enum_v<Value>) {
    read(object, key, to, names_of(to));
  } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
    if (!given(object, key)) return;
    const json& list = object.at(key);
    const auto is_layer = [](const json& layer) {
      return layer.is_number_integer() && layer >= 0 && layer < kMaxDimension;
    };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_layer))
      refuse("{}: expected a list of layers from 0 on, got {}", key, shown(list));
    to = list.get<Value>();
  } else {
    read(object, key, to);
  }
}

/// Reads the name of a layout of tensors.
void read_member(const json& object, const char* key, std::string& to) {
  read(object, key, to);
  if (tensor_layout(to).name == to) return;
  std::vector<std::string> names;
  for (const TensorLayout& layout : tensor_layouts()) names.push_back(layout.name);
  refuse("{}: \"{}\" is none of {}", key, to, fmt::join(names, ", "));
}

void read_group(Keys group, const json& object, ModelConfig& config) {
  each_key(group, config, [&](const char* key, auto& member) {
    // Read 0 as none; validation refuses a 0 that is not allowed.
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::int64_t>)
      if (group == Keys::experts && object.contains(key) && object.at(key) == 0) return void(member = 0);
    read_member(object, key, member);
  });
}

}  // namespace

json all_keys(const ModelConfig& config) {
  json object;
  for (const Keys group : kAllKeys)
    each_key(group, config, [&](const char* key, const auto& member) {
      if constexpr (std::is_enum_v<std::decay_t<decltype(member)>>)
        object[key] = names_of(member).of(member);
      else
        object[key] = member;
    });
  return object;
}

void read_own_keys(const json& object, ModelConfig& config) {
  for (const Keys group : kAllKeys) read_group(group, object, config);
}

ModelConfig from_own_keys(const json& object) {
  std::vector<std::string> known = {"name", "rope_scaling", "cuts"};
  const json keys = all_keys({});
  for (const auto& [key, value] : keys.items()) known.push_back(key);
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    refuse("{}: unknown key{}", key, near.empty() ? "" : "; did you mean " + near + "?");
  }
  ModelConfig config;
  read(object, "name", config.name);
  read(object, "cuts", config.cuts);
  for (const Keys group : {Keys::dimensions, Keys::attention, Keys::numbers})
    read_group(group, object, config);
  if (given(object, "rope_scaling")) {
    const ReadRopeScaling found = rope_scaling_from_json(object.at("rope_scaling"), config.max_positions);
    if (!found.scaling)
      throw InvalidInput("rope_scaling: rope_type is default, linear, llama3, yarn or longrope");
    if (!found.unknown.empty()) refuse("rope_scaling: {}: unknown key", found.unknown.front());
    config.rope_scaling = *found.scaling;
  }
  for (const Keys group : {Keys::experts, Keys::block, Keys::latent}) read_group(group, object, config);
  config.original_context_only |= config.rope_scaling.kind == RopeScaling::Kind::longrope;
  return config;
}

}  // namespace config_keys

nlohmann::json model_to_json(const ModelConfig& config) {
  using nlohmann::json;
  using namespace config_keys;
  // Defaults are omitted, except these.
  const std::vector<std::string> always = {"layers",   "width",    "ffn",        "heads",
                                           "kv_heads", "head_dim", "vocab",      "tied",
                                           "qk_norm",  "qkv_bias", "rope_theta", "norm_eps"};
  json object = all_keys(config);
  const json defaults = all_keys({});
  for (const auto& [key, value] : defaults.items()) {
    const bool kept = std::find(always.begin(), always.end(), key) != always.end() ||
                      (config.moe && (key == "score" || key == "normalise"));
    if (!kept && object[key] == value) object.erase(key);
  }
  if (!config.moe) each_key(Keys::experts, config, [&](const char* key, const auto&) { object.erase(key); });
  object["name"] = config.name;
  if (config.rope_scaling.kind != RopeScaling::Kind::none)
    object["rope_scaling"] = rope_scaling_to_json(config.rope_scaling);
  if (!config.cuts.empty()) object["cuts"] = config.cuts;
  return object;
}

}  // namespace precbench
