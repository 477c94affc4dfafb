// Keys of a Hugging Face config.json: those that each model_type reads with their aliases, and those that are ignored with
// a warning; hugging_face_refusals.cpp has those that ask for another model. Source: the configuration classes of
// transformers 4.57 and 5.24; aliases are in their attribute_map.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;
using KeySet = std::set<std::string_view>;

/// Keys, besides those of every model_type, that a model_type reads, refuses, or may ignore because they do
/// not affect a training step.
struct FamilyKeys {
  const char* model_type;
  KeySet keys;
};

const std::vector<FamilyKeys>& family_keys() {
  static const KeySet latent = {"aux_loss_alpha",
                                "attention_bias",
                                "ep_size",
                                "first_k_dense_replace",
                                "kv_lora_rank",
                                "moe_intermediate_size",
                                "moe_layer_freq",
                                "n_group",
                                "n_routed_experts",
                                "n_shared_experts",
                                "norm_topk_prob",
                                "num_experts_per_tok",
                                "output_router_logits",
                                "pretraining_tp",
                                "q_lora_rank",
                                "qk_head_dim",
                                "qk_nope_head_dim",
                                "qk_rope_head_dim",
                                "rope_interleave",
                                "routed_scaling_factor",
                                "router_aux_loss_coef",
                                "scoring_func",
                                "seq_aux",
                                "topk_group",
                                "topk_method",
                                "v_head_dim"};
  const auto with = [](KeySet keys, const KeySet& more) {
    keys.insert(more.begin(), more.end());
    return keys;
  };
  static const KeySet gpt = {"activation_function",
                             "attn_pdrop",
                             "embd_pdrop",
                             "hidden_act",
                             "hidden_size",
                             "intermediate_size",
                             "max_position_embeddings",
                             "n_ctx",
                             "num_attention_heads",
                             "num_hidden_layers",
                             "resid_pdrop",
                             "rms_norm_eps",
                             "scale_attn_weights",
                             "summary_activation",
                             "summary_first_dropout",
                             "summary_proj_to_labels",
                             "summary_type",
                             "summary_use_proj"};
  // Qwen2 has biases on q, k and v regardless of attention_bias; Qwen3 and OLMoE have a QK-norm.
  static const std::vector<FamilyKeys> all = {
      {"llama", {"attention_bias", "mlp_bias", "pretraining_tp"}},
      {"mistral", {"sliding_window"}},
      {"cwm", {"layer_types", "mlp_bias", "pretraining_tp", "sliding_window"}},
      {"qwen2",
       {"attention_bias", "layer_types", "max_window_layers", "qkv_bias", "sliding_window",
        "use_sliding_window"}},
      {"qwen3",
       {"attention_bias", "layer_types", "max_window_layers", "sliding_window", "use_qk_norm",
        "use_sliding_window"}},
      {"smollm3",
       {"attention_bias", "layer_types", "max_window_layers", "mlp_bias", "no_rope_layer_interval",
        "no_rope_layers", "pretraining_tp", "sliding_window", "use_sliding_window"}},
      {"granite",
       {"attention_bias", "attention_multiplier", "embedding_multiplier", "logits_scaling", "mlp_bias",
        "residual_multiplier"}},
      {"olmo2", {"attention_bias"}},
      {"olmo3", {"attention_bias", "layer_types", "sliding_window"}},
      {"ministral3", {"sliding_window"}},
      {"phi3",
       {"attention_bias", "embd_pdrop", "full_attn_mod", "interpolate_factor", "lm_head_bias", "resid_pdrop",
        "sliding_window"}},
      {"glm", {"attention_bias"}},
      {"glm4", {"attention_bias"}},
      {"ernie4_5", {"use_bias"}},
      {"seed_oss",
       {"attention_bias", "attention_out_bias", "mlp_bias", "pretraining_tp", "residual_dropout"}},
      {"exaone4", {"layer_types", "sliding_window", "sliding_window_pattern"}},
      {"gpt2", with(gpt, {"reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"})},
      {"gpt_bigcode", with(gpt, {"attention_softmax_in_fp32", "multi_query", "runner_max_sequence_length",
                                 "scale_attention_softmax_in_fp32"})},
      {"gptj", with(gpt, {"rotary", "rotary_dim"})},
      {"gpt_neox",
       {"attention_bias", "classifier_dropout", "hidden_act", "hidden_dropout", "rms_norm_eps",
        "rotary_emb_base", "rotary_pct", "use_parallel_residual"}},
      {"phi", {"embd_pdrop", "hidden_act", "qk_layernorm", "resid_pdrop", "rms_norm_eps"}},
      // Older files repeat activation and eps under names that nothing reads.
      {"starcoder2",
       {"activation_function", "attention_softmax_in_fp32", "embedding_dropout", "hidden_act",
        "layer_norm_epsilon", "mlp_type", "norm_type", "residual_dropout", "rms_norm_eps",
        "scale_attention_softmax_in_fp32", "scale_attn_weights", "sliding_window", "use_bias"}},
      {"stablelm",
       {"hidden_act", "hidden_dropout", "qk_layernorm", "rms_norm_eps", "rotary_pct", "use_parallel_residual",
        "use_qkv_bias"}},
      {"nemotron", {"attention_bias", "hidden_act", "mlp_bias", "rms_norm_eps"}},
      {"cohere", {"attention_bias", "logit_scale", "rms_norm_eps", "use_qk_norm"}},
      {"cohere2",
       {"attention_bias", "layer_switch", "layer_types", "logit_scale", "order_of_interleaved_layers",
        "position_embedding_type", "rms_norm_eps", "sliding_window", "sliding_window_pattern",
        "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding"}},
      {"gemma", {"attention_bias", "hidden_activation", "use_bidirectional_attention"}},
      {"gemma2",
       {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation",
        "layer_types", "query_pre_attn_scalar", "sliding_window", "use_bidirectional_attention"}},
      {"gemma3_text",
       {"_sliding_window_pattern", "attention_bias", "attn_logit_softcapping", "final_logit_softcapping",
        "hidden_activation", "layer_types", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window",
        "sliding_window_pattern", "use_bidirectional_attention"}},
      {"mixtral",
       {"norm_topk_prob", "num_experts_per_tok", "num_local_experts", "output_router_logits",
        "router_aux_loss_coef", "router_jitter_noise", "sliding_window"}},
      {"qwen3_moe",
       {"attention_bias", "decoder_sparse_step", "max_window_layers", "mlp_only_layers",
        "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_experts_per_tok",
        "output_router_logits", "router_aux_loss_coef", "sliding_window", "use_qk_norm",
        "use_sliding_window"}},
      {"olmoe",
       {"attention_bias", "clip_qkv", "norm_topk_prob", "num_experts", "num_experts_per_tok",
        "output_router_logits", "router_aux_loss_coef", "use_qk_norm"}},
      {"deepseek_v2", with(latent, {"mlp_bias"})},
      {"deepseek_v3", with(latent, {"num_nextn_predict_layers"})},
      {"llama4_text",
       {"attention_bias", "attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale",
        "interleave_moe_layer_step", "intermediate_size_mlp", "layer_types", "moe_layers",
        "no_rope_layer_interval", "no_rope_layers", "num_experts_per_tok", "num_local_experts",
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "use_qk_norm"}},
      {"qwen2_moe",
       {"decoder_sparse_step", "layer_types", "max_window_layers", "mlp_only_layers", "moe_intermediate_size",
        "norm_topk_prob", "num_experts", "num_experts_per_tok", "output_router_logits", "qkv_bias",
        "router_aux_loss_coef", "shared_expert_intermediate_size", "sliding_window", "use_sliding_window"}},
      {"glm4_moe",
       {"attention_bias", "first_k_dense_replace", "moe_intermediate_size", "n_group", "n_routed_experts",
        "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "num_nextn_predict_layers",
        "output_router_logits", "routed_scaling_factor", "router_aux_loss_coef", "topk_group",
        "use_qk_norm"}},
      {"minimax_m2",
       {"num_experts_per_tok", "num_local_experts", "output_router_logits", "qk_norm_type", "rotary_dim",
        "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "use_qk_norm", "use_routing_bias"}},
      {"ernie4_5_moe",
       {"moe_intermediate_size", "moe_k", "moe_layer_end_index", "moe_layer_interval",
        "moe_layer_start_index", "moe_norm_min", "moe_num_experts", "moe_num_shared_experts",
        "output_router_logits", "router_aux_loss_coef", "use_bias"}},
      {"gpt_oss",
       {"attention_bias", "initial_context_length", "layer_types", "num_experts_per_tok", "num_local_experts",
        "output_router_logits", "router_aux_loss_coef", "sliding_window", "swiglu_alpha", "swiglu_limit"}},
      {"deepseek",
       {"attention_bias", "aux_loss_alpha", "first_k_dense_replace", "moe_intermediate_size",
        "moe_layer_freq", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
        "pretraining_tp", "scoring_func", "seq_aux"}},
  };
  return all;
}

/// Keys of every model_type: those that are read, and those of transformers and other tools that do not
/// affect a training step (tokens, generation, outputs, storage of weights).
const KeySet& common_keys() {
  static const KeySet keys = {"_attn_implementation_autoset",
                              "_name_or_path",
                              "add_cross_attention",
                              "architectures",
                              "attention_dropout",
                              "attn_implementation",
                              "auto_map",
                              "bad_words_ids",
                              "begin_suppress_tokens",
                              "bos_token_id",
                              "cache_implementation",
                              "chunk_size_feed_forward",
                              "cross_attention_hidden_size",
                              "decoder_start_token_id",
                              "diversity_penalty",
                              "do_sample",
                              "dtype",
                              "early_stopping",
                              "encoder_no_repeat_ngram_size",
                              "eos_token_id",
                              "exponential_decay_length_penalty",
                              "finetuning_task",
                              "for_llm_compressor",
                              "forced_bos_token_id",
                              "forced_eos_token_id",
                              "head_dim",
                              "hidden_act",
                              "hidden_size",
                              "id2label",
                              "initializer_range",
                              "intermediate_size",
                              "is_decoder",
                              "is_encoder_decoder",
                              "is_llama_config",
                              "label2id",
                              "length_penalty",
                              "max_length",
                              "max_position_embeddings",
                              "min_length",
                              "model_type",
                              "no_repeat_ngram_size",
                              "num_attention_heads",
                              "num_beam_groups",
                              "num_beams",
                              "num_hidden_layers",
                              "num_key_value_heads",
                              "num_return_sequences",
                              "original_max_position_embeddings",
                              "output_attentions",
                              "output_hidden_states",
                              "output_scores",
                              "pad_token_id",
                              "partial_rotary_factor",
                              "prefix",
                              "problem_type",
                              "pruned_heads",
                              "remove_invalid_values",
                              "repetition_penalty",
                              "return_dict",
                              "return_dict_in_generate",
                              "rms_norm_eps",
                              "rope_parameters",
                              "rope_scaling",
                              "rope_theta",
                              "sep_token_id",
                              "suppress_tokens",
                              "task_specific_params",
                              "temperature",
                              "tf_legacy_loss",
                              "tie_encoder_decoder",
                              "tie_word_embeddings",
                              "tokenizer_class",
                              "top_k",
                              "top_p",
                              "torch_dtype",
                              "torchscript",
                              "transformers.js_config",
                              "transformers_version",
                              "typical_p",
                              "unsloth_fixed",
                              "unsloth_version",
                              "use_bfloat16",
                              "use_cache",
                              "vocab_size"};
  return keys;
}

/// Two names of one number; a file may use either.
struct Alias {
  std::string_view model_type;
  const char *key, *other;
};
constexpr Alias kAliases[] = {
    {"mixtral", "num_local_experts", "num_experts"},
    {"gpt2", "hidden_size", "n_embd"},
    {"gpt2", "num_hidden_layers", "n_layer"},
    {"gpt2", "num_attention_heads", "n_head"},
    {"gpt2", "max_position_embeddings", "n_positions"},
    {"gpt2", "intermediate_size", "n_inner"},
    {"gpt2", "hidden_act", "activation_function"},
    {"gpt2", "rms_norm_eps", "layer_norm_epsilon"},
    {"gpt_bigcode", "hidden_size", "n_embd"},
    {"gpt_bigcode", "num_hidden_layers", "n_layer"},
    {"gpt_bigcode", "num_attention_heads", "n_head"},
    {"gpt_bigcode", "max_position_embeddings", "n_positions"},
    {"gpt_bigcode", "intermediate_size", "n_inner"},
    {"gpt_bigcode", "hidden_act", "activation_function"},
    {"gpt_bigcode", "rms_norm_eps", "layer_norm_epsilon"},
    {"gptj", "hidden_size", "n_embd"},
    {"gptj", "num_hidden_layers", "n_layer"},
    {"gptj", "num_attention_heads", "n_head"},
    {"gptj", "max_position_embeddings", "n_positions"},
    {"gptj", "intermediate_size", "n_inner"},
    {"gptj", "hidden_act", "activation_function"},
    {"gptj", "rms_norm_eps", "layer_norm_epsilon"},
    {"gpt_neox", "rms_norm_eps", "layer_norm_eps"},
    {"phi", "rms_norm_eps", "layer_norm_eps"},
    {"starcoder2", "rms_norm_eps", "norm_epsilon"},
    {"stablelm", "rms_norm_eps", "layer_norm_eps"},
    {"stablelm", "rms_norm_eps", "norm_eps"},
    {"nemotron", "rms_norm_eps", "norm_eps"},
    {"cohere", "rms_norm_eps", "layer_norm_eps"},
    {"cohere2", "rms_norm_eps", "layer_norm_eps"},
    {"qwen3_moe", "num_experts", "num_local_experts"},
    {"olmoe", "num_experts", "num_local_experts"},
    {"deepseek_v2", "n_routed_experts", "num_experts"},
    {"deepseek_v3", "n_routed_experts", "num_local_experts"},
    {"deepseek_v3", "num_nextn_predict_layers", "num_mtp_layers"},
    {"qwen2_moe", "num_experts", "num_local_experts"},
    {"glm4_moe", "n_routed_experts", "num_local_experts"},
    {"glm4_moe", "num_nextn_predict_layers", "num_mtp_layers"},
    {"minimax_m2", "num_local_experts", "num_experts"},
    {"ernie4_5_moe", "moe_num_experts", "num_experts"},
    {"ernie4_5_moe", "moe_k", "num_experts_per_tok"},
    {"gpt_oss", "num_local_experts", "num_experts"},
    {"gpt_oss", "num_experts_per_tok", "experts_per_token"},
};

/// A known key that is not read, and the warning to give if it is set.
struct Note {
  std::string_view key;
  const char* what;
};
constexpr Note kNotes[] = {
    {"aux_loss_alpha", "is not read: --aux sets the coefficient of the balance loss"},
    {"router_aux_loss_coef", "is not read: --aux sets the coefficient of the balance loss"},
    {"router_z_loss_coef", "is not read: --z-loss sets the coefficient of the z-loss"},
    {"router_jitter_noise", "is left out: the router's input has no noise"},
    {"num_nextn_predict_layers", "is left out: no multi-token prediction"},
    {"num_mtp_layers", "is left out: no multi-token prediction"},
    {"residual_dropout", "is left out"},
    {"quantization_config",
     "says how weights are stored, which --init-from reads: --recipe says what is quantized"},
    {"compression_config",
     "says how weights are stored, which --init-from reads: --recipe says what is quantized"},
};

bool all_full_attention(const json& types) {
  return types.is_array() &&
         std::all_of(types.begin(), types.end(), [](const json& type) { return type == "full_attention"; });
}

const KeySet& keys_of(std::string_view model_type) {
  static const KeySet none;
  for (const FamilyKeys& family : family_keys())
    if (family.model_type == model_type) return family.keys;
  return none;
}

}  // namespace

bool family_reads_key(std::string_view model_type, std::string_view key) {
  const KeySet& keys = keys_of(model_type);
  return keys.count(key) || std::any_of(std::begin(kAliases), std::end(kAliases), [&](const Alias& alias) {
           return alias.model_type == model_type && alias.other == key && keys.count(alias.key);
         });
}

namespace {

/// Returns the first model_type that reads a key; null if none does.
const char* reader_of(std::string_view key) {
  for (const FamilyKeys& family : family_keys())
    if (family_reads_key(family.model_type, key)) return family.model_type;
  return nullptr;
}

/// Returns up to eight words and the number of the remaining ones.
std::string listed(std::vector<std::string> words) {
  constexpr std::size_t kShown = 8;
  const std::size_t all = words.size();
  words.resize(std::min(all, kShown));
  return fmt::format("{}{}", fmt::join(words, ", "),
                     all > kShown ? fmt::format(" and {} more", all - kShown) : "");
}

}  // namespace

bool reads_key(std::string_view model_type, std::string_view key) {
  return common_keys().count(key) || family_reads_key(model_type, key);
}

std::string key_in_file(const json& object, std::string_view model_type, const std::string& key) {
  if (given(object, key.c_str())) return key;
  for (const Alias& alias : kAliases)
    if (alias.model_type == model_type && alias.key == key && given(object, alias.other)) return alias.other;
  return key;
}

void check_aliases(const json& object, std::string_view model_type) {
  for (const Alias& alias : kAliases) {
    const auto [type, key, other] = alias;
    if (type != model_type || !given(object, key) || !given(object, other)) continue;
    if (object.at(key) != object.at(other))
      throw InvalidInput(fmt::format("{} {} and {} {}: a {} has both names for one number; leave one out",
                                     key, shown(object.at(key)), other, shown(object.at(other)), model_type));
  }
}

void note_unread_keys(const json& object, const std::string& model_type, ModelConfig& config) {
  std::vector<std::string> of_others, unknown;
  for (const auto& [key, value] : object.items()) {
    if (asks_nothing(value)) continue;
    const auto note = std::find_if(std::begin(kNotes), std::end(kNotes),
                                   [&, &name = key](const Note& known) { return known.key == name; });
    const char* reader = reader_of(key);
    const bool own = family_reads_key(model_type, key);
    if (note != std::end(kNotes) && (own || !reader)) {
      config.not_modelled.push_back(value.is_structured()
                                        ? fmt::format("{} {}", key, note->what)
                                        : fmt::format("{} {} {}", key, shown(value), note->what));
      continue;
    }
    if (own || common_keys().count(key) || asks_for_another_model(key)) continue;
    // Disabled windows and lists of full-attention layers have no effect.
    if ((key == "sliding_window" || key == "max_window_layers") &&
        object.value("use_sliding_window", json()) == false)
      continue;
    if (key == "layer_types" && all_full_attention(value)) continue;
    if (reader)
      of_others.push_back(fmt::format("{} (of {})", key, reader));
    else
      unknown.push_back(key);
  }
  if (!of_others.empty())
    config.not_modelled.push_back(
        fmt::format("keys that a {} does not read were left out: {}", model_type, listed(of_others)));
  if (!unknown.empty())
    config.not_modelled.push_back(
        fmt::format("keys that are not known here were left out: {}", listed(unknown)));
}

}  // namespace precbench::config_keys
