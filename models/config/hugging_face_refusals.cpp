// Keys of a Hugging Face config.json that ask for another model than the one we compute, and the error that names all of
// them. Source: as hugging_face_keys.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

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
      {"cwm", "mlp_bias", {false}, true, "a bias in the MLP"},
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
      {"cohere2", "use_parallel_block", {true}, true, "a sequential residual"},
      {"cohere2", "position_embedding_type", {"rope_gptj"}, true, "other positions"},
      {"mixtral", "router_jitter_noise", {0.0}, true, "noise on the router's input"},
      {"mixtral", "norm_topk_prob", {true}, true, "a router of this model_type that does not normalise"},
      {"seed_oss", "mlp_bias", {false}, true, "a bias in the MLP"},
      {"ernie4_5", "use_bias", {false}, true, "a bias in linear layers"},
      {"ernie4_5_moe", "use_bias", {false}, true, "a bias in linear layers"},
      {"minimax_m2", "router_jitter_noise", {0.0}, true, "noise on the router's input"},
      {"minimax_m2", "scoring_func", {"sigmoid"}, true, "another score of this model_type"},
      {"minimax_m2", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"minimax_m2", "qk_norm_type", {"per_layer"}, true, "another QK-norm of this model_type"},
      {"minimax_m2", "use_routing_bias", {true}, true, "a router of this model_type without a bias"},
      {"qwen2_moe", "use_sliding_window", {false}, true, "a window of this model_type"},
      {"qwen3_moe", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"olmoe", "attention_bias", {false}, true, bias},
      {"olmoe", "use_qk_norm", {true}, true, "a model of this type without a QK-norm"},
      {"olmoe", "clip_qkv", {nullptr}, true, "clipping of queries, keys and values"},
      {"gpt_oss", "swiglu_alpha", {1.702}, true, "another factor inside SwiGLU's sigmoid"},
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
  if (activation != "silu" && !family_reads_key(model_type, "hidden_activation") &&
      !family_reads_key(model_type, "hidden_act"))
    refused.add("hidden_act", shown(activation), "\"silu\"");
  for (const ForeignKey& foreign : foreign_keys()) {
    const auto found = object.find(foreign.key);
    if (found == object.end() || found->is_null() || *found == foreign.neutral ||
        family_reads_key(model_type, foreign.key))
      continue;
    if (asks_nothing(foreign.neutral) && asks_nothing(*found)) continue;
    refused.add(foreign.key, foreign.what, foreign.neutral.dump());
  }
  for (const ShapeKey& shape : kShapeKeys) {
    const auto found = object.find(shape.key);
    if (found == object.end() || found->is_null() || family_reads_key(model_type, shape.key)) continue;
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

}  // namespace

bool asks_nothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

bool asks_for_another_model(std::string_view key) {
  const auto has_key = [&](const auto& entry) { return entry.key == key; };
  return std::any_of(foreign_keys().begin(), foreign_keys().end(), has_key) ||
         std::any_of(std::begin(kShapeKeys), std::end(kShapeKeys), has_key);
}

void Refusals::add(const std::string& key, const std::string& what, const std::string& remedy) {
  all_.push_back({key, what, remedy});
}

void Refusals::throw_if_any() const {
  if (all_.empty()) return;
  if (all_.size() == 1)
    throw InvalidInput(fmt::format("{}: {} is not supported; set it to {} to measure the model without",
                                   all_[0].key, all_[0].what, all_[0].remedy));
  std::vector<std::string> what, remedies;
  for (const Entry& entry : all_) {
    what.push_back(fmt::format("{}: {}", entry.key, entry.what));
    remedies.push_back(fmt::format("{} to {}", entry.key, entry.remedy));
  }
  throw InvalidInput(fmt::format("{}: none of these is supported; set {} to measure the model without",
                                 fmt::join(what, "; "), fmt::join(remedies, ", ")));
}

void refuse_other_models(const json& object, const std::string& model_type, const ModelConfig& config,
                         Refusals& refused) {
  refuse_own_keys(object, model_type, refused);
  refuse_layer_types(object, model_type, refused);
  refuse_foreign_keys(object, config, model_type, refused);
}

}  // namespace precbench::config_keys
