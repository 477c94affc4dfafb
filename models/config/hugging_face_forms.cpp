// Readers of the form of a block, and changes of files into those of another model_type: for what the rows of families cannot
// say as data. Source: as hugging_face.cpp.
#include <algorithm>
#include <cmath>
#include <map>

#include "models/config/hugging_face.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr const char* kChunkedAttention = "chunked_attention";
constexpr std::int64_t kNoRopeInterval = 4;  // SmolLM3, Llama 4: every fourth layer has no RoPE

/// Reads the layers without RoPE: a list with 1 for a layer with RoPE, or every n-th. For Llama 4 an empty list is as good as none.
void read_layers_without_rope(const json& object, const Family& family, ModelConfig& config) {
  const std::int64_t interval = length(object, "no_rope_layer_interval", kNoRopeInterval);
  const bool listed = given(object, "no_rope_layers") &&
                      !(family.model_type == "llama4_text" && object.at("no_rope_layers") == json::array());
  const json list = listed ? object.at("no_rope_layers") : json::array();
  if (listed && (!list.is_array() || static_cast<std::int64_t>(list.size()) < config.layers))
    refuse("no_rope_layers: expected 0 or 1 for each of {} layers, got {}", config.layers, shown(list));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const json with_rope =
        listed ? list.at(static_cast<std::size_t>(layer)) : json((layer + 1) % interval != 0 ? 1 : 0);
    if (with_rope != 0 && with_rope != 1) refuse("no_rope_layers: {} is neither 0 nor 1", shown(with_rope));
    if (with_rope == 0) config.block.layers_without_rope.push_back(layer);
  }
}

/// SmolLM3 has its window in the layers without RoPE.
void read_windows_without_rope(const json& object, const Family&, ModelConfig& config) {
  if (config.sliding_window > 0)
    read_local_layers(
        object, [&](std::int64_t layer) { return !config.has_rope(layer); }, config);
}

/// Reads the chunks of Llama 4's attention, which layers with RoPE have unless layer_types says otherwise, and the temperature of
/// those without.
void read_llama4(const json& object, const Family&, ModelConfig& config) {
  BlockForm& block = config.block;
  const std::int64_t chunk = length(object, "attention_chunk_size", 8192);
  const bool off = object.contains("attention_chunk_size") && !given(object, "attention_chunk_size");
  const auto is_chunked = [&] {
    if (!given(object, "layer_types"))
      return static_cast<std::int64_t>(block.layers_without_rope.size()) < config.layers;
    const std::vector<std::string> types =
        layer_types(object, config.layers, {kChunkedAttention, kFullAttention});
    return std::find(types.begin(), types.end(), kChunkedAttention) != types.end();
  };
  if (!off && is_chunked()) config.unchunked_positions = chunk;
  // Older files have a number here instead of true.
  const auto tuning = object.find("attn_temperature_tuning");
  if ((tuning != object.end() && asks_nothing(*tuning)) || block.layers_without_rope.empty()) return;
  block.temperature = 0.1;
  read(object, "attn_scale", block.temperature);
  const std::int64_t positions = length(object, "floor_scale", 8192);
  block.temperature_positions = block.temperature == 0 ? 0 : positions;
}

/// Only every n-th layer of a Llama 4 has experts, and then the others have a width of their own.
void read_llama4_experts(const json& object, const Family&, ModelConfig& config) {
  if (config.moe.layer_interval > 1) config.ffn = length(object, "intermediate_size_mlp", 16384);
  if (given(object, "moe_layers") && object.at("moe_layers") != json(config.layers_with_experts()))
    refuse("moe_layers: {}: only every n-th layer, as interleave_moe_layer_step says, can have experts",
           shown(object.at("moe_layers")));
}

void check_last_layers_have_experts(const json& object, const Family&, ModelConfig& config) {
  const json last = object.value("moe_layer_end_index", json());
  if (!last.is_null() && last != -1 && last != config.layers - 1)
    refuse("moe_layer_end_index: {} leaves last layers without experts, which is not supported", shown(last));
}

/// Transformers does not read these keys: as many heads of keys and values as of queries, of width / heads.
void check_own_heads(const json& object, const Family& family, ModelConfig& config) {
  for (const auto& [key, equal] : {std::pair("num_key_value_heads", config.kv_heads == config.heads),
                                   std::pair("head_dim", config.head_dim * config.heads == config.width)})
    if (given(object, key) && !equal)
      refuse("{}: no {} has other heads than its number of heads and its width say", key, family.model_type);
}

/// Reads how many elements of a head of GPT-J rotate: null is all.
void read_gptj_rotary(const json& object, const Family&, ModelConfig& config) {
  const std::int64_t head = config.heads > 0 ? config.width / config.heads : 0;
  const bool all = object.contains("rotary_dim") && !given(object, "rotary_dim");
  const std::int64_t rotary = all ? head : length(object, "rotary_dim", 64);
  config.block.rotary_dim = rotary == head ? 0 : rotary;
}

/// Reads the number by whose root Gemma 2 and 3 divide scores.
void read_query_scale(const json& object, const Family&, ModelConfig& config) {
  double scalar = 256;
  read(object, "query_pre_attn_scalar", scalar);
  if (!std::isfinite(scalar) || scalar <= 0)
    refuse("query_pre_attn_scalar: must be a positive number, got {}", scalar);
  if (scalar != static_cast<double>(config.head_dim)) config.block.attention_scale = 1 / std::sqrt(scalar);
}

/// Sets a key that is absent or null.
void set_default(json& object, const char* key, const json& value) {
  if (!given(object, key)) object[key] = value;
}

std::int64_t dimension(const json& object, const char* key) {
  const std::int64_t value = length(object, key, 0);
  if (value == 0) refuse("{}: missing; a model needs it", key);
  return value;
}

/// MiniCPM is a Llama with Granite's factors.
void change_minicpm(json& object) {
  double embedding = 1, depth = 1, base = 1;
  read(object, "scale_emb", embedding);
  read(object, "scale_depth", depth);
  read(object, "dim_model_base", base);
  const auto layers = static_cast<double>(dimension(object, "num_hidden_layers"));
  const std::int64_t width = dimension(object, "hidden_size"),
                     head_dim = length(object, "head_dim", width / dimension(object, "num_attention_heads"));
  if (!std::isfinite(base) || base <= 0) refuse("dim_model_base: must be a positive number, got {}", base);
  object["embedding_multiplier"] = embedding;
  object["residual_multiplier"] = depth / std::sqrt(layers);
  object["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(head_dim));
  object["logits_scaling"] = static_cast<double>(width) / base;
}

/// Orion is a Llama with LayerNorm, as a StableLM that rotates whole heads.
void change_orion(json& object) {
  set_default(object, "num_key_value_heads", dimension(object, "num_attention_heads"));
}

/// The first form of Phi-1.5 and Phi-2 has the number of elements that rotate instead of their share.
void change_phi(json& object) {
  const std::int64_t width = dimension(object, "hidden_size");
  set_default(object, "intermediate_size", 4 * width);
  const std::int64_t rotary = length(object, "rotary_dim", 32);
  object["partial_rotary_factor"] =
      static_cast<double>(rotary) / static_cast<double>(width / dimension(object, "num_attention_heads"));
}

/// The first Qwen is a Qwen2 with as many key heads as heads and half the stated width of the MLP. Within seq_length
/// neither the dynamic RoPE nor the logarithmic scale of its queries does anything.
void change_qwen(json& object) {
  object["intermediate_size"] = dimension(object, "intermediate_size") / 2;
  object["num_key_value_heads"] = dimension(object, "num_attention_heads");
  if (object.value("use_dynamic_ntk", json(true)) == true)
    object["rope_scaling"] = {{"type", "dynamic"}, {"factor", 1.0}};
}

/// GLM-4.7-Flash is a DeepSeek-V3. Its list of MLPs gives the layers without experts, which must come first.
void change_glm4_moe_lite(json& object) {
  if (!given(object, "mlp_layer_types")) return;
  const json& types = object.at("mlp_layer_types");
  std::size_t dense = 0;
  while (types.is_array() && dense < types.size() && types.at(dense) == "dense") ++dense;
  if (!types.is_array() || std::any_of(types.begin() + static_cast<std::ptrdiff_t>(dense), types.end(),
                                       [](const json& type) { return type != "sparse"; }))
    refuse("mlp_layer_types: {}: expected \"dense\" for the first layers and \"sparse\" for all after them",
           shown(types));
  object["first_k_dense_replace"] = dense;
}

/// dots.llm1 is a GLM-4.5 with a QK-norm that rotates whole heads.
void change_dots1(json& object) {
  dimension(object, "n_routed_experts");
  dimension(object, "num_experts_per_tok");
  const std::int64_t layers = dimension(object, "num_hidden_layers"),
                     full_layers = length(object, "max_window_layers", 62);  // without a window
  const json types = object.value("layer_types", json());
  const bool listed = types.is_array() && !types.empty();
  if (listed ? std::find(types.begin(), types.end(), kSlidingAttention) != types.end()
             : given(object, "sliding_window") && full_layers < layers)
    throw InvalidInput(
        "sliding_window: windows of this model_type are not supported; set it to null to measure the model without");
}

/// Granite 4.0 without Mamba and experts is a Granite whose MLP is the shared expert.
void change_granite_hybrid(json& object) {
  const json types = object.value("layer_types", json());
  json other = "mamba";  // the default of all layers
  if (types.is_array() && !types.empty()) {
    const auto found = std::find_if(types.begin(), types.end(), [](const json& type) {
      return type != "attention" && type != kFullAttention;
    });
    other = found == types.end() ? json() : *found;
  }
  if (!other.is_null())
    refuse(
        "layer_types: {} layers (Mamba-2) are not supported; of Granite 4.0 the models without \"H\" in their "
        "names have none",
        shown(other));
  if (const json experts = object.value("num_local_experts", json(8)); experts != 0)
    refuse(
        "num_local_experts: {}: experts beside a shared MLP without a gate are not supported; set it to 0 to "
        "measure the model without",
        shown(experts));
  if (const json positions = object.value("position_embedding_type", json()); positions != "rope")
    refuse(
        "position_embedding_type: {}: a model of this type without RoPE is not supported; set it to \"rope\"",
        shown(positions));
}

/// InternLM 3 is a Llama. `bias` is that of o and the MLP, qkv_bias that of q, k and v.
void change_internlm3(json& object) {
  if (object.value("attention_bias", json(false)) == true && object.value("mlp_bias", json(false)) != true)
    throw InvalidInput(
        "qkv_bias: biases on q, k and v alone are not supported; set it to false to measure the model without");
}

/// Hunyuan is a Qwen3 whose QK-norm comes after RoPE. A fixed `alpha` stretches RoPE's base, whatever the type.
void change_hunyuan(json& object) {
  double theta = 10000;
  read(object, "rope_theta", theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(object, key) || !object.at(key).is_object()) continue;
    json& rope = object.at(key);
    read(rope, "rope_theta", theta);
    double alpha = 0;
    read(rope, "alpha", alpha);
    if (rope.value("rope_type", rope.value("type", json())) != "dynamic" || alpha == 0) continue;
    const std::int64_t head = length(
        object, "head_dim", dimension(object, "hidden_size") / dimension(object, "num_attention_heads"));
    if (!std::isfinite(alpha) || alpha < 0 || head <= 2)
      refuse("{}: alpha: must be a positive number, got {}", key, alpha);
    const double dim = static_cast<double>(head);
    rope = {{"rope_type", "default"}, {"rope_theta", theta * std::pow(alpha, dim / (dim - 2))}};
  }
}

}  // namespace

void read_form(const std::string& form, const json& object, const Family& family, ModelConfig& config) {
  static const std::map<std::string, void (*)(const json&, const Family&, ModelConfig&)> readers = {
      {"layers_without_rope", read_layers_without_rope},
      {"windows_without_rope", read_windows_without_rope},
      {"llama4", read_llama4},
      {"llama4_experts", read_llama4_experts},
      {"last_layers_have_experts", check_last_layers_have_experts},
      {"positive_swiglu_limit",
       [](const json&, const Family&, ModelConfig& c) {
         if (c.moe.swiglu_limit <= 0)
           refuse("swiglu_limit: must be a positive number, got {}", c.moe.swiglu_limit);
       }},
      {"own_heads", check_own_heads},
      {"ffn_by_width",
       [](const json&, const Family&, ModelConfig& c) { c.ffn = c.ffn == 0 ? 4 * c.width : c.ffn; }},
      {"one_key_head", [](const json&, const Family&, ModelConfig& c) { c.kv_heads = 1; }},
      {"gptj_rotary", read_gptj_rotary},
      {"embedding_scale",
       [](const json&, const Family&, ModelConfig& c) { c.embedding_scale = std::sqrt(c.width); }},
      {"query_scale", read_query_scale}};
  readers.at(form)(object, family, config);
}

void change_file(const std::string& change, json& object) {
  static const std::map<std::string, void (*)(json&)> changes = {{"minicpm", change_minicpm},
                                                                 {"orion", change_orion},
                                                                 {"phi", change_phi},
                                                                 {"qwen", change_qwen},
                                                                 {"dots1", change_dots1},
                                                                 {"glm4_moe_lite", change_glm4_moe_lite},

                                                                 {"granite_hybrid", change_granite_hybrid},
                                                                 {"internlm3", change_internlm3},
                                                                 {"hunyuan", change_hunyuan}};
  changes.at(change)(object);
}

}  // namespace precbench::config_keys
