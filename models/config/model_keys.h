// Our own keys of a model's JSON, and the member that each sets. Internal to models/config.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/config/config.h"

namespace precbench::config_keys {

/// Groups of keys, in the order in which a model of our own keys is read.
enum class Keys : std::uint8_t { dimensions, attention, numbers, experts, block, latent };
inline constexpr Keys kAllKeys[] = {Keys::dimensions, Keys::attention, Keys::numbers,
                                    Keys::experts,    Keys::block,     Keys::latent};

/// Calls visit(key, member) for the keys of a group.
template <class Config, class Visit>
void each_key(Keys group, Config& c, Visit&& visit) {
  auto& moe = c.moe;
  auto& rule = moe.rule;
  auto& b = c.block;
  if (group == Keys::dimensions) {
    visit("layers", c.layers), visit("width", c.width), visit("ffn", c.ffn), visit("heads", c.heads);
    visit("kv_heads", c.kv_heads), visit("head_dim", c.head_dim), visit("vocab", c.vocab);
    visit("tied", c.tied);
  } else if (group == Keys::attention) {
    visit("qk_norm", c.qk_norm), visit("qkv_bias", c.qkv_bias), visit("qk_norm_over", c.qk_norm_over);
  } else if (group == Keys::numbers) {
    visit("rope_theta", c.rope_theta), visit("norm_eps", c.norm_eps),
        visit("sliding_window", c.sliding_window);
    visit("max_positions", c.max_positions), visit("learned_positions", c.learned_positions);
  } else if (group == Keys::experts) {
    visit("experts", rule.experts), visit("top_k", rule.top_k), visit("expert_ffn", moe.expert_ffn);
    visit("shared_ffn", moe.shared_ffn), visit("shared_gate", moe.shared_gate);
    visit("dense_layers", moe.dense_layers), visit("layer_interval", moe.layer_interval);
    visit("score", rule.score), visit("normalise", rule.normalise), visit("route_scale", rule.scale);
    visit("route_bias", moe.route_bias), visit("logit_bias", moe.logit_bias);
    visit("expert_bias", moe.expert_bias), visit("swiglu_limit", moe.swiglu_limit);
    visit("groups", rule.groups), visit("group_top_k", rule.group_top_k);
    visit("group_score", rule.group_score), visit("weight_at", moe.weight_at);
    visit("expert_names", moe.names);
  } else if (group == Keys::block) {
    visit("norms", b.norms), visit("residual_scale", b.residual_scale);
    visit("attention_scale", b.attention_scale), visit("layers_without_rope", b.layers_without_rope);
    visit("fused_tensors", b.tensors), visit("norm_names", b.norm_names), visit("rotary_dim", b.rotary_dim);
    visit("rope_pairs", b.rope_pairs), visit("o_bias", b.o_bias), visit("activation", b.activation);
    visit("gains_minus_one", b.gains_minus_one), visit("attention_softcap", b.attention_softcap);
    visit("local_layers", b.local_layers), visit("local_rope_theta", b.local_rope_theta);
    visit("norm", b.norm), visit("norm_bias", b.norm_bias), visit("residual", b.residual);
    visit("gated", b.gated), visit("ffn_bias", b.ffn_bias), visit("qk_norm_after_rope", b.qk_norm_after_rope);
    visit("attention_sinks", b.attention_sinks), visit("unit_queries_and_keys", b.unit_queries_and_keys);
    visit("temperature", b.temperature), visit("temperature_positions", b.temperature_positions);
    visit("head_bias", c.head_bias), visit("embedding_scale", c.embedding_scale);
    visit("embedding_scale_rounded", c.embedding_scale_rounded), visit("logit_scale", c.logit_scale);
    visit("logit_softcap", c.logit_softcap), visit("original_context_only", c.original_context_only);
    visit("unchunked_positions", c.unchunked_positions);
  } else {
    visit("q_lora_rank", c.latent.q_rank), visit("kv_lora_rank", c.latent.kv_rank);
    visit("qk_rope_head_dim", c.latent.rope_dim), visit("v_head_dim", c.latent.v_dim);
  }
}

/// Writes every key, also with its default.
nlohmann::json all_keys(const ModelConfig& config);
/// Sets the members whose keys are in the object; others stay. Throws InvalidInput.
void read_own_keys(const nlohmann::json& object, ModelConfig& config);
/// Reads a model of our own keys, without validate(). Throws InvalidInput.
ModelConfig from_own_keys(const nlohmann::json& object);

}  // namespace precbench::config_keys
