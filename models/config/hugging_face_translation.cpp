// Config files of model_types that compute what another model_type computes: their keys are translated into that
// model_type's. Source: the configuration classes of transformers 5.24, or the modeling files in the models' own
// repositories if transformers has no class for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// Renames a key. A file that has both names keeps the other's value only if the first is null.
void rename(json& object, const char* from, const char* to) {
  if (given(object, from)) object[to] = object.at(from);
  object.erase(from);
}

/// Sets a key that is absent or null.
void set_default(json& object, const char* key, const json& value) {
  if (!given(object, key)) object[key] = value;
}

/// Sets keys that are absent. A null stays, because transformers does not replace it by the default.
void set_absent(json& object, const json& defaults) {
  for (const auto& [key, value] : defaults.items())
    if (!object.contains(key)) object[key] = value;
}

void erase(json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) object.erase(key);
}

/// Refuses a key whose value is not the one that a step computes.
void require(const json& object, const char* key, const json& value, const char* what) {
  if (given(object, key) && object.at(key) != value)
    throw InvalidInput(fmt::format("{}: {} is not supported; set it to {} to measure the model without", key,
                                   what, value.dump()));
}

std::int64_t dimension(const json& object, const char* key) {
  std::int64_t value = 0;
  read(object, key, value);
  if (value == 0) throw InvalidInput(fmt::format("{}: missing; a model needs it", key));
  return value;
}

/// InternLM is a Llama with biases on q, k, v and o. Checkpoints of InternLM 2 have one tensor for q, k and v.
void translate_internlm(json& object) {
  set_default(object, "bias", true);
  rename(object, "bias", "attention_bias");
}

/// MiniCPM is a Llama with Granite's factors.
void translate_minicpm(json& object) {
  require(object, "num_experts", 0, "a mixture of experts of this model_type");
  double embedding = 1, depth = 1, base = 1;
  read(object, "scale_emb", embedding);
  read(object, "scale_depth", depth);
  read(object, "dim_model_base", base);
  const auto layers = static_cast<double>(dimension(object, "num_hidden_layers"));
  const std::int64_t width = dimension(object, "hidden_size"),
                     heads = dimension(object, "num_attention_heads");
  std::int64_t head_dim = width / heads;
  read(object, "head_dim", head_dim);
  if (!std::isfinite(base) || base <= 0)
    throw InvalidInput(fmt::format("dim_model_base: must be a positive number, got {}", base));
  object["embedding_multiplier"] = embedding;
  object["residual_multiplier"] = depth / std::sqrt(layers);
  object["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(head_dim));
  object["logits_scaling"] = static_cast<double>(width) / base;
  set_default(object, "tie_word_embeddings", true);
  erase(object, {"num_experts", "num_experts_per_tok", "scale_emb", "scale_depth", "dim_model_base"});
}

/// Orion is a Llama with LayerNorm, as a StableLM that rotates whole heads.
void translate_orion(json& object) {
  require(object, "attention_bias", false, "a bias in attention");
  rename(object, "rms_norm_eps", "layer_norm_eps");
  object["partial_rotary_factor"] = 1.0;
  set_default(object, "num_key_value_heads", dimension(object, "num_attention_heads"));
  erase(object, {"attention_bias", "pretraining_tp", "max_sequence_length"});
}

/// Returns the keys of the first form of Phi-1.5 and Phi-2 as those of phi.
void translate_phi(json& object) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"n_embd", "hidden_size"},
                                                            {"n_head", "num_attention_heads"},
                                                            {"n_layer", "num_hidden_layers"},
                                                            {"n_inner", "intermediate_size"},
                                                            {"n_positions", "max_position_embeddings"},
                                                            {"n_head_kv", "num_key_value_heads"},
                                                            {"attn_pdrop", "attention_dropout"},
                                                            {"activation_function", "hidden_act"},
                                                            {"layer_norm_epsilon", "layer_norm_eps"}};
  for (const auto& [from, to] : kNames) rename(object, from, to);
  const std::int64_t width = dimension(object, "hidden_size");
  set_default(object, "intermediate_size", 4 * width);
  std::int64_t rotary = 32;
  read(object, "rotary_dim", rotary);
  object["partial_rotary_factor"] =
      static_cast<double>(rotary) / static_cast<double>(width / dimension(object, "num_attention_heads"));
  erase(object, {"rotary_dim", "flash_attn", "flash_rotary", "fused_dense", "img_processor"});
}

/// The first Qwen is a Qwen2 with as many key heads as heads and half the stated width of the MLP. Within seq_length
/// neither the dynamic RoPE nor the logarithmic scale of its queries does anything.
void translate_qwen(json& object) {
  require(object, "no_bias", true, "a bias in all linear layers");
  require(object, "scale_attn_weights", true, "attention without a scale");
  require(object, "rotary_pct", 1.0, "a partial rotary embedding");
  object["intermediate_size"] = dimension(object, "intermediate_size") / 2;
  object["num_key_value_heads"] = dimension(object, "num_attention_heads");
  rename(object, "layer_norm_epsilon", "rms_norm_eps");
  rename(object, "rotary_emb_base", "rope_theta");
  rename(object, "kv_channels", "head_dim");
  rename(object, "seq_length", "max_position_embeddings");
  rename(object, "attn_dropout_prob", "attention_dropout");
  if (object.value("use_dynamic_ntk", json(true)) == true)
    object["rope_scaling"] = {{"type", "dynamic"}, {"factor", 1.0}};
  erase(object, {"no_bias", "scale_attn_weights", "rotary_pct", "use_dynamic_ntk", "use_logn_attn",
                 "use_flash_attn", "bf16", "fp16", "fp32", "emb_dropout_prob"});
}

/// GLM-4.7-Flash is a DeepSeek-V3. Its list of MLPs gives the layers without experts, which must come first.
void translate_glm4_moe_lite(json& object) {
  set_absent(object, {{"vocab_size", 154880},
                      {"hidden_size", 2048},
                      {"intermediate_size", 10240},
                      {"moe_intermediate_size", 1536},
                      {"num_hidden_layers", 47},
                      {"num_attention_heads", 20},
                      {"n_routed_experts", 64},
                      {"num_experts_per_tok", 4},
                      {"routed_scaling_factor", 1.8},
                      {"q_lora_rank", 768},
                      {"qk_nope_head_dim", 192},
                      {"v_head_dim", 256},
                      {"n_group", 1},
                      {"topk_group", 1},
                      {"first_k_dense_replace", 1},
                      {"max_position_embeddings", 202752},
                      {"rms_norm_eps", 1e-05}});
  if (given(object, "mlp_layer_types")) {
    const json& types = object.at("mlp_layer_types");
    std::size_t dense = 0;
    while (types.is_array() && dense < types.size() && types.at(dense) == "dense") ++dense;
    if (!types.is_array() || std::any_of(types.begin() + static_cast<std::ptrdiff_t>(dense), types.end(),
                                         [](const json& type) { return type != "sparse"; }))
      throw InvalidInput(fmt::format(
          "mlp_layer_types: {}: expected \"dense\" for the first layers and \"sparse\" for all after them",
          shown(types)));
    object["first_k_dense_replace"] = dense;
  }
  object.erase("mlp_layer_types");
}

/// dots.llm1 is a GLM-4.5 with a QK-norm that rotates whole heads.
void translate_dots1(json& object) {
  set_absent(object, {{"vocab_size", 152064},
                      {"hidden_size", 4608},
                      {"intermediate_size", 10944},
                      {"num_hidden_layers", 62},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", 32},
                      {"n_shared_experts", 0},
                      {"first_k_dense_replace", 0},
                      {"norm_topk_prob", false},
                      {"sliding_window", 4096},
                      {"max_position_embeddings", 2048},
                      {"rms_norm_eps", 1e-06}});
  require(object, "attention_bias", false, "a bias in attention");
  require(object, "moe_layer_freq", 1, "a block without experts between others");
  dimension(object, "n_routed_experts");
  dimension(object, "num_experts_per_tok");
  const std::int64_t layers = dimension(object, "num_hidden_layers");
  std::int64_t full_layers = 62;  // without a window
  read(object, "max_window_layers", full_layers);
  const json types = object.value("layer_types", json());
  const bool listed = types.is_array() && !types.empty();
  const bool windows = listed ? std::find(types.begin(), types.end(), kSlidingAttention) != types.end()
                              : given(object, "sliding_window") && full_layers < layers;
  if (windows)
    throw InvalidInput(
        "sliding_window: windows of this model_type are not supported; set it to null to measure the model without");
  object["use_qk_norm"] = true;
  object["partial_rotary_factor"] = 1.0;
  erase(object, {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "moe_layer_freq",
                 "scoring_func", "topk_method", "pretraining_tp"});
}

/// Solar Open is a GLM-4.5 with experts in every layer that rotates whole heads.
void translate_solar_open(json& object) {
  set_absent(object, {{"vocab_size", 196608},
                      {"hidden_size", 4096},
                      {"num_hidden_layers", 48},
                      {"num_attention_heads", 64},
                      {"head_dim", 128},
                      {"moe_intermediate_size", 1280},
                      {"partial_rotary_factor", 1.0},
                      {"rope_theta", 1000000.0}});
  require(object, "use_qk_norm", false, "a QK-norm of this model_type");
  require(object, "first_k_dense_replace", 0, "a block without experts");
  object["first_k_dense_replace"] = 0;
  erase(object, {"intermediate_size", "moe_layer_freq", "pretraining_tp"});
}

/// CWM extends its context by default.
void translate_cwm(json& object) {
  set_absent(object, {{"vocab_size", 128256},
                      {"hidden_size", 6144},
                      {"intermediate_size", 21504},
                      {"num_hidden_layers", 64},
                      {"num_attention_heads", 48}});
  if (!given(object, "rope_parameters") && !given(object, "rope_scaling"))
    object["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 16.0},
                              {"high_freq_factor", 4.0},
                              {"low_freq_factor", 1.0},
                              {"original_max_position_embeddings", 8192}};
}

/// Granite 4.0 without Mamba and experts is a Granite whose MLP is the shared expert.
void translate_granite_hybrid(json& object) {
  set_absent(object, {{"vocab_size", 32000},
                      {"hidden_size", 4096},
                      {"shared_intermediate_size", 1024},
                      {"num_hidden_layers", 32},
                      {"num_attention_heads", 32}});
  rename(object, "layers_block_type", "layer_types");
  const json types = object.value("layer_types", json());
  const bool listed = types.is_array() && !types.empty();
  const json other = [&] {
    if (!listed) return json("mamba");  // the default of all layers
    const auto found = std::find_if(types.begin(), types.end(), [](const json& type) {
      return type != "attention" && type != kFullAttention;
    });
    return found == types.end() ? json() : *found;
  }();
  if (!other.is_null())
    throw InvalidInput(fmt::format(
        "layer_types: {} layers (Mamba-2) are not supported; of Granite 4.0 the models without \"H\" in their "
        "names have none",
        shown(other)));
  if (object.value("num_local_experts", json(8)) != 0)
    throw InvalidInput(fmt::format(
        "num_local_experts: {}: experts beside a shared MLP without a gate are not supported; set it to 0 to "
        "measure the model without",
        shown(object.value("num_local_experts", json(8)))));
  if (object.value("position_embedding_type", json()) != "rope")
    throw InvalidInput(fmt::format(
        "position_embedding_type: {}: a model of this type without RoPE is not supported; set it to \"rope\"",
        shown(object.value("position_embedding_type", json()))));
  rename(object, "shared_intermediate_size", "intermediate_size");
  erase(object,
        {"layer_types", "num_local_experts", "num_experts_per_tok", "position_embedding_type",
         "output_router_logits", "router_aux_loss_coef", "mamba_n_heads", "mamba_n_groups", "mamba_d_state",
         "mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size", "mamba_conv_bias",
         "mamba_proj_bias", "time_step_limit", "init_method", "normalization_function"});
}

/// EXAONE 3 is a Llama with other names of keys and tensors.
void translate_exaone(json& object) {
  set_absent(object, {{"vocab_size", 102400},
                      {"hidden_size", 4096},
                      {"intermediate_size", 14336},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", 8},
                      {"num_hidden_layers", 32},
                      {"max_position_embeddings", 4096},
                      {"rms_norm_eps", 1e-05},
                      {"rope_theta", 500000.0}});
  for (const auto& [from, to] :
       {std::pair{"num_layers", "num_hidden_layers"}, std::pair{"layer_norm_epsilon", "rms_norm_eps"},
        std::pair{"activation_function", "hidden_act"}, std::pair{"embed_dropout", "embedding_dropout"}})
    if (object.contains(from)) rename(object, from, to);
}

/// InternLM 3 is a Llama. `bias` is that of o and the MLP, qkv_bias that of q, k and v.
void translate_internlm3(json& object) {
  set_absent(object, {{"vocab_size", 128512},
                      {"hidden_size", 4096},
                      {"intermediate_size", 10240},
                      {"num_hidden_layers", 48},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", 2},
                      {"head_dim", 128},
                      {"max_position_embeddings", 32768},
                      {"rms_norm_eps", 1e-05}});
  if (object.contains("bias")) rename(object, "bias", "mlp_bias");
  if (object.contains("qkv_bias")) rename(object, "qkv_bias", "attention_bias");
  if (object.value("attention_bias", json(false)) == true && object.value("mlp_bias", json(false)) != true)
    throw InvalidInput(
        "qkv_bias: biases on q, k and v alone are not supported; set it to false to measure the model without");
}

/// Hunyuan is a Qwen3 whose QK-norm comes after RoPE. A fixed `alpha` stretches RoPE's base, whatever the type.
void translate_hunyuan(json& object) {
  set_absent(object, {{"vocab_size", 290943},
                      {"hidden_size", 4096},
                      {"intermediate_size", 11008},
                      {"num_hidden_layers", 32},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", nullptr},
                      {"head_dim", nullptr},
                      {"max_position_embeddings", 2048},
                      {"rms_norm_eps", 1e-05}});
  require(object, "use_cla", false, "attention across layers (CLA)");
  require(object, "norm_type", "rms", "another norm");
  require(object, "position_embedding_xdrope", false, "another rotary embedding");
  require(object, "mlp_bias", false, "a bias in the MLP");
  if (object.contains("attention_head_dim")) rename(object, "attention_head_dim", "head_dim");
  double theta = 10000;
  read(object, "rope_theta", theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(object, key) || !object.at(key).is_object()) continue;
    json& rope = object.at(key);
    read(rope, "rope_theta", theta);
    double alpha = 0;
    read(rope, "alpha", alpha);
    if (rope.value("rope_type", rope.value("type", json())) != "dynamic" || alpha == 0) continue;
    std::int64_t head = dimension(object, "hidden_size") / dimension(object, "num_attention_heads");
    read(object, "head_dim", head);
    if (!std::isfinite(alpha) || alpha < 0 || head <= 2)
      throw InvalidInput(fmt::format("{}: alpha: must be a positive number, got {}", key, alpha));
    const double dim = static_cast<double>(head);
    rope = {{"rope_type", "default"}, {"rope_theta", theta * std::pow(alpha, dim / (dim - 2))}};
  }
  erase(object, {"use_cla",
                 "cla_share_factor",
                 "norm_type",
                 "position_embedding_xdrope",
                 "mlp_bias",
                 "add_classification_head",
                 "class_num",
                 "dense_list",
                 "eod_token_id",
                 "im_end_id",
                 "im_newline_id",
                 "im_start_id",
                 "image_token_id",
                 "mask_init_id",
                 "org_vocab_size",
                 "pad_id",
                 "pool_type",
                 "pretraining_tp",
                 "skip_cls_token",
                 "text_end_id",
                 "text_start_id",
                 "use_rotary_pos_emb",
                 "enable_lm_head_fp32"});
}

[[noreturn]] void refuse_baichuan(json&) {
  throw InvalidInput(
      "model_type: \"baichuan\" is not supported: Baichuan 2 divides the rows of lm_head by their length, and models of 13B "
      "have ALiBi; of Baichuan 7B use a config.json with model_type \"llama\" and its weights as a Llama's");
}

struct Translation {
  const char *model_type, *into;
  void (*change)(json& object);
  /// Tensors of checkpoints; none: those of the model_type `into`; null: not known here.
  std::optional<TensorFusion> tensors = TensorFusion::none;
  bool qk_norm_after_rope = false;
};
constexpr Translation kTranslations[] = {
    {"internlm", "llama", translate_internlm},
    {"internlm2", "llama", translate_internlm, std::nullopt},
    {"minicpm", "granite", translate_minicpm},
    {"orion", "stablelm", translate_orion},
    {"phi-msft", "phi", translate_phi, std::nullopt},
    {"qwen", "qwen2", translate_qwen, std::nullopt},
    {"baichuan", "llama", refuse_baichuan},
    {"glm4_moe_lite", "deepseek_v3", translate_glm4_moe_lite},
    {"dots1", "glm4_moe", translate_dots1},
    {"solar_open", "glm4_moe", translate_solar_open},
    {"cwm", "cwm", translate_cwm},
    {"granitemoehybrid", "granite", translate_granite_hybrid, TensorFusion::granite_hybrid},
    {"exaone", "llama", translate_exaone, TensorFusion::exaone},
    {"internlm3", "llama", translate_internlm3},
    {"hunyuan_v1_dense", "qwen3", translate_hunyuan, TensorFusion::hunyuan, true},
};

}  // namespace

void translate(TextConfig& text, std::string& model_type) {
  for (const Translation& known : kTranslations) {
    if (model_type != known.model_type) continue;
    known.change(text.object);
    model_type = known.into;
    text.qk_norm_after_rope = known.qk_norm_after_rope;
    if (known.tensors)
      text.tensors = *known.tensors;
    else
      text.warnings.push_back(fmt::format(
          "read as model_type \"{}\"; checkpoints of \"{}\" have other tensors, which --init-from does not read",
          known.into, known.model_type));
    return;
  }
}

}  // namespace precbench::config_keys
