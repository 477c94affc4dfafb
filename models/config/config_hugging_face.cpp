// A Hugging Face config.json: what its model_type leaves unsaid, what this program cannot model at all and refuses, and
// what it leaves out and says so. Source of the defaults: the configuration classes of transformers 4 and 5.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// What a key that is absent means depends on the model_type.
struct Family {
  const char* model_type;
  std::int64_t kv_heads;  ///< 0: as many as heads
  std::int64_t head_dim;  ///< 0: width / heads
  std::int64_t max_positions;
  std::int64_t sliding_window;  ///< 0: none unless use_sliding_window
  bool qkv_bias, qk_norm;
  std::vector<const char*> biases;  ///< keys that ask for others
  double rope_theta = 10000, norm_eps = 1e-6;
  QkNormOver qk_norm_over = QkNormOver::head;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"llama", 0, 0, 2048, 0, false, false, {"attention_bias", "mlp_bias"}},
      {"mistral", 8, 0, 131072, 4096, false, false, {}},
      {"qwen2", 32, 0, 32768, 0, true, false, {}},
      {"qwen3", 32, 128, 32768, 0, false, true, {"attention_bias"}},
      {"mixtral", 8, 0, 131072, 0, false, false, {}, 1e6, 1e-5},
      {"qwen3_moe", 4, 0, 32768, 0, false, true, {"attention_bias"}},
      {"olmoe", 0, 0, 4096, 0, false, true, {"attention_bias"}, 10000, 1e-5, QkNormOver::heads},
      {"deepseek_v2", 0, 0, 2048, 0, false, false, {"attention_bias", "mlp_bias"}},
      {"deepseek_v3", 0, 0, 4096, 0, false, false, {"attention_bias"}},
      {"llama4_text", 8, 128, 131072, 0, false, false, {"attention_bias"}, 500000, 1e-5},
  };
  return all;
}

constexpr std::int64_t kQwenWindow = 4096, kQwenFullLayers = 28;  // where use_sliding_window says no more

/// Keys that change no number of a training step, or that are read here.
const std::set<std::string> kKnown = {"_name_or_path",
                                      "architectures",
                                      "auto_map",
                                      "attention_bias",
                                      "attention_dropout",
                                      "bos_token_id",
                                      "dtype",
                                      "eos_token_id",
                                      "head_dim",
                                      "hidden_act",
                                      "hidden_size",
                                      "initializer_range",
                                      "intermediate_size",
                                      "layer_types",
                                      "max_position_embeddings",
                                      "max_window_layers",
                                      "mlp_bias",
                                      "model_type",
                                      "num_attention_heads",
                                      "num_hidden_layers",
                                      "num_key_value_heads",
                                      "original_max_position_embeddings",
                                      "pad_token_id",
                                      "partial_rotary_factor",
                                      "pretraining_tp",
                                      "rms_norm_eps",
                                      "rope_parameters",
                                      "rope_scaling",
                                      "rope_theta",
                                      "sliding_window",
                                      "tie_word_embeddings",
                                      "torch_dtype",
                                      "transformers_version",
                                      "unsloth_version",
                                      "use_cache",
                                      "use_sliding_window",
                                      "vocab_size"};

const Family& family_of(const json& object) {
  std::string model_type;
  read(object, "model_type", model_type);
  for (const auto& [type, why] :
       {std::pair{"gpt_oss", "its biases, attention sinks and clamped SwiGLU are not"},
        std::pair{"qwen2_moe", "its gated shared expert is not"},
        std::pair{"llama4", "its images are not; its text_config, in a file of its own, is a model that is"}})
    if (model_type == type)
      throw InvalidInput(fmt::format("model_type: \"{}\" is not supported: {}", model_type, why));
  std::vector<const char*> names;
  for (const Family& family : families()) {
    if (model_type == family.model_type) return family;
    names.push_back(family.model_type);
  }
  throw InvalidInput(
      fmt::format("model_type: \"{}\" is not supported; known: {}", model_type, fmt::join(names, ", ")));
}

/// What silence would turn into the measurement of another model.
void refuse_foreign(const json& object, const Family& family) {
  std::string activation = "silu";
  read(object, "hidden_act", activation);
  if (activation != "silu")
    throw InvalidInput(fmt::format("hidden_act: \"{}\" is not supported, only silu", activation));
  for (const char* key : family.biases) {
    bool asked = false;
    read(object, key, asked);
    if (asked)
      throw InvalidInput(
          fmt::format("{}: not supported; set it to false to measure the model without it", key));
  }
}

/// The window of the layers that have one; 0: none has.
std::int64_t sliding_window(const json& object, const Family& family, std::int64_t layers) {
  std::int64_t window = family.sliding_window;
  if (window != 0) {  // the family's every layer; null turns it off
    read(object, "sliding_window", window);
    return object.contains("sliding_window") && !given(object, "sliding_window") ? 0 : window;
  }
  bool used = false;
  read(object, "use_sliding_window", used);
  if (!used || (object.contains("sliding_window") && !given(object, "sliding_window"))) return 0;
  window = kQwenWindow;
  read(object, "sliding_window", window);
  if (const auto types = object.find("layer_types"); types != object.end() && types->is_array())
    return std::count(types->begin(), types->end(), "sliding_attention") ? window : 0;
  std::int64_t full_layers = kQwenFullLayers;
  if (object.value("max_window_layers", json()) == 0)
    full_layers = 0;
  else
    read(object, "max_window_layers", full_layers);
  return full_layers < layers ? window : 0;
}

void read_rope(const json& object, ModelConfig& config) {
  read(object, "rope_theta", config.rope_theta);
  double share = 1;
  read(object, "partial_rotary_factor", share);
  // Newer files keep all of RoPE, theta too, in rope_parameters; where both are there the older one counts.
  const auto asks = [&](const char* key) { return given(object, key) && !object.at(key).empty(); };
  if (const char* key = asks("rope_scaling") ? "rope_scaling" : "rope_parameters"; asks(key)) {
    json rope = object.at(key);
    if (!rope.is_object())
      throw InvalidInput(fmt::format("{}: expected an object, got {}", key, shown(rope)));
    if (given(object, "original_max_position_embeddings"))
      rope["original_max_position_embeddings"] = object.at("original_max_position_embeddings");
    const ReadRopeScaling found = rope_scaling_from_json(rope, config.max_positions);
    read(rope, "rope_theta", config.rope_theta);
    read(rope, "partial_rotary_factor", share);
    if (found.scaling)
      config.rope_scaling = *found.scaling;
    else
      config.not_modelled.push_back(
          fmt::format("{} {} is not applied: RoPE is plain", key,
                      shown(given(rope, "rope_type") ? rope.at("rope_type") : rope.value("type", json()))));
    for (const std::string& unknown : found.unknown)
      config.not_modelled.push_back(fmt::format("{}: {} is not known here and was left out", key, unknown));
  }
  if (share != 1)
    throw InvalidInput(fmt::format("partial_rotary_factor: {} is not supported, only 1", share));
}

/// What the file asks for and a step here does without.
void note_what_is_left_out(const json& object, ModelConfig& config) {
  double dropout = 0, deviation = kInitializerRange;
  read(object, "attention_dropout", dropout);
  if (dropout != 0) config.not_modelled.push_back(fmt::format("attention_dropout {} is left out", dropout));
  read(object, "initializer_range", deviation);
  if (deviation != kInitializerRange)
    config.not_modelled.push_back(
        fmt::format("initializer_range {}: fresh weights are made with {}", deviation, kInitializerRange));
  std::vector<std::string> unknown;
  for (const auto& [key, value] : object.items()) {
    const bool asks_nothing = value.is_null() || value == false || value == 0 || value == "" ||
                              (value.is_structured() && value.empty());
    const bool of_experts =
        config.moe && std::any_of(hugging_face_moe_keys().begin(), hugging_face_moe_keys().end(),
                                  [&, &name = key](const char* known) { return name == known; });
    if (!kKnown.count(key) && !asks_nothing && !of_experts) unknown.push_back(key);
  }
  constexpr std::size_t kShown = 8;
  const std::size_t all = unknown.size();
  if (all == 0) return;
  unknown.resize(std::min(all, kShown));
  config.not_modelled.push_back(fmt::format("keys that are not known here were left out: {}{}",
                                            fmt::join(unknown, ", "),
                                            all > kShown ? fmt::format(" and {} more", all - kShown) : ""));
}

}  // namespace

ModelConfig from_hugging_face(const json& object) {
  const Family& family = family_of(object);
  refuse_foreign(object, family);
  ModelConfig config;
  // The defaults of a config.json that says nothing, not ours: they are what its checkpoint was trained with.
  config.rope_theta = family.rope_theta;
  config.norm_eps = family.norm_eps;
  config.max_positions = family.max_positions;
  config.qkv_bias = family.qkv_bias;
  config.qk_norm = family.qk_norm;
  config.qk_norm_over = family.qk_norm_over;
  for (const DimensionKey& entry : kDimensions) read(object, entry.hugging_face, config.*entry.member);
  if (!object.contains("num_key_value_heads")) config.kv_heads = family.kv_heads;
  if (!object.contains("head_dim")) config.head_dim = family.head_dim;
  read(object, "tie_word_embeddings", config.tied);
  read(object, "rms_norm_eps", config.norm_eps);
  read(object, "max_position_embeddings", config.max_positions);
  config.sliding_window = sliding_window(object, family, config.layers);
  read_rope(object, config);
  if (hugging_face_has_experts(family.model_type)) read_hugging_face_moe(object, family.model_type, config);
  note_what_is_left_out(object, config);
  return config;
}

}  // namespace precbench::config_keys
