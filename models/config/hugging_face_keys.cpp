// Keys of a Hugging Face config.json: those that each model_type reads with their aliases, those that ask for
// another model, and those that are ignored with a warning. Source: the configuration classes of transformers
// 4.57 and 5.24; aliases are in their attribute_map.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
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
};

/// A key of a model_type that asks for another model unless it is null or has an allowed value. An absent key
/// means the model_type's default.
struct Refusal {
  const char* model_type;
  const char* key;
  std::vector<json> allowed;  ///< the error suggests the first
  bool absent_is_allowed;
  const char* what;
};

const std::vector<Refusal>& refusals() {
  const char* bias = "a bias in attention";
  const char* dense = "a block without experts between others";
  const char* both_ways = "attention to later tokens";
  static const std::vector<Refusal> all = {
      {"llama", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"qwen3", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"smollm3", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"granite", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"olmo2", "attention_bias", {false}, true, bias},
      {"olmo3", "attention_bias", {false}, true, bias},
      {"phi3", "attention_bias", {false}, true, bias},
      {"phi3", "embd_pdrop", {0.0}, true, "dropout"},
      {"phi3", "resid_pdrop", {0.0}, true, "dropout"},
      {"gemma", "use_bidirectional_attention", {false}, true, both_ways},
      {"gemma", "hidden_activation", {"gelu_pytorch_tanh"}, true, "another activation"},
      {"gemma2", "use_bidirectional_attention", {false}, true, both_ways},
      {"gemma3_text", "use_bidirectional_attention", {false}, true, both_ways},
      {"gpt2", "scale_attn_weights", {true}, true, "attention without a scale"},
      {"gpt2", "scale_attn_by_inverse_layer_idx", {false}, true, "a scale of attention by the layer"},
      {"gpt2", "add_cross_attention", {false}, true, "cross-attention"},
      {"gpt_bigcode", "scale_attn_weights", {true}, true, "attention without a scale"},
      {"gpt_bigcode",
       "multi_query",
       {true},
       true,
       "a model of this type with a key head for each query head"},
      {"gpt_bigcode", "add_cross_attention", {false}, true, "cross-attention"},
      {"gptj", "scale_attn_weights", {true}, true, "attention without a scale"},
      {"gptj", "rotary", {true}, true, "a model of this type without RoPE"},
      {"phi", "qk_layernorm", {false}, true, "a LayerNorm of queries and keys"},
      {"starcoder2", "norm_type", {"layer_norm"}, true, "another norm"},
      {"starcoder2", "mlp_type", {"default"}, true, "another MLP"},
      {"stablelm", "qk_layernorm", {false}, true, "a LayerNorm of queries and keys"},
      {"cohere", "use_qk_norm", {false}, true, "a LayerNorm of queries and keys"},
      {"cohere2", "use_gated_activation", {true}, true, "an MLP of this model_type without a gate"},
      {"cohere2", "use_parallel_block", {true}, true, "a model of this type with one half after the other"},
      {"cohere2", "position_embedding_type", {"rope_gptj"}, true, "other positions"},
      {"mixtral", "router_jitter_noise", {0.0}, true, "noise on the router's input"},
      {"mixtral", "norm_topk_prob", {true}, true, "a router of this model_type that does not normalise"},
      {"seed_oss", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"ernie4_5", "use_bias", {false}, true, "a bias in linear layers"},
      {"ernie4_5_moe", "use_bias", {false}, true, "a bias in linear layers"},
      {"ernie4_5_moe", "moe_layer_interval", {1}, true, dense},
      {"minimax_m2", "router_jitter_noise", {0.0}, true, "noise on the router's input"},
      {"minimax_m2", "scoring_func", {"sigmoid"}, true, "another score of this model_type"},
      {"minimax_m2", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"minimax_m2", "qk_norm_type", {"per_layer"}, true, "another QK-norm of this model_type"},
      {"minimax_m2", "use_routing_bias", {true}, true, "a router of this model_type without a bias"},
      {"qwen2_moe", "decoder_sparse_step", {1}, true, dense},
      {"qwen2_moe", "use_sliding_window", {false}, true, "a window of this model_type"},
      {"qwen3_moe", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"qwen3_moe", "decoder_sparse_step", {1}, true, dense},
      {"qwen3_moe", "mlp_only_layers", {json::array()}, true, dense},
      {"olmoe", "attention_bias", {false}, true, bias},
      {"olmoe", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"olmoe", "clip_qkv", {nullptr}, true, "clipping of queries, keys and values"},
      {"deepseek", "attention_bias", {false}, true, bias},
      {"deepseek", "moe_layer_freq", {1}, true, dense},
      {"deepseek", "scoring_func", {"softmax"}, true, "another score of this model_type"},
      {"deepseek_v2", "attention_bias", {false}, true, bias},
      {"deepseek_v2", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"deepseek_v2", "moe_layer_freq", {1}, true, dense},
      {"deepseek_v2", "scoring_func", {"softmax"}, true, "another score of this model_type"},
      {"deepseek_v2", "norm_topk_prob", {false}, true, "a router of this model_type that normalises"},
      {"deepseek_v2",
       "topk_method",
       {"greedy", "group_limited_greedy"},
       true,
       "another method of this model_type"},
      {"deepseek_v3", "attention_bias", {false}, true, bias},
      {"deepseek_v3", "moe_layer_freq", {1}, true, dense},
      {"deepseek_v3", "scoring_func", {"sigmoid"}, true, "another score of this model_type"},
      {"deepseek_v3", "topk_method", {"noaux_tc"}, true, "another method of this model_type"},
      {"llama4_text", "attention_bias", {false}, true, bias},
      {"llama4_text", "attention_chunk_size", {nullptr}, false, "chunked attention"},
      {"llama4_text", "use_qk_norm", {false}, false, "the L2 norm of queries and keys"},
      {"llama4_text", "attn_temperature_tuning", {false}, false, "attention temperature"},
      {"llama4_text", "interleave_moe_layer_step", {1}, true, dense},
  };
  return all;
}

/// A key of no supported model_type that asks for another model unless it is null or has this value.
struct ForeignKey {
  const char* key;
  json neutral;
  const char* what;
};

const std::vector<ForeignKey>& foreign_keys() {
  static const std::vector<ForeignKey> all = {
      {"attn_logit_softcapping", nullptr, "softcapping of attention's logits"},
      {"final_logit_softcapping", nullptr, "softcapping of the logits"},
      {"embedding_multiplier", 1, "a multiplier of embeddings"},
      {"scale_emb", 1, "a multiplier of embeddings"},
      {"residual_multiplier", 1, "a multiplier of residual branches"},
      {"logits_scaling", 1, "a divisor of the logits"},
      {"logit_scale", 1, "a multiplier of the logits"},
      {"lm_head_multiplier", 1, "a multiplier of the logits"},
      {"key_multiplier", 1, "a multiplier of keys"},
      {"attention_in_multiplier", 1, "a multiplier of attention's input"},
      {"attention_out_multiplier", 1, "a multiplier of attention's output"},
      {"mlp_multipliers", json::array({1, 1}), "a multiplier in the MLP"},
      {"use_parallel_residual", false, "a parallel residual"},
      {"parallel_attn", false, "a parallel residual"},
      {"alibi", false, "ALiBi"},
      {"rotary_pct", 1, "a partial rotary embedding"},
      {"hidden_activation", "silu", "another activation than SiLU"},
      {"activation_function", "silu", "another activation than SiLU"},
      {"swiglu_alpha", 1, "another SwiGLU"},
      {"swiglu_limit", nullptr, "a clamped SwiGLU"},
      {"qkv_bias", false, "a bias in attention"},
      {"use_bias", false, "a bias in linear layers"},
      {"num_shared_experts", 0, "a shared expert of this model_type"},
      {"shared_expert_intermediate_size", 0, "a shared expert of this model_type"},
  };
  return all;
}

/// A ForeignKey whose neutral value depends on the shape.
struct ShapeKey {
  const char* key;
  double (*neutral)(const ModelConfig&);
  const char* what;
};

double head_width(const ModelConfig& c) {
  return static_cast<double>(c.head_dim > 0 ? c.head_dim : c.width / std::max<std::int64_t>(c.heads, 1));
}

constexpr ShapeKey kShapeKeys[] = {
    {"attention_multiplier", [](const ModelConfig& c) { return 1 / std::sqrt(head_width(c)); },
     "another scale of attention"},
    {"query_pre_attn_scalar", head_width, "another scale of attention"},
    {"rotary_dim", head_width, "a partial rotary embedding"},
    {"dim_model_base", [](const ModelConfig& c) { return static_cast<double>(c.width); },
     "a divisor of the logits"},
    {"scale_depth", [](const ModelConfig& c) { return std::sqrt(static_cast<double>(c.layers)); },
     "a multiplier of residual branches"},
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
    {"quantization_config", "is not read: --recipe says what is quantized"},
};

bool asks_nothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

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

bool reads(std::string_view model_type, std::string_view key) {
  const KeySet& keys = keys_of(model_type);
  return keys.count(key) || std::any_of(std::begin(kAliases), std::end(kAliases), [&](const Alias& alias) {
           return alias.model_type == model_type && alias.other == key && keys.count(alias.key);
         });
}

/// Returns the first model_type that reads a key; null if none does.
const char* reader_of(std::string_view key) {
  for (const FamilyKeys& family : family_keys())
    if (reads(family.model_type, key)) return family.model_type;
  return nullptr;
}

bool is_foreign(std::string_view key) {
  const auto has_key = [&](const auto& entry) { return entry.key == key; };
  return std::any_of(foreign_keys().begin(), foreign_keys().end(), has_key) ||
         std::any_of(std::begin(kShapeKeys), std::end(kShapeKeys), has_key);
}

void refuse_own_keys(const json& object, std::string_view model_type, Refusals& refused) {
  for (const Refusal& r : refusals()) {
    if (model_type != r.model_type) continue;
    const auto found = object.find(r.key);
    const bool absent = found == object.end();
    if (absent ? r.absent_is_allowed
               : found->is_null() || std::find(r.allowed.begin(), r.allowed.end(), *found) != r.allowed.end())
      continue;
    refused.add(r.key, r.what, r.allowed.front().dump());
  }
}

void refuse_foreign_keys(const json& object, const ModelConfig& config, const std::string& model_type,
                         Refusals& refused) {
  std::string activation = "silu";
  read(object, "hidden_act", activation);
  if (activation != "silu" && !reads(model_type, "hidden_activation") && !reads(model_type, "hidden_act"))
    refused.add("hidden_act", shown(activation), "\"silu\"");
  for (const ForeignKey& foreign : foreign_keys()) {
    const auto found = object.find(foreign.key);
    if (found == object.end() || found->is_null() || *found == foreign.neutral ||
        reads(model_type, foreign.key))
      continue;
    if (asks_nothing(foreign.neutral) && asks_nothing(*found)) continue;
    refused.add(foreign.key, foreign.what, foreign.neutral.dump());
  }
  for (const ShapeKey& shape : kShapeKeys) {
    const auto found = object.find(shape.key);
    if (found == object.end() || found->is_null() || reads(model_type, shape.key)) continue;
    const double neutral = shape.neutral(config);
    if (!found->is_number() || std::abs(found->get<double>() - neutral) > 1e-6 * neutral)
      refused.add(shape.key, shape.what, "null");
  }
}

/// Refuses layers with attention that is neither full nor sliding, if the model_type reads the list.
void refuse_layer_types(const json& object, std::string_view model_type, Refusals& refused) {
  if (model_type != "qwen2" && model_type != "qwen2_moe" && model_type != "qwen3" && model_type != "smollm3")
    return;
  const auto types = object.find("layer_types");
  if (types == object.end() || !types->is_array()) return;
  for (const json& type : *types)
    if (type != "full_attention" && type != "sliding_attention")
      return refused.add("layer_types", shown(type), "null");
}

void refuse_llama4_layers(const json& object, const ModelConfig& config, Refusals& refused) {
  // 1: the layer has RoPE. Without the key every fourth layer has none.
  const auto layers = object.find("no_rope_layers");
  if (layers == object.end() || !layers->is_array() || layers->empty() ||
      std::any_of(layers->begin(), layers->end(), [](const json& rope) { return rope != 1; }))
    refused.add("no_rope_layers", "a layer without RoPE", "a list of ones");
  if (!given(object, "moe_layers")) return;
  json all = json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) all.push_back(layer);
  if (object.at("moe_layers") != all)
    refused.add("moe_layers", "a block without experts between others", "null");
}

/// Refuses latent attention. In its plain replacement heads are as wide as the values, which the file's
/// head_dim need not be: transformers 5 writes the width of the RoPE part there.
void refuse_latent_attention(const json& object, Refusals& refused) {
  if (object.contains("kv_lora_rank") && !given(object, "kv_lora_rank")) return;
  std::int64_t values = kDeepSeekValueWidth;
  read(object, "v_head_dim", values);
  refused.add("kv_lora_rank", "latent attention (MLA)", fmt::format("null and head_dim to {}", values));
  refused.advise("presets deepseek-v2-lite-gqa and deepseek-v3-gqa are such models");
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

void Refusals::add(const std::string& key, const std::string& what, const std::string& remedy) {
  all_.push_back({key, what, remedy});
}

void Refusals::throw_if_any() const {
  if (all_.empty()) return;
  const std::string advice = advice_.empty() ? "" : "; " + advice_;
  if (all_.size() == 1)
    throw InvalidInput(fmt::format("{}: {} is not supported; set it to {} to measure the model without{}",
                                   all_[0].key, all_[0].what, all_[0].remedy, advice));
  std::vector<std::string> what, remedies;
  for (const Entry& entry : all_) {
    what.push_back(fmt::format("{}: {}", entry.key, entry.what));
    remedies.push_back(fmt::format("{} to {}", entry.key, entry.remedy));
  }
  throw InvalidInput(fmt::format("{}: none of these is supported; set {} to measure the model without{}",
                                 fmt::join(what, "; "), fmt::join(remedies, ", "), advice));
}

bool reads_key(std::string_view model_type, std::string_view key) {
  return common_keys().count(key) || reads(model_type, key);
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

void refuse_other_models(const json& object, const std::string& model_type, const ModelConfig& config,
                         Refusals& refused) {
  refuse_own_keys(object, model_type, refused);
  if (model_type == "llama4_text") refuse_llama4_layers(object, config, refused);
  if (model_type.starts_with("deepseek_")) refuse_latent_attention(object, refused);
  refuse_layer_types(object, model_type, refused);
  refuse_foreign_keys(object, config, model_type, refused);
}

void note_unread_keys(const json& object, const std::string& model_type, ModelConfig& config) {
  std::vector<std::string> of_others, unknown;
  for (const auto& [key, value] : object.items()) {
    if (asks_nothing(value)) continue;
    const auto note = std::find_if(std::begin(kNotes), std::end(kNotes),
                                   [&, &name = key](const Note& known) { return known.key == name; });
    const char* reader = reader_of(key);
    const bool own = reads(model_type, key);
    if (note != std::end(kNotes) && (own || !reader)) {
      config.not_modelled.push_back(value.is_structured()
                                        ? fmt::format("{} {}", key, note->what)
                                        : fmt::format("{} {} {}", key, shown(value), note->what));
      continue;
    }
    if (own || common_keys().count(key) || is_foreign(key)) continue;
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
