// MoE settings of a Hugging Face config.json: the router of each model_type. Source of the defaults: the
// configuration classes of transformers 4 and 5.
#include <fmt/format.h>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

std::int64_t length(const json& object, const std::string& key, std::int64_t otherwise) {
  read(object, key.c_str(), otherwise);
  return otherwise;
}

/// Returns length(), or 0 if the key is 0 or null.
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

/// Sets the number of first layers without experts from a list of them. Throws InvalidInput if the list has others.
void read_dense_list(const json& object, const char* key, ModelConfig& config) {
  if (!given(object, key)) return;
  std::int64_t next = 0;
  const json& list = object.at(key);
  for (const json& layer : list.is_array() ? list : json::array({list})) {
    if (layer != next)
      throw InvalidInput(fmt::format(
          "{}: {} has a layer without experts between others, which is not supported", key, shown(list)));
    ++next;
  }
  config.moe.dense_layers = next;
}

void read_qwen3_or_olmoe(const json& object, bool qwen3, const KeyNames& names, ModelConfig& config) {
  bool normalised = false;
  read(object, "norm_topk_prob", normalised);
  config.moe.rule = {.experts = length(object, names("experts"), qwen3 ? 128 : 64),
                     .top_k = length(object, names("top_k"), 8),
                     .normalise = normalised};
  config.moe.expert_ffn = qwen3 ? length(object, names("expert_ffn"), 768) : config.ffn;
  if (!qwen3) return;
  config.moe.layer_interval = length(object, names("layer_interval"), 1);
  read_dense_list(object, "mlp_only_layers", config);
}

/// `version`: 1 for DeepSeek-MoE, which has plain attention, to 3.
void read_deepseek(const json& object, int version, const KeyNames& names, ModelConfig& config) {
  const bool third = version == 3;
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

void read_qwen2(const json& object, const KeyNames& names, ModelConfig& config) {
  bool normalised = false;
  read(object, "norm_topk_prob", normalised);
  config.moe.rule = {.experts = length(object, names("experts"), 60),
                     .top_k = length(object, names("top_k"), 4),
                     .normalise = normalised};
  config.moe.expert_ffn = length(object, names("expert_ffn"), 1408);
  config.moe.shared_ffn = length(object, "shared_expert_intermediate_size", 5632);
  config.moe.shared_gate = true;
  config.moe.names = ExpertNames::qwen2;
  config.moe.layer_interval = length(object, names("layer_interval"), 1);
  read_dense_list(object, "mlp_only_layers", config);
}

void read_glm4(const json& object, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.rule = {.experts = length(object, names("experts"), 128),
              .top_k = length(object, names("top_k"), 8),
              .score = RouterScore::sigmoid,
              .groups = length(object, names("groups"), 1),
              .group_top_k = length(object, names("group_top_k"), 1),
              .group_score = GroupScore::top2};
  read(object, "norm_topk_prob", moe.rule.normalise);
  read(object, names("route_scale").c_str(), moe.rule.scale);
  moe.route_bias = true;
  moe.expert_ffn = length(object, names("expert_ffn"), 1408);
  moe.shared_ffn = moe.expert_ffn * length_or_none(object, "n_shared_experts", 1);
  moe.dense_layers = length_or_none(object, names("dense_layers"), 1);
  config.qk_norm = false;
  read(object, "use_qk_norm", config.qk_norm);
}

void read_minimax_m2(const json& object, const KeyNames& names, ModelConfig& config) {
  config.moe.rule = {.experts = length(object, names("experts"), 256),
                     .top_k = length(object, names("top_k"), 8),
                     .score = RouterScore::sigmoid};
  config.moe.expert_ffn = config.ffn;
  config.moe.route_bias = true;
  config.moe.names = ExpertNames::mixtral;
}

void read_ernie4_5(const json& object, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.rule = {.experts = length(object, names("experts"), 64), .top_k = length(object, names("top_k"), 6)};
  moe.expert_ffn = length(object, names("expert_ffn"), 1536);
  moe.shared_ffn = moe.expert_ffn * length_or_none(object, "moe_num_shared_experts", 2);
  moe.dense_layers = length_or_none(object, names("dense_layers"), 1);
  moe.layer_interval = length(object, names("layer_interval"), 1);
  moe.route_bias = true;
  moe.names = ExpertNames::ernie4_5;
  const json last = object.value("moe_layer_end_index", json());
  if (!last.is_null() && last != -1 && last != config.layers - 1)
    throw InvalidInput(fmt::format(
        "moe_layer_end_index: {} leaves last layers without experts, which is not supported", shown(last)));
}

void read_gpt_oss(const json& object, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.rule = {.experts = length(object, names("experts"), 128), .top_k = length(object, names("top_k"), 4)};
  moe.expert_ffn = config.ffn;
  moe.logit_bias = moe.expert_bias = true;
  moe.swiglu_limit = 7;
  read(object, "swiglu_limit", moe.swiglu_limit);
  if (moe.swiglu_limit <= 0)
    throw InvalidInput(fmt::format("swiglu_limit: must be a positive number, got {}", moe.swiglu_limit));
  moe.names = ExpertNames::gpt_oss;
}

void read_llama4(const json& object, const KeyNames& names, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  if (object.value(names("experts"), json()) == 0)
    throw InvalidInput(
        fmt::format("{}: 0 is a Llama 4 without experts (Llama Guard 4), all of whose layers have "
                    "intermediate_size_mlp, which is not supported",
                    names("experts")));
  moe.rule = {.experts = length(object, names("experts"), 16),
              .top_k = length(object, names("top_k"), 1),
              .score = RouterScore::sigmoid,
              .normalise = false};
  moe.expert_ffn = moe.shared_ffn = config.ffn;
  moe.weight_at = WeightAt::input;
  moe.names = ExpertNames::llama4;
  moe.layer_interval = length(object, names("layer_interval"), 1);
  if (moe.layer_interval > 1) config.ffn = length(object, "intermediate_size_mlp", 16384);
  const bool listed = given(object, "moe_layers");
  if (listed && object.at("moe_layers") != json(config.layers_with_experts()))
    throw InvalidInput(fmt::format(
        "moe_layers: {}: only every n-th layer, as interleave_moe_layer_step says, can have experts",
        shown(object.at("moe_layers"))));
}

}  // namespace

bool hugging_face_has_experts(const std::string& model_type) {
  for (const char* known :
       {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek", "deepseek_v2", "deepseek_v3", "glm4_moe",
        "minimax_m2", "ernie4_5_moe", "gpt_oss", "llama4_text"})
    if (model_type == known) return true;
  return false;
}

std::map<std::string, std::string> hugging_face_moe_names(const json& object, const std::string& model_type) {
  if (!hugging_face_has_experts(model_type)) return {};
  std::map<std::string, std::string> names = {{"top_k", "num_experts_per_tok"}};
  if (model_type == "qwen3_moe" || model_type == "qwen2_moe") {
    names["experts"] = "num_experts";
    names["expert_ffn"] = "moe_intermediate_size";
    names["layer_interval"] = "decoder_sparse_step";
  } else if (model_type == "olmoe") {
    names["experts"] = "num_experts";
    names["expert_ffn"] = "intermediate_size";
  } else if (model_type == "ernie4_5_moe") {
    names["experts"] = "moe_num_experts";
    names["top_k"] = "moe_k";
    names["expert_ffn"] = "moe_intermediate_size";
    names["dense_layers"] = "moe_layer_start_index";
    names["layer_interval"] = "moe_layer_interval";
  } else if (model_type.starts_with("deepseek") || model_type == "glm4_moe") {
    names["experts"] = "n_routed_experts";
    names["expert_ffn"] = "moe_intermediate_size";
    names["dense_layers"] = "first_k_dense_replace";
    names["route_scale"] = "routed_scaling_factor";
    names["groups"] = names["group_score"] = "n_group";
    names["group_top_k"] = "topk_group";
  } else {
    names["experts"] = "num_local_experts";
    names["expert_ffn"] = "intermediate_size";
    if (model_type == "llama4_text") names["layer_interval"] = "interleave_moe_layer_step";
  }
  for (auto& [ours, theirs] : names) theirs = key_in_file(object, model_type, theirs);
  return names;
}

void read_hugging_face_moe(const json& object, const std::string& model_type, ModelConfig& config) {
  const KeyNames names = KeyNames::of_hugging_face(object);
  if (model_type == "mixtral")
    read_mixtral(object, names, config);
  else if (model_type == "qwen3_moe" || model_type == "olmoe")
    read_qwen3_or_olmoe(object, model_type == "qwen3_moe", names, config);
  else if (model_type == "gpt_oss")
    read_gpt_oss(object, names, config);
  else if (model_type == "llama4_text")
    read_llama4(object, names, config);
  else if (model_type == "qwen2_moe")
    read_qwen2(object, names, config);
  else if (model_type == "glm4_moe")
    read_glm4(object, names, config);
  else if (model_type == "minimax_m2")
    read_minimax_m2(object, names, config);
  else if (model_type == "ernie4_5_moe")
    read_ernie4_5(object, names, config);
  else
    read_deepseek(object,
                  model_type == "deepseek_v3"   ? 3
                  : model_type == "deepseek_v2" ? 2
                                                : 1,
                  names, config);
}

}  // namespace precbench::config_keys
