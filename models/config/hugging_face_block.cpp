// Forms of a block in a Hugging Face config.json: factors of Granite, layers without RoPE of SmolLM3, windows by
// layer, Gemma. Source of the defaults: the configuration classes of transformers 5.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr std::int64_t kNoRopeInterval = 4;  // SmolLM3, Llama 4: every fourth layer has no RoPE
constexpr std::int64_t kGemma2Pattern = 2, kGemma3Pattern = 6;  // every n-th layer has no window
constexpr std::int64_t kOlmo3Pattern = 4;
constexpr std::int64_t kExaone4Pattern = 4, kCwmPattern = 4;
constexpr double kGemmaLocalTheta = 10000;

/// Biases of attention that a key switches, by model_type.
struct AttentionBias {
  std::string_view model_type;
  bool by_default, of_o;  ///< of_o: o has one as well as q, k and v
  const char* key = "attention_bias";
};
constexpr AttentionBias kAttentionBiases[] = {
    {"llama", false, true},    {"qwen3", false, true},       {"qwen3_moe", false, true},
    {"smollm3", false, true},  {"granite", false, true},     {"gemma", false, true},
    {"gemma2", false, true},   {"gemma3_text", false, true}, {"glm", true, false},
    {"glm4", true, false},     {"glm4_moe", false, false},   {"qwen2_moe", true, false, "qkv_bias"},
    {"seed_oss", true, false}, {"gpt_oss", true, true},
};

void read_attention_bias(const json& object, std::string_view model_type, ModelConfig& config) {
  for (const AttentionBias& known : kAttentionBiases) {
    if (known.model_type != model_type) continue;
    config.qkv_bias = known.by_default;
    read(object, known.key, config.qkv_bias);
    config.block.o_bias = config.qkv_bias && known.of_o;
    if (model_type == "seed_oss") read(object, "attention_out_bias", config.block.o_bias);
  }
}

void read_granite(const json& object, ModelConfig& config) {
  double logit_divisor = 1;
  config.block.attention_scale = 1;
  read(object, "embedding_multiplier", config.embedding_scale);
  read(object, "residual_multiplier", config.block.residual_scale);
  read(object, "attention_multiplier", config.block.attention_scale);
  read(object, "logits_scaling", logit_divisor);
  config.logit_scale = 1 / logit_divisor;
}

/// Reads the layers without RoPE: a list with 1 for a layer with RoPE, or every n-th. `empty_is_none`: an empty list is
/// as good as none.
void read_layers_without_rope(const json& object, bool empty_is_none, ModelConfig& config) {
  std::int64_t interval = kNoRopeInterval;
  read(object, "no_rope_layer_interval", interval);
  const bool listed =
      given(object, "no_rope_layers") && !(empty_is_none && object.at("no_rope_layers") == json::array());
  const json list = listed ? object.at("no_rope_layers") : json::array();
  if (listed && (!list.is_array() || static_cast<std::int64_t>(list.size()) < config.layers))
    throw InvalidInput(fmt::format("no_rope_layers: expected 0 or 1 for each of {} layers, got {}",
                                   config.layers, shown(list)));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const json with_rope =
        listed ? list.at(static_cast<std::size_t>(layer)) : json((layer + 1) % interval != 0 ? 1 : 0);
    if (with_rope != 0 && with_rope != 1)
      throw InvalidInput(fmt::format("no_rope_layers: {} is neither 0 nor 1", shown(with_rope)));
    if (with_rope == 0) config.block.layers_without_rope.push_back(layer);
  }
}

void read_smollm3(const json& object, ModelConfig& config) {
  read_layers_without_rope(object, false, config);
  if (config.sliding_window > 0)
    read_local_layers(
        object, [&](std::int64_t layer) { return !config.has_rope(layer); }, config);
}

/// Returns true if a layer of Llama 4 has chunked attention: those with RoPE, unless layer_types says otherwise.
bool has_chunks(const json& object, const ModelConfig& config) {
  if (!given(object, "layer_types"))
    return static_cast<std::int64_t>(config.block.layers_without_rope.size()) < config.layers;
  const json& types = object.at("layer_types");
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != config.layers)
    throw InvalidInput(fmt::format("layer_types: expected the type of each of {} layers, got {}",
                                   config.layers, shown(types)));
  bool chunked = false;
  for (const json& type : types) {
    if (type != kChunkedAttention && type != kFullAttention)
      throw InvalidInput(fmt::format("layer_types: {} is neither {} nor {}", shown(type), kChunkedAttention,
                                     kFullAttention));
    chunked |= type == kChunkedAttention;
  }
  return chunked;
}

void read_llama4(const json& object, ModelConfig& config) {
  read_layers_without_rope(object, true, config);
  BlockForm& block = config.block;
  block.unit_queries_and_keys = true;
  read(object, "use_qk_norm", block.unit_queries_and_keys);
  std::int64_t chunk = 8192;
  read(object, "attention_chunk_size", chunk);
  const bool off = object.contains("attention_chunk_size") && !given(object, "attention_chunk_size");
  if (!off && has_chunks(object, config)) config.unchunked_positions = chunk;
  // Older files have a number here instead of true.
  const auto tuning = object.find("attn_temperature_tuning");
  if ((tuning != object.end() && asks_nothing(*tuning)) || block.layers_without_rope.empty()) return;
  block.temperature = 0.1;
  block.temperature_positions = 8192;
  read(object, "attn_scale", block.temperature);
  read(object, "floor_scale", block.temperature_positions);
  if (block.temperature == 0) block.temperature_positions = 0;
}

/// Returns a test for all layers but every n-th.
std::function<bool(std::int64_t layer)> every_but(std::int64_t n) {
  return [n](std::int64_t layer) { return (layer + 1) % n != 0; };
}

/// Reads a number that null switches off.
void read_or_off(const json& object, const char* key, double& to) {
  if (object.contains(key) && !given(object, key)) to = 0;
  read(object, key, to);
}

Activation activation_of(const json& object, const char* key) {
  std::string name = "gelu_pytorch_tanh";
  read(object, key, name);
  for (const auto& [theirs, ours] :
       {std::pair{"gelu_pytorch_tanh", Activation::gelu_tanh}, std::pair{"gelu", Activation::gelu},
        std::pair{"silu", Activation::silu}})
    if (name == theirs) return ours;
  throw InvalidInput(
      fmt::format("{}: \"{}\" is not supported; gelu_pytorch_tanh, gelu and silu are", key, name));
}

/// Reads what all Gemmas have.
void read_gemma(const json& object, const char* activation, ModelConfig& config) {
  config.block.activation = activation_of(object, activation);
  config.block.gains_minus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.width));
  config.embedding_scale_rounded = true;
  // Older files of the first Gemma call the approximation by tanh "gelu".
  const bool first = std::string_view(activation) == "hidden_act";
  if (first && config.block.activation == Activation::gelu) config.block.activation = Activation::gelu_tanh;
}

/// Reads what Gemma 2 and 3 have. `softcaps`: defaults, of the scores of attention and of the logits.
void read_later_gemma(const json& object, std::pair<double, double> softcaps, std::int64_t pattern,
                      ModelConfig& config) {
  read_gemma(object, "hidden_activation", config);
  config.block.norms = NormPlace::both;
  std::tie(config.block.attention_softcap, config.logit_softcap) = softcaps;
  read_or_off(object, "attn_logit_softcapping", config.block.attention_softcap);
  read_or_off(object, "final_logit_softcapping", config.logit_softcap);
  double scalar = 256;
  read(object, "query_pre_attn_scalar", scalar);
  if (!std::isfinite(scalar) || scalar <= 0)
    throw InvalidInput(fmt::format("query_pre_attn_scalar: must be a positive number, got {}", scalar));
  if (scalar != static_cast<double>(config.head_dim)) config.block.attention_scale = 1 / std::sqrt(scalar);
  read_local_layers(object, every_but(pattern), config);
}

/// Reads the angles of local layers, whose base is `theta` by default.
void read_local_rope(const json& object, double theta, ModelConfig& config) {
  read(object, "rope_local_base_freq", theta);
  const json parameters = object.value("rope_parameters", json());
  if (const json local = parameters.is_object() ? parameters.value(kSlidingAttention, json()) : json();
      local.is_object()) {
    read(local, "rope_theta", theta);
    if (const json type = local.value("rope_type", json("default")); type != "default")
      throw InvalidInput(fmt::format("rope_parameters: {}: rope_type {} is not supported; \"default\" is",
                                     kSlidingAttention, shown(type)));
  }
  if (config.sliding_window > 0) config.block.local_rope_theta = theta;
}

void read_gemma3(const json& object, ModelConfig& config) {
  std::int64_t pattern = kGemma3Pattern;
  read(object, "sliding_window_pattern", pattern);
  read_later_gemma(object, {0, 0}, pattern, config);
  read_local_rope(object, kGemmaLocalTheta, config);
}

/// OLMo 3 is an OLMo 2 with windows. Its local layers have the same base, but are never scaled.
void read_olmo3(const json& object, ModelConfig& config) {
  config.block.norms = NormPlace::after;
  read_local_layers(object, every_but(kOlmo3Pattern), config);
  read_local_rope(object, config.rope_theta, config);
  if (config.rope_scaling == RopeScaling{} && config.block.local_rope_theta == config.rope_theta)
    config.block.local_rope_theta = 0;
}

/// Reads GLM, whose RoPE is interleaved. GLM-4 has norms on outputs as well.
void read_glm(bool fourth, ModelConfig& config) {
  config.block.rope_pairs = RopePairs::interleaved;
  config.block.fusion = TensorFusion::gate_up;
  if (!fourth) return;
  config.block.norms = NormPlace::both;
  config.block.norm_names = NormNames::glm4;
}

/// Returns a test for local layers from a pattern of L and G that repeats, ending with a full layer, or from the period
/// of full layers.
std::function<bool(std::int64_t layer)> exaone4_pattern(const json& object, std::int64_t layers) {
  const auto found = object.find("sliding_window_pattern");
  if (found != object.end() && found->is_string()) {
    const std::string pattern = found->get<std::string>();
    if (pattern.empty() || pattern.find_first_not_of("LG") != pattern.npos)
      throw InvalidInput(
          fmt::format("sliding_window_pattern: expected a number or letters L and G, got {}", shown(*found)));
    return [=](std::int64_t layer) {
      return layer + 1 < layers && pattern[static_cast<std::size_t>(layer) % pattern.size()] == 'L';
    };
  }
  std::int64_t pattern = kExaone4Pattern;
  read(object, "sliding_window_pattern", pattern);
  return every_but(pattern);
}

/// EXAONE 4 has norms on outputs, and in a model with windows only the layers with one have RoPE.
void read_exaone4(const json& object, ModelConfig& config) {
  config.block.norms = NormPlace::after;
  if (config.sliding_window == 0) return;
  read_local_layers(object, exaone4_pattern(object, config.layers), config);
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if (config.window(layer) == 0) config.block.layers_without_rope.push_back(layer);
}

/// gpt-oss has windows in every second layer, from the first on, and sinks in all.
void read_gpt_oss(const json& object, ModelConfig& config) {
  config.block.attention_sinks = true;
  read_local_layers(
      object, [](std::int64_t layer) { return layer % 2 == 0; }, config);
}

}  // namespace

bool hugging_face_has_latents(const std::string& model_type) {
  return model_type == "deepseek_v2" || model_type == "deepseek_v3";
}

void read_latent_dimensions(const json& object, const std::string& model_type, ModelConfig& config) {
  if (object.contains("kv_lora_rank") && !given(object, "kv_lora_rank"))
    throw InvalidInput(fmt::format("kv_lora_rank: null, but a {} has latent attention (MLA)", model_type));
  std::int64_t nope = 128;
  config.latent = {.q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .v_dim = 128};
  if (object.contains("q_lora_rank") && !given(object, "q_lora_rank")) config.latent.q_rank = 0;
  read(object, "q_lora_rank", config.latent.q_rank);
  read(object, "kv_lora_rank", config.latent.kv_rank);
  read(object, "qk_nope_head_dim", nope);
  read(object, "qk_rope_head_dim", config.latent.rope_dim);
  read(object, "v_head_dim", config.latent.v_dim);
  config.head_dim = nope + config.latent.rope_dim;
  bool interleaved = true;
  if (model_type == "deepseek_v3") read(object, "rope_interleave", interleaved);
  if (interleaved) config.block.rope_pairs = RopePairs::interleaved;
}

void read_local_layers(const json& object, const std::function<bool(std::int64_t layer)>& is_local,
                       ModelConfig& config) {
  const bool listed = given(object, "layer_types");
  const json list = listed ? object.at("layer_types") : json::array();
  if (listed && (!list.is_array() || static_cast<std::int64_t>(list.size()) != config.layers))
    throw InvalidInput(fmt::format("layer_types: expected the type of each of {} layers, got {}",
                                   config.layers, shown(list)));
  std::vector<std::int64_t>& local = config.block.local_layers;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const json type = listed ? list.at(static_cast<std::size_t>(layer))
                             : json(is_local(layer) ? kSlidingAttention : kFullAttention);
    if (type != kSlidingAttention && type != kFullAttention)
      throw InvalidInput(fmt::format("layer_types: {} is neither {} nor {}", shown(type), kSlidingAttention,
                                     kFullAttention));
    if (type == kSlidingAttention && config.sliding_window > 0) local.push_back(layer);
  }
  if (local.empty()) config.sliding_window = 0;
  if (static_cast<std::int64_t>(local.size()) == config.layers) local.clear();
}

void set_default_dimensions(const std::string& model_type, ModelConfig& config) {
  set_classic_dimensions(model_type, config);
  if (model_type == "gpt_oss") {
    config.layers = 36;
    config.width = config.ffn = 2880;
    config.heads = 64;
    config.vocab = 201088;
  }
  if (!model_type.starts_with("gemma")) return;
  const bool first = model_type == "gemma";
  config.layers = first ? 28 : 26;
  config.width = first ? 3072 : 2304;
  config.ffn = first ? 24576 : 9216;
  config.heads = first ? 16 : 8;
  config.vocab = model_type == "gemma3_text" ? 262208 : 256000;
}

void read_hugging_face_block(const json& object, const std::string& model_type, ModelConfig& config) {
  read_classic_block(object, model_type, config);
  if (model_type == "granite") read_granite(object, config);
  if (model_type == "smollm3") read_smollm3(object, config);
  if (model_type == "llama4_text") read_llama4(object, config);
  if (model_type == "olmo2") config.block.norms = NormPlace::after;
  if (model_type == "olmo3") read_olmo3(object, config);
  read_attention_bias(object, model_type, config);
  if (model_type == "glm" || model_type == "glm4") read_glm(model_type == "glm4", config);
  if (model_type == "exaone4") read_exaone4(object, config);
  if (model_type == "gpt_oss") read_gpt_oss(object, config);
  if (model_type == "cwm")  // a window in all layers but every fourth, from the first on
    read_local_layers(
        object, [](std::int64_t layer) { return layer % kCwmPattern != 0; }, config);
  if (model_type.starts_with("ernie4_5")) config.block.rope_pairs = RopePairs::interleaved;
  if (model_type == "phi3") config.block.fusion = TensorFusion::qkv_and_gate_up;
  if (model_type == "gemma") read_gemma(object, "hidden_act", config);
  if (model_type == "gemma2") read_later_gemma(object, {50, 30}, kGemma2Pattern, config);
  if (model_type == "gemma3_text") read_gemma3(object, config);
}

}  // namespace precbench::config_keys
