// The experts of a Hugging Face config.json: the router of each model_type, and what of these models is not modelled and
// therefore refused. Source of the defaults: the configuration classes of transformers 4 and 5.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// A key that asks for another model unless it has one of these values, absent too where that is another's default.
struct Refusal {
  const char* model_type;
  const char* key;
  json allowed;  ///< beside null
  bool absent_is_allowed;
  const char* what;
};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all = {
      {"mixtral", "sliding_window", nullptr, true, "a sliding window is"},
      {"mixtral", "router_jitter_noise", 0.0, true, "noise on the router's input is"},
      {"qwen3_moe", "decoder_sparse_step", 1, true, "blocks without experts between others are"},
      {"qwen3_moe", "mlp_only_layers", json::array(), true, "blocks without experts between others are"},
      {"olmoe", "clip_qkv", nullptr, true, "clipping of queries, keys and values is"},
      {"deepseek_v2", "kv_lora_rank", nullptr, false, "latent attention (MLA) is"},
      {"deepseek_v2", "moe_layer_freq", 1, true, "blocks without experts between others are"},
      {"deepseek_v2", "scoring_func", "softmax", true, "another score of this model_type is"},
      {"deepseek_v2", "norm_topk_prob", false, true, "normalised weights of this model_type are"},
      {"deepseek_v3", "kv_lora_rank", nullptr, false, "latent attention (MLA) is"},
      {"deepseek_v3", "scoring_func", "sigmoid", true, "another score of this model_type is"},
      {"deepseek_v3", "moe_layer_freq", 1, true, "blocks without experts between others are"},
      {"llama4_text", "attention_chunk_size", nullptr, false, "chunked attention is"},
      {"llama4_text", "use_qk_norm", false, false, "the L2 norm of queries and keys is"},
      {"llama4_text", "attn_temperature_tuning", false, false, "attention temperature is"},
      {"llama4_text", "interleave_moe_layer_step", 1, true, "blocks without experts between others are"},
  };
  return all;
}

void refuse_other_models(const json& object, std::string_view model_type) {
  for (const Refusal& r : refusals()) {
    if (model_type != r.model_type) continue;
    const auto found = object.find(r.key);
    const bool absent = found == object.end();
    if (absent ? r.absent_is_allowed : found->is_null() || *found == r.allowed) continue;
    throw InvalidInput(fmt::format("{}: {} not supported; set it to {} to measure the model without", r.key,
                                   r.what, r.allowed.dump()));
  }
  if (model_type != "llama4_text") return;
  // 1: the layer has RoPE. Where the key says nothing every fourth layer has none.
  const auto layers = object.find("no_rope_layers");
  if (layers == object.end() || !layers->is_array() || layers->empty() ||
      std::any_of(layers->begin(), layers->end(), [](const json& rope) { return rope != 1; }))
    throw InvalidInput(
        "no_rope_layers: layers without RoPE are not supported; set it to a list of ones, one for each layer");
}

std::int64_t length(const json& object, const std::string& key, std::int64_t otherwise) {
  read(object, key.c_str(), otherwise);
  return otherwise;
}

/// As length(), of a key that may say 0: none.
std::int64_t length_or_none(const json& object, const std::string& key, std::int64_t otherwise) {
  const auto found = object.find(key);
  if (found != object.end() && (found->is_null() || *found == 0)) return 0;
  return length(object, key, otherwise);
}

void read_mixtral(const json& object, const KeyNames& names, ModelConfig& config) {
  config.moe.rule = {.experts = length(object, names("experts"), 8),
                     .top_k = length(object, names("top_k"), 2)};
  config.moe.expert_ffn = config.ffn;
  config.moe.names = ExpertNames::mixtral;
}

void read_qwen3_or_olmoe(const json& object, bool qwen3, const KeyNames& names, ModelConfig& config) {
  bool normalised = false;
  read(object, "norm_topk_prob", normalised);
  config.moe.rule = {.experts = length(object, names("experts"), qwen3 ? 128 : 64),
                     .top_k = length(object, names("top_k"), 8),
                     .normalise = normalised};
  config.moe.expert_ffn = qwen3 ? length(object, names("expert_ffn"), 768) : config.ffn;
}

void read_deepseek(const json& object, bool third, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  RoutingRule& rule = moe.rule;
  rule.experts = length(object, names("experts"), third ? 256 : 64);
  rule.top_k = length(object, names("top_k"), third ? 8 : 6);
  rule.score = third ? RouterScore::sigmoid : RouterScore::softmax;
  rule.normalise = third;
  read(object, "norm_topk_prob", rule.normalise);
  rule.scale = third ? 2.5 : 1;
  read(object, names("route_scale").c_str(), rule.scale);
  std::string method = third ? "noaux_tc" : "greedy";
  read(object, "topk_method", method);
  if (third ? method != "noaux_tc" : method != "greedy" && method != "group_limited_greedy")
    throw InvalidInput(fmt::format("topk_method: \"{}\" is not supported", method));
  if (method != "greedy") {
    rule.groups = length(object, names("groups"), third ? 8 : 1);
    rule.group_top_k = length(object, names("group_top_k"), third ? 4 : 1);
    rule.group_score = third ? GroupScore::top2 : GroupScore::max;
  }
  moe.route_bias = third;
  moe.expert_ffn = length(object, names("expert_ffn"), third ? 2048 : 1407);
  moe.shared_ffn = moe.expert_ffn * length_or_none(object, "n_shared_experts", third ? 1 : 2);
  moe.dense_layers = length_or_none(object, names("dense_layers"), third ? 3 : 0);
}

void read_llama4(const json& object, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.rule = {.experts = length(object, names("experts"), 16),
              .top_k = length(object, names("top_k"), 1),
              .score = RouterScore::sigmoid,
              .normalise = false};
  moe.expert_ffn = moe.shared_ffn = config.ffn;
  moe.weight_at = WeightAt::input;
  moe.names = ExpertNames::llama4;
}

}  // namespace

bool hugging_face_has_experts(const std::string& model_type) {
  for (const char* known : {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "llama4_text"})
    if (model_type == known) return true;
  return false;
}

const std::vector<const char*>& hugging_face_moe_keys() {
  static const std::vector<const char*> keys = {"attention_chunk_size",
                                                "attn_temperature_tuning",
                                                "clip_qkv",
                                                "aux_loss_alpha",
                                                "decoder_sparse_step",
                                                "ep_size",
                                                "first_k_dense_replace",
                                                "interleave_moe_layer_step",
                                                "intermediate_size_mlp",
                                                "kv_lora_rank",
                                                "mlp_only_layers",
                                                "moe_intermediate_size",
                                                "moe_layer_freq",
                                                "moe_layers",
                                                "n_group",
                                                "n_routed_experts",
                                                "n_shared_experts",
                                                "no_rope_layer_interval",
                                                "no_rope_layers",
                                                "norm_topk_prob",
                                                "num_experts",
                                                "num_experts_per_tok",
                                                "num_local_experts",
                                                "output_router_logits",
                                                "q_lora_rank",
                                                "qk_nope_head_dim",
                                                "qk_rope_head_dim",
                                                "routed_scaling_factor",
                                                "router_aux_loss_coef",
                                                "router_jitter_noise",
                                                "scoring_func",
                                                "seq_aux",
                                                "topk_group",
                                                "topk_method",
                                                "use_qk_norm",
                                                "v_head_dim"};
  return keys;
}

std::map<std::string, std::string> hugging_face_moe_names(const std::string& model_type) {
  if (!hugging_face_has_experts(model_type)) return {};
  std::map<std::string, std::string> names = {{"top_k", "num_experts_per_tok"}};
  if (model_type == "qwen3_moe") {
    names["experts"] = "num_experts";
    names["expert_ffn"] = "moe_intermediate_size";
  } else if (model_type == "olmoe") {
    names["experts"] = "num_experts";
    names["expert_ffn"] = "intermediate_size";
  } else if (model_type.starts_with("deepseek")) {
    names["experts"] = "n_routed_experts";
    names["expert_ffn"] = "moe_intermediate_size";
    names["dense_layers"] = "first_k_dense_replace";
    names["route_scale"] = "routed_scaling_factor";
    names["groups"] = names["group_score"] = "n_group";
    names["group_top_k"] = "topk_group";
  } else {
    names["experts"] = "num_local_experts";
    names["expert_ffn"] = "intermediate_size";
  }
  return names;
}

void read_hugging_face_moe(const json& object, const std::string& model_type, ModelConfig& config) {
  refuse_other_models(object, model_type);
  const KeyNames names = KeyNames::of_hugging_face(model_type);
  if (model_type == "mixtral")
    read_mixtral(object, names, config);
  else if (model_type == "qwen3_moe" || model_type == "olmoe")
    read_qwen3_or_olmoe(object, model_type == "qwen3_moe", names, config);
  else if (model_type == "llama4_text")
    read_llama4(object, names, config);
  else
    read_deepseek(object, model_type == "deepseek_v3", names, config);
}

}  // namespace precbench::config_keys
