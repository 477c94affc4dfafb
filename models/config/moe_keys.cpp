// MoE keys of our own JSON: reading, writing and validation. See config_keys.h.
#include <fmt/format.h>

#include <cmath>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr EnumNames<RouterScore, 2> kScoreNames{{"softmax", "sigmoid"}};
constexpr EnumNames<GroupScore, 2> kGroupScoreNames{{"max", "top2"}};
constexpr EnumNames<WeightAt, 2> kWeightAtNames{{"swiglu", "input"}};
constexpr EnumNames<ExpertNames, 6> kExpertNames{
    {"qwen3", "mixtral", "llama4", "qwen2", "ernie4_5", "gpt_oss"}};

/// Calls visit(key, member) for every key.
template <class Moe, class Visit>
void each_moe_key(Moe& moe, Visit&& visit) {
  visit("experts", moe.rule.experts), visit("top_k", moe.rule.top_k);
  visit("expert_ffn", moe.expert_ffn), visit("shared_ffn", moe.shared_ffn);
  visit("shared_gate", moe.shared_gate);
  visit("dense_layers", moe.dense_layers), visit("layer_interval", moe.layer_interval);
  visit("score", moe.rule.score), visit("normalise", moe.rule.normalise),
      visit("route_scale", moe.rule.scale);
  visit("route_bias", moe.route_bias);
  visit("logit_bias", moe.logit_bias), visit("expert_bias", moe.expert_bias);
  visit("swiglu_limit", moe.swiglu_limit);
  visit("groups", moe.rule.groups), visit("group_top_k", moe.rule.group_top_k);
  visit("group_score", moe.rule.group_score);
  visit("weight_at", moe.weight_at), visit("expert_names", moe.names);
}

const auto& names_of(RouterScore) { return kScoreNames; }
const auto& names_of(GroupScore) { return kGroupScoreNames; }
const auto& names_of(WeightAt) { return kWeightAtNames; }
const auto& names_of(ExpertNames) { return kExpertNames; }

template <class Value>
void read_member(const json& object, const char* key, Value& to) {
  if constexpr (std::is_enum_v<Value>) {
    read(object, key, to, names_of(to));
  } else if constexpr (std::is_same_v<Value, std::int64_t>) {
    if (const auto found = object.find(key); found != object.end() && *found == 0)
      to = 0;  // none; validation refuses a 0 that is not allowed
    else
      read(object, key, to);
  } else {
    read(object, key, to);
  }
}

}  // namespace

std::vector<const char*> moe_key_names() {
  std::vector<const char*> names;
  MoeConfig moe;
  each_moe_key(moe, [&](const char* key, auto&) { names.push_back(key); });
  return names;
}

void read_moe(const json& object, ModelConfig& config) {
  each_moe_key(config.moe, [&](const char* key, auto& member) { read_member(object, key, member); });
}

json moe_to_json(const MoeConfig& moe) {
  const MoeConfig defaults;
  json object;
  each_moe_key(moe, [&](const char* key, const auto& member) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(member)>>)
      object[key] = names_of(member).of(member);
    else
      object[key] = member;
  });
  // Defaults are omitted, except score and normalise.
  each_moe_key(defaults, [&](const char* key, const auto& value) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
      if (object[key] == names_of(value).of(value) && std::string_view(key) != "score") object.erase(key);
    } else if (object[key] == json(value) && std::string_view(key) != "normalise") {
      object.erase(key);
    }
  });
  return object;
}

void validate_moe(const ModelConfig& config, const KeyNames& names) {
  const MoeConfig& moe = config.moe;
  const RoutingRule& rule = moe.rule;
  if (!moe) {
    if (!(moe == MoeConfig{}))
      throw InvalidInput("experts: missing, but the model has other keys of a mixture of experts");
    return;
  }
  const auto refuse = [&](const char* key, const std::string& why) {
    throw InvalidInput(fmt::format("{}: {}", names(key), why));
  };
  constexpr std::int64_t kMostExperts = 4096;
  if (rule.experts > kMostExperts)
    refuse("experts", fmt::format("must be at most {}, got {}", kMostExperts, rule.experts));
  if (rule.top_k < 1 || rule.top_k > rule.experts)
    refuse("top_k", fmt::format("must be from 1 to the {} experts, got {}", rule.experts, rule.top_k));
  if (moe.expert_ffn < 1) refuse("expert_ffn", "missing; a mixture of experts needs it");
  if (moe.dense_layers > 0 && moe.dense_layers >= config.layers)
    refuse("dense_layers",
           fmt::format("{} of {} layers leave none with experts", moe.dense_layers, config.layers));
  // The first block with experts is the last of the interval that contains block dense_layers.
  const std::int64_t interval = moe.layer_interval;
  if (interval < 1 || interval > config.layers ||
      (moe.dense_layers / interval + 1) * interval > config.layers)
    refuse("layer_interval",
           fmt::format("{} leaves none of {} layers with experts", interval, config.layers));
  if (!std::isfinite(rule.scale) || rule.scale <= 0)
    refuse("route_scale", fmt::format("must be a positive number, got {}", rule.scale));
  if (rule.groups < 1 || rule.experts % rule.groups != 0)
    refuse("groups", fmt::format("{} do not divide {} experts", rule.groups, rule.experts));
  if (rule.group_top_k < 1 || rule.group_top_k > rule.groups)
    refuse("group_top_k",
           fmt::format("must be from 1 to the {} groups, got {}", rule.groups, rule.group_top_k));
  if (rule.top_k > rule.experts / rule.groups * rule.group_top_k)
    refuse("top_k", fmt::format("{} experts are more than {} groups of {} have", rule.top_k, rule.group_top_k,
                                rule.experts / rule.groups));
  if (rule.group_score == GroupScore::top2 && rule.experts / rule.groups < 2)
    refuse("group_score", "top2 needs groups of two experts and more");
  if (moe.shared_gate && moe.shared_ffn == 0)
    refuse("shared_gate", "the model has no shared expert (shared_ffn)");
  if (!std::isfinite(moe.swiglu_limit) || moe.swiglu_limit < 0)
    refuse("swiglu_limit", fmt::format("must be a positive number, got {}", moe.swiglu_limit));
  if (moe.swiglu_limit > 0 && (!moe.in_all_layers() || moe.shared_ffn > 0))
    refuse("swiglu_limit", "supported in models whose only feed-forward networks are routed experts");
  if (moe.expert_bias && moe.weight_at == WeightAt::input)
    refuse("expert_bias", "not supported with weights on the experts' input (weight_at)");
  if (moe.names == ExpertNames::gpt_oss && (moe.shared_ffn > 0 || !moe.in_all_layers()))
    refuse("expert_names", "gpt_oss has neither a shared expert nor layers without experts");
  // Llama 4 files store rows of queries and keys in another order, and the order of biases would be unknown.
  const bool reordered = config.block.rotary_dim > 0 || config.block.rope_pairs != RopePairs::halves;
  if (moe.names == ExpertNames::llama4 && (config.qkv_bias || config.qk_norm || reordered))
    refuse(config.qkv_bias  ? "qkv_bias"
           : config.qk_norm ? "qk_norm"
                            : "rotary_dim",
           "not of a model with Llama 4's names of tensors (expert_names)");
}

}  // namespace precbench::config_keys
