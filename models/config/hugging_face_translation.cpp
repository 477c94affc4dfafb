// Config files of models that transformers has no class for, but that compute what another model_type computes: their
// keys are translated into that model_type's. Source: the modeling files in the models' own repositories.
#include <fmt/format.h>

#include <cmath>
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
  for (const char* key : {"num_experts", "num_experts_per_tok", "scale_emb", "scale_depth", "dim_model_base"})
    object.erase(key);
}

/// Orion is a Llama with LayerNorm, as a StableLM that rotates whole heads.
void translate_orion(json& object) {
  require(object, "attention_bias", false, "a bias in attention");
  object.erase("attention_bias");
  rename(object, "rms_norm_eps", "layer_norm_eps");
  object["partial_rotary_factor"] = 1.0;
  set_default(object, "num_key_value_heads", dimension(object, "num_attention_heads"));
  object.erase("pretraining_tp");
  object.erase("max_sequence_length");
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
  for (const char* key : {"rotary_dim", "flash_attn", "flash_rotary", "fused_dense", "img_processor"})
    object.erase(key);
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
  for (const char* key : {"no_bias", "scale_attn_weights", "rotary_pct", "use_dynamic_ntk", "use_logn_attn",
                          "use_flash_attn", "bf16", "fp16", "fp32", "emb_dropout_prob"})
    object.erase(key);
}

[[noreturn]] void refuse_baichuan(json&) {
  throw InvalidInput(
      "model_type: \"baichuan\" is not supported: Baichuan 2 divides the rows of lm_head by their length, and models of 13B "
      "have ALiBi; of Baichuan 7B use a config.json with model_type \"llama\" and its weights as a Llama's");
}

struct Translation {
  const char *model_type, *into;
  void (*change)(json& object);
  bool other_tensors;  ///< checkpoints have other tensors than those of the model_type `into`
};
constexpr Translation kTranslations[] = {
    {"internlm", "llama", translate_internlm, false}, {"internlm2", "llama", translate_internlm, true},
    {"minicpm", "granite", translate_minicpm, false}, {"orion", "stablelm", translate_orion, false},
    {"phi-msft", "phi", translate_phi, true},         {"qwen", "qwen2", translate_qwen, true},
    {"baichuan", "llama", refuse_baichuan, true},
};

}  // namespace

std::string translate(json& object, std::string& model_type) {
  for (const Translation& known : kTranslations) {
    if (model_type != known.model_type) continue;
    known.change(object);
    model_type = known.into;
    if (!known.other_tensors) return {};
    return fmt::format(
        "read as model_type \"{}\"; checkpoints of \"{}\" have other tensors, which --init-from does not read",
        known.into, known.model_type);
  }
  return {};
}

}  // namespace precbench::config_keys
