// Checks of a model, whatever its description. Errors name the key as the description does.
#include <cmath>
#include <utility>

#include "models/config/config_keys.h"
#include "models/config/families_text.h"
#include "models/config/model_keys.h"
#include "models/config/tensor_layout.h"

namespace precbench {
namespace config_keys {
namespace {

using nlohmann::json;

constexpr double kMaxParameters = 1e14;     // more than this means a wrong file
constexpr std::int64_t kMaxLayers = 65536;  // a step is traced layer by layer
constexpr std::int64_t kMostExperts = 4096;

std::vector<std::pair<const char*, std::int64_t>> dimensions_of(const ModelConfig& c) {
  return {{"layers", c.layers},     {"width", c.width},       {"ffn", c.ffn},    {"heads", c.heads},
          {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim}, {"vocab", c.vocab}};
}

/// Refuses a key if a condition holds.
struct Check {
  const KeyNames& names;

  void operator()(bool wrong, const std::string& key, const std::string& why) const {
    if (wrong) refuse("{}: {}", names(key), why);
  }
  void range(const char* key, std::int64_t value, std::int64_t most) const {
    (*this)(value < 1 || value > most, key, fmt::format("must be from 1 to {}, got {}", most, value));
  }
  void positive(const char* key, double value) const {
    (*this)(!std::isfinite(value) || value <= 0, key,
            fmt::format("must be a positive number, got {}", value));
  }
};

void check_layers(const ModelConfig& config, const char* key, const std::vector<std::int64_t>& layers,
                  const Check& refuse) {
  std::int64_t before = -1;
  for (const std::int64_t layer : layers) {
    refuse(layer <= before || layer >= config.layers, key,
           fmt::format("{} is not a layer after {} of {}", layer, before, config.layers));
    before = layer;
  }
}

void validate_latent(const ModelConfig& config, const Check& refuse) {
  const LatentAttention& latent = config.latent;
  const char* needs = "missing; latent attention needs it";
  if (!latent) return refuse(!(latent == LatentAttention{}), "kv_lora_rank", needs);
  refuse(latent.v_dim == 0, "v_head_dim", needs);
  refuse(latent.rope_dim == 0, "qk_rope_head_dim", needs);
  refuse(latent.rope_dim % 2 != 0, "qk_rope_head_dim",
         fmt::format("{} is odd; RoPE rotates pairs", latent.rope_dim));
  refuse(latent.rope_dim >= config.head_dim, "qk_rope_head_dim",
         fmt::format("{} leaves no elements without RoPE of the {} of a head", latent.rope_dim,
                     config.head_dim));
  refuse(
      config.kv_heads != config.heads, "kv_heads",
      fmt::format("{}, but latent attention has a key for each of {} heads", config.kv_heads, config.heads));
}

/// Refuses combinations of keys that the rows of rules.json say: a row's keys that are set, if its conditions hold.
void check_rules(const ModelConfig& config, const Check& refuse) {
  static const json rules = json::parse(kModelRules), defaults = all_keys({});
  const json keys = all_keys(config);
  const auto is_set = [&](const std::string& key) { return keys.at(key) != defaults.at(key); };
  const auto holds = [&](const std::string& key, const json& value) {
    return value == "set" ? is_set(key) : value == "unset" ? !is_set(key) : keys.at(key) == value;
  };
  for (const json& rule : rules) {
    bool all = true;
    for (const auto& [key, value] : rule.at("if").items()) all = all && holds(key, value);
    for (const std::string key : rule.at("keys"))
      refuse(all && is_set(key), rule.value("as", key), rule.at("why").get<std::string>());
  }
}

void validate_block(const ModelConfig& config, const Check& refuse) {
  validate_latent(config, refuse);
  const BlockForm& block = config.block;
  refuse.positive("residual_scale", block.residual_scale);
  refuse.positive("embedding_scale", config.embedding_scale);
  refuse.positive("logit_scale", config.logit_scale);
  for (const auto& [key, value] : {std::pair{"attention_scale", block.attention_scale},
                                   {"attention_softcap", block.attention_softcap},
                                   {"local_rope_theta", block.local_rope_theta},
                                   {"temperature", block.temperature},
                                   {"logit_softcap", config.logit_softcap}})
    if (value != 0) refuse.positive(key, value);
  check_layers(config, "layers_without_rope", block.layers_without_rope, refuse);
  check_layers(config, "local_layers", block.local_layers, refuse);
  refuse((block.temperature != 0) != (block.temperature_positions != 0), "temperature",
         "goes with " + refuse.names("temperature_positions"));
  const bool scaled = config.rope_scaling.attention_factor != 1;
  for (const auto& [key, given] : {std::pair{"unit_queries_and_keys", block.unit_queries_and_keys},
                                   {"qk_norm_after_rope", block.qk_norm_after_rope}})
    refuse(given && scaled, key, "not supported together with a factor on RoPE's output (yarn, longrope)");
  const TensorLayout& layout = tensor_layout(block.tensors);
  refuse(block.tensors != "none" && layout.gated != block.gated, "fused_tensors",
         layout.gated ? "checkpoints of this layout have a gate" : "checkpoints of this layout have no gate");
  refuse(layout.by_head && config.kv_heads != config.heads, "fused_tensors",
         layout.name + " needs as many heads of keys and values as of queries");
  refuse(block.rotary_dim < 0 || block.rotary_dim >= config.head_dim || block.rotary_dim % 2 != 0,
         "rotary_dim",
         fmt::format("{} is not an even number below {} {}", block.rotary_dim, refuse.names("head_dim"),
                     config.head_dim));
  const std::int64_t factors = static_cast<std::int64_t>(config.rope_scaling.pair_factors.size());
  if (config.rope_scaling.kind == RopeScaling::Kind::longrope && factors != config.rotary_dim() / 2)
    config_keys::refuse("rope_scaling: short_factor: has {} numbers, a head of {} has {} pairs", factors,
                        config.rotary_dim(), config.rotary_dim() / 2);
}

/// Refuses more parameters than any model has. In floating point, because the integer product could overflow.
void validate_size(const ModelConfig& config, const KeyNames& names) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const LatentAttention& latent = config.latent;
  const double width = real(config.width), heads = real(config.heads) * real(config.head_dim + latent.v_dim);
  const double linears = 2.0 * real(config.q_width() + config.kv_width()) +
                         real(latent.q_rank + latent.kv_rank) * (1 + heads / width) + 3.0 * real(config.ffn) +
                         real(config.moe.rule.experts) * (1 + 3.0 * real(config.moe.expert_ffn)) +
                         3.0 * real(config.moe.shared_ffn);
  const double parameters =
      width * (real(config.layers) * linears + 2.0 * real(config.vocab) + real(config.learned_positions));
  if (parameters <= kMaxParameters) return;
  std::string keys = fmt::format("{}, {}, {}", names("layers"), names("width"), names("ffn"));
  if (config.moe) keys += ", " + names("experts");
  refuse("{}: {:.1e} parameters are more than any model has", keys, parameters);
}

}  // namespace

void require_dimensions(const ModelConfig& config, const KeyNames& names) {
  for (const auto& [key, value] : dimensions_of(config))
    if (value == 0) refuse("{}: missing; a model needs it", names(key));
}

void validate_moe(const ModelConfig& config, const KeyNames& names) {
  const MoeConfig& moe = config.moe;
  const RoutingRule& rule = moe.rule;
  const Check refuse{names};
  if (!moe) {
    if (!(moe == MoeConfig{}))
      throw InvalidInput("experts: missing, but the model has other keys of a mixture of experts");
    return;
  }
  refuse(rule.experts > kMostExperts, "experts",
         fmt::format("must be at most {}, got {}", kMostExperts, rule.experts));
  refuse(rule.top_k < 1 || rule.top_k > rule.experts, "top_k",
         fmt::format("must be from 1 to the {} experts, got {}", rule.experts, rule.top_k));
  refuse(moe.expert_ffn < 1, "expert_ffn", "missing; a mixture of experts needs it");
  refuse(moe.dense_layers > 0 && moe.dense_layers >= config.layers, "dense_layers",
         fmt::format("{} of {} layers leave none with experts", moe.dense_layers, config.layers));
  // The first block with experts is the last of the interval that contains block dense_layers.
  const std::int64_t interval = moe.layer_interval;
  refuse(interval < 1 || interval > config.layers ||
             (moe.dense_layers / interval + 1) * interval > config.layers,
         "layer_interval", fmt::format("{} leaves none of {} layers with experts", interval, config.layers));
  refuse.positive("route_scale", rule.scale);
  refuse(rule.groups < 1 || rule.experts % rule.groups != 0, "groups",
         fmt::format("{} do not divide {} experts", rule.groups, rule.experts));
  refuse(rule.group_top_k < 1 || rule.group_top_k > rule.groups, "group_top_k",
         fmt::format("must be from 1 to the {} groups, got {}", rule.groups, rule.group_top_k));
  const std::int64_t of_group = rule.experts / rule.groups;
  refuse(
      rule.top_k > of_group * rule.group_top_k, "top_k",
      fmt::format("{} experts are more than {} groups of {} have", rule.top_k, rule.group_top_k, of_group));
  refuse(rule.group_score == GroupScore::top2 && of_group < 2, "group_score",
         "top2 needs groups of two experts and more");
  if (moe.swiglu_limit != 0) refuse.positive("swiglu_limit", moe.swiglu_limit);
}

void validate(const ModelConfig& config, const KeyNames& names) {
  const Check refuse{names};
  for (const auto& [key, value] : dimensions_of(config)) refuse.range(key, value, kMaxDimension);
  refuse.range("layers", config.layers, kMaxLayers);
  refuse(config.heads % config.kv_heads != 0, "heads",
         fmt::format("{} is not a multiple of {} {}", config.heads, names("kv_heads"), config.kv_heads));
  refuse(config.head_dim % 2 != 0 && !config.latent, "head_dim",
         fmt::format("{} is odd; RoPE rotates pairs", config.head_dim));
  refuse.positive("rope_theta", config.rope_theta);
  refuse.positive("norm_eps", config.norm_eps);
  validate_moe(config, names);
  validate_block(config, refuse);
  check_rules(config, refuse);
  validate_size(config, names);
}

}  // namespace config_keys

void validate(const ModelConfig& config) { config_keys::validate(config, config_keys::KeyNames()); }

}  // namespace precbench
