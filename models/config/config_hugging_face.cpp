// Reads a Hugging Face config.json: defaults by model_type, dimensions, RoPE, sliding windows, and settings
// that a step omits. Source of the defaults: the configuration classes of transformers 4 and 5.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"
#include "models/config/missing_families.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr std::int64_t kAsGiven = -1;

/// Defaults of absent keys, by model_type.
struct Family {
  const char* model_type;
  std::int64_t kv_heads;  ///< 0: as many as heads
  std::int64_t head_dim;  ///< 0: width / heads
  std::int64_t max_positions;
  std::int64_t sliding_window;  ///< 0: none unless use_sliding_window; kAsGiven: none unless it is given
  bool qkv_bias, qk_norm;
  double rope_theta = 10000, norm_eps = 1e-6;
  QkNormOver qk_norm_over = QkNormOver::head;
  bool tied = false;
  double rotary_share = 0;  ///< partial_rotary_factor; 0: the model_type rotates whole heads
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"llama", 0, 0, 2048, 0, false, false},
      {"mistral", 8, 0, 131072, 4096, false, false},
      {"qwen2", 32, 0, 32768, 0, true, false},
      {"qwen3", 32, 128, 32768, 0, false, true},
      {"smollm3", 4, 0, 32768, 0, false, false, 2e6, 1e-6},
      {"granite", 0, 0, 2048, 0, false, false, 10000, 1e-6},
      {"olmo2", 0, 0, 2048, 0, false, true, 10000, 1e-5, QkNormOver::heads},
      {"olmo3", 0, 0, 2048, 4096, false, true, 500000, 1e-5, QkNormOver::heads},
      {"ministral3", 8, 128, 262144, kAsGiven, false, false, 1e6, 1e-5},
      {"phi3", 0, 0, 4096, kAsGiven, false, false, 10000, 1e-5, QkNormOver::head, false, 1},
      {"glm", 2, 128, 131072, 0, true, false, 10000, 1.5625e-7, QkNormOver::head, false, 0.5},
      {"glm4", 2, 128, 131072, 0, true, false, 10000, 1.5625e-7, QkNormOver::head, false, 0.5},
      {"ernie4_5", 2, 128, 131072, 0, false, false, 500000, 1e-5, QkNormOver::head, true},
      {"seed_oss", 8, 128, 524288, 0, true, false},
      {"exaone4", 32, 0, 2048, 4096, false, true, 10000, 1e-5},
      {"gemma", 16, 256, 8192, 0, false, false, 10000, 1e-6, QkNormOver::head, true},
      {"gemma2", 4, 256, 8192, 4096, false, false, 10000, 1e-6, QkNormOver::head, true},
      {"gemma3_text", 4, 256, 131072, 4096, false, true, 1e6, 1e-6, QkNormOver::head, true},
      {"gpt2", 0, 0, 1024, 0, true, false, 10000, 1e-5, QkNormOver::head, true},
      {"gpt_bigcode", 1, 0, 1024, 0, true, false, 10000, 1e-5, QkNormOver::head, true},
      {"gptj", 0, 0, 2048, 0, false, false, 10000, 1e-5},
      {"gpt_neox", 0, 0, 2048, 0, true, false, 10000, 1e-5, QkNormOver::head, false, 0.25},
      {"phi", 0, 0, 2048, 0, true, false, 10000, 1e-5, QkNormOver::head, false, 0.5},
      {"starcoder2", 2, 0, 4096, kAsGiven, true, false, 10000, 1e-5, QkNormOver::head, true},
      {"stablelm", 32, 0, 4096, 0, false, false, 10000, 1e-5, QkNormOver::head, false, 0.25},
      {"nemotron", 0, 0, 4096, 0, false, false, 10000, 1e-5, QkNormOver::head, false, 0.5},
      {"cohere", 0, 0, 8192, 0, false, false, 500000, 1e-5, QkNormOver::head, true},
      {"cohere2", 0, 0, 8192, 4096, false, false, 10000, 1e-5, QkNormOver::head, true},
      {"mixtral", 8, 0, 131072, kAsGiven, false, false, 1e6, 1e-5},
      {"qwen2_moe", 16, 0, 32768, 0, true, false},
      {"qwen3_moe", 4, 0, 32768, 0, false, true},
      {"olmoe", 0, 0, 4096, 0, false, true, 10000, 1e-5, QkNormOver::heads},
      {"deepseek", 0, 0, 2048, 0, false, false},
      {"deepseek_v2", 0, 0, 2048, 0, false, false},
      {"deepseek_v3", 0, 0, 4096, 0, false, false},
      {"glm4_moe", 8, 0, 131072, 0, false, false, 10000, 1e-5, QkNormOver::head, false, 0.5},
      {"minimax_m2", 8, 128, 196608, 0, false, true, 5e6, 1e-6, QkNormOver::heads, false, 1},
      {"ernie4_5_moe", 4, 0, 131072, 0, false, false, 500000, 1e-5, QkNormOver::head, true},
      {"gpt_oss", 8, 64, 131072, 128, true, false, 150000, 1e-5},
      {"llama4_text", 8, 128, 131072, 0, false, false, 500000, 1e-5},
      {"cwm", 8, 128, 131072, 8192, false, false, 1e6, 1e-5},
  };
  return all;
}

constexpr std::int64_t kQwenWindow = 4096, kQwenFullLayers = 28;  // defaults of Qwen with use_sliding_window

/// Returns why a model_type is refused: what is missing, or else the supported model_type that reads most of the file's
/// keys, and the keys that it does not read.
std::string unsupported_type(const json& object, const std::string& model_type) {
  const std::string what = fmt::format("model_type: \"{}\" is not supported", model_type);
  if (const MissingFamily* known = missing_family_of_type(model_type)) {
    const std::string near = known->nearest;
    return fmt::format("{}: it needs {}{}", what, known->missing,
                       near.empty() ? "" : fmt::format("; the nearest that is supported is \"{}\"", near));
  }
  const char* nearest_type = "llama";
  std::ptrdiff_t most = 0;
  for (const Family& family : families()) {
    std::ptrdiff_t read = 0;
    for (const auto& [key, value] : object.items())  // keys of every model_type say nothing
      read += family_reads_key(family.model_type, key) && !reads_key("", key);
    if (read > most) most = read, nearest_type = family.model_type;
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : object.items())
    if (!reads_key(nearest_type, key) && !asks_nothing(value)) others.push_back(key);
  constexpr std::size_t kShown = 6;
  const std::size_t all = others.size();
  others.resize(std::min(all, kShown));
  return fmt::format("{}; the nearest by its keys is \"{}\"{}", what, nearest_type,
                     all == 0 ? std::string()
                              : fmt::format(", which does not read {}{}", fmt::join(others, ", "),
                                            all > kShown ? fmt::format(" and {} more", all - kShown) : ""));
}

const Family& family_of(const json& object) {
  std::string model_type;
  read(object, "model_type", model_type);
  std::vector<const char*> names;
  for (const Family& family : families()) {
    if (model_type == family.model_type) return family;
    names.push_back(family.model_type);
  }
  if (model_type.empty())
    throw InvalidInput(fmt::format("model_type: missing; known: {}", fmt::join(names, ", ")));
  throw InvalidInput(unsupported_type(object, model_type));
}

/// Reads the window, and of Qwen the layers that have it. SmolLM3, OLMo 3 and Gemma read their layers later.
void read_window(const json& object, const Family& family, ModelConfig& config) {
  std::int64_t& window = config.sliding_window;
  const bool off = object.contains("sliding_window") && !given(object, "sliding_window");
  if (family.sliding_window != 0) {
    if (family.sliding_window != kAsGiven && !off) window = family.sliding_window;
    return read(object, "sliding_window", window);
  }
  bool used = false;
  read(object, "use_sliding_window", used);
  const std::string_view model_type = family.model_type;
  if (!used || off || (model_type == "smollm3" && !given(object, "sliding_window"))) return;
  window = kQwenWindow;
  read(object, "sliding_window", window);
  if (model_type != "qwen2" && model_type != "qwen3") return;  // Qwen3-MoE has no key for layers without it
  std::int64_t full_layers = kQwenFullLayers;
  if (object.value("max_window_layers", json()) == 0)
    full_layers = 0;
  else
    read(object, "max_window_layers", full_layers);
  read_local_layers(
      object, [=](std::int64_t layer) { return layer >= full_layers; }, config);
}

/// RoPE settings of a file: in rope_scaling or, since transformers 5, in rope_parameters together with theta.
/// If both exist, rope_scaling takes precedence.
struct RopeKeys {
  const char* key = nullptr;  ///< null: neither
  json values = json::object();

  RopeKeys(const json& object, std::string_view model_type) {
    for (const char* name : {"rope_parameters", "rope_scaling"})
      if (given(object, name) && !object.at(name).empty()) key = name;
    if (!key && model_type == "gpt_oss") use_default_of_gpt_oss();
    if (!key) return;
    if (values.empty()) values = object.at(key);
    if (!values.is_object())
      throw InvalidInput(fmt::format("{}: expected an object, got {}", key, shown(values)));
    if (given(object, "original_max_position_embeddings"))
      values["original_max_position_embeddings"] = object.at("original_max_position_embeddings");
    if (model_type == "phi3") read_phi3();
    // A name of GPT-J's plain angles in files of MLC.
    for (const char* name : {"type", "rope_type"})
      if (model_type == "gptj" && values.value(name, json()) == "gptj") values[name] = "default";
    if (const json parameters = object.value("rope_parameters", json());
        parameters.is_object() && (model_type == "gemma3_text" || model_type == "olmo3"))
      read_by_layer_type(parameters);
  }

  void use_default_of_gpt_oss() {
    key = "rope_parameters";
    values = {{"rope_type", "yarn"},
              {"factor", 32.0},
              {"truncate", false},
              {"original_max_position_embeddings", 4096}};
  }

  /// Takes the angles of layers with full attention from an object for each type; rope_scaling adds to them.
  void read_by_layer_type(const json& parameters) {
    if (!parameters.contains(kFullAttention) && !parameters.contains(kSlidingAttention)) return;
    json full = parameters.value(kFullAttention, json::object());
    if (!full.is_object())
      throw InvalidInput(
          fmt::format("rope_parameters: {}: expected an object, got {}", kFullAttention, shown(full)));
    if (std::string_view(key) == "rope_scaling") full.update(values);
    values = full;
  }

  /// Phi-3's older files have other names of LongRoPE, and all may omit its original context.
  void read_phi3() {
    for (const char* name : {"type", "rope_type"})
      if (values.value(name, json()) == "su" || values.value(name, json()) == "yarn")
        values[name] = "longrope";
    if (!given(values, "original_max_position_embeddings")) values["original_max_position_embeddings"] = 4096;
  }
  const char* type_key() const { return given(values, "rope_type") ? "rope_type" : "type"; }
  /// Returns true if the angles change only beyond max_position_embeddings.
  bool dynamic() const { return values.value(type_key(), json()) == "dynamic"; }
};

/// Returns the share of a head that rotates.
double rotary_share(const json& object, const RopeKeys& rope, double otherwise) {
  double share = otherwise;
  read(object, "partial_rotary_factor", share);
  read(rope.values, "partial_rotary_factor", share);
  return share;
}

/// Reads the number of a head's elements that rotate, rounded as transformers does. `config` has the other dimensions.
void read_rotary_dim(const json& object, const RopeKeys& rope, const Family& family, ModelConfig& config) {
  const std::int64_t head = config.head_dim > 0 ? config.head_dim
                            : config.heads > 0  ? config.width / config.heads
                                                : 0;
  std::int64_t& rotary = config.block.rotary_dim;
  double pct = family.rotary_share;
  if (reads_key(family.model_type, "rotary_pct")) read(object, "rotary_pct", pct);  // GPT-NeoX, StableLM
  const double share = rotary_share(object, rope, pct);
  if (!std::isfinite(share) || share <= 0 || share > 1)
    throw InvalidInput(fmt::format("partial_rotary_factor: must be above 0 and at most 1, got {}", share));
  rotary = static_cast<std::int64_t>(static_cast<double>(head) * share);
  if (std::string_view(family.model_type) == "minimax_m2" && !given(object, "partial_rotary_factor"))
    read(object, "rotary_dim", rotary);
  if (rotary == head) rotary = 0;
}

void refuse_rope(const json& object, const RopeKeys& rope, const Family& family, std::int64_t max_positions,
                 Refusals& refused) {
  const double share = rotary_share(object, rope, 1);
  if (share != 1 && family.rotary_share == 0)
    refused.add("partial_rotary_factor", fmt::format("{}", share), "1");
  if (!rope.key || rope.dynamic()) return;
  const char* type = rope.type_key();
  if (!rope_scaling_from_json(rope.values, max_positions).scaling)
    refused.add(type, fmt::format("RoPE of type {}", shown(rope.values.at(type))), "\"default\"");
}

/// Sets DeepSeek's scale of attention's scores, which grows with the context of YaRN.
void read_attention_scale(const RopeKeys& rope, ModelConfig& config) {
  double all_dim = 0;
  read(rope.values, "mscale_all_dim", all_dim);
  if (config.rope_scaling.kind != RopeScaling::Kind::yarn || all_dim == 0) return;
  const double temperature = yarn_temperature(config.rope_scaling.factor, all_dim);
  config.block.attention_scale = temperature * temperature / std::sqrt(static_cast<double>(config.head_dim));
}

void read_rope(const json& object, const RopeKeys& rope, std::string_view model_type, ModelConfig& config) {
  read(object, "rope_theta", config.rope_theta);
  if (model_type == "gpt_neox") read(object, "rotary_emb_base", config.rope_theta);
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

/// Collects settings of the file that a step omits.
void note_what_is_left_out(const json& object, const std::string& model_type, ModelConfig& config) {
  double deviation = kInitializerRange;
  for (const char* key : {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout",
                          "embedding_dropout", "residual_dropout"}) {
    double dropout = 0;
    if (reads_key(model_type, key)) read(object, key, dropout);
    if (dropout != 0) config.not_modelled.push_back(fmt::format("{} {} is left out", key, dropout));
  }
  read(object, "initializer_range", deviation);
  if (deviation != kInitializerRange)
    config.not_modelled.push_back(
        fmt::format("initializer_range {}: fresh weights are made with {}", deviation, kInitializerRange));
  note_unread_keys(object, model_type, config);
}

}  // namespace

ModelConfig from_hugging_face(const json& object) {
  const Family& family = family_of(object);
  const std::string model_type = family.model_type;
  check_aliases(object, model_type);
  ModelConfig config;
  // Defaults of the model_type instead of ours, because its checkpoint was trained with them.
  config.rope_theta = family.rope_theta;
  config.norm_eps = family.norm_eps;
  config.max_positions = family.max_positions;
  config.qkv_bias = family.qkv_bias;
  config.qk_norm = family.qk_norm;
  config.qk_norm_over = family.qk_norm_over;
  config.tied = family.tied;
  set_default_dimensions(model_type, config);
  const auto key = [&](const char* name) { return key_in_file(object, model_type, name); };
  for (const DimensionKey& entry : kDimensions)
    read(object, key(entry.hugging_face).c_str(), config.*entry.member);
  if (!object.contains("num_key_value_heads")) config.kv_heads = family.kv_heads;
  if (!object.contains("head_dim")) config.head_dim = family.head_dim;
  if (hugging_face_has_latents(model_type)) read_latent_dimensions(object, model_type, config);
  read(object, "tie_word_embeddings", config.tied);
  read(object, key("rms_norm_eps").c_str(), config.norm_eps);
  read(object, key("max_position_embeddings").c_str(), config.max_positions);
  const RopeKeys rope(object, model_type);
  Refusals refused;
  refuse_other_models(object, model_type, config, refused);
  refuse_rope(object, rope, family, config.max_positions, refused);
  refused.throw_if_any();
  check_quantization(object, model_type);
  if (!config.latent) read_window(object, family, config);
  read_rope(object, rope, model_type, config);
  if (family.rotary_share > 0) read_rotary_dim(object, rope, family, config);
  if (hugging_face_has_experts(model_type)) read_hugging_face_moe(object, model_type, config);
  read_hugging_face_block(object, model_type, config);
  note_what_is_left_out(object, model_type, config);
  return config;
}

}  // namespace precbench::config_keys
