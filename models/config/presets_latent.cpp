// Presets with latent attention (MLA): DeepSeek V2 and V3, and Kimi K2. Values of their config.json, without layers for
// multi-token prediction.
#include <cmath>

#include "models/config/presets.h"

namespace precbench {
namespace {

struct LatentShape {
  const char* name;
  std::int64_t layers, width, ffn, heads, q_rank, vocab;
  std::int64_t experts, top_k, expert_ffn, shared_ffn, dense_layers;
};

/// Returns what all have in common: heads of 128 + 64, values of 128, and a context of 4096 extended by YaRN. `mscale`: of
/// attention's temperature, which the angles then leave alone.
ModelConfig latent_model(const LatentShape& s, double theta, double factor, double mscale) {
  ModelConfig config{.name = s.name,
                     .layers = s.layers,
                     .width = s.width,
                     .ffn = s.ffn,
                     .heads = s.heads,
                     .kv_heads = s.heads,
                     .head_dim = 192,
                     .vocab = s.vocab};
  config.latent = {.q_rank = s.q_rank, .kv_rank = 512, .rope_dim = 64, .v_dim = 128};
  config.block.rope_pairs = RopePairs::interleaved;
  config.rope_theta = theta;
  config.norm_eps = 1e-6;
  config.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = factor, .original_context = 4096};
  config.max_positions = static_cast<std::int64_t>(4096 * factor);
  const double temperature = 0.1 * mscale * std::log(factor) + 1;
  config.block.attention_scale = temperature * temperature / std::sqrt(192.0);
  config.moe.rule.experts = s.experts;
  config.moe.rule.top_k = s.top_k;
  config.moe.expert_ffn = s.expert_ffn;
  config.moe.shared_ffn = s.shared_ffn;
  config.moe.dense_layers = s.dense_layers;
  return config;
}

/// DeepSeek-V2: softmax over the experts of the best groups, not normalised.
ModelConfig deepseek_v2(const LatentShape& s, std::int64_t groups, std::int64_t group_top_k, double scale) {
  ModelConfig config = latent_model(s, 10000, 40, 0.707);
  RoutingRule& rule = config.moe.rule;
  rule.normalise = false;
  rule.groups = groups;
  rule.group_top_k = group_top_k;
  rule.scale = scale;
  return config;
}

/// Kimi K2's YaRN has no ramp.
ModelConfig kimi_k2(ModelConfig config) {
  config.rope_scaling.beta_fast = 1;
  return config;
}

/// DeepSeek-V3: a sigmoid and a bias on the scores, normalised.
ModelConfig deepseek_v3(ModelConfig config, std::int64_t groups, std::int64_t group_top_k, double scale) {
  RoutingRule& rule = config.moe.rule;
  rule.score = RouterScore::sigmoid;
  rule.group_score = GroupScore::top2;
  rule.groups = groups;
  rule.group_top_k = group_top_k;
  rule.scale = scale;
  config.moe.route_bias = true;
  return config;
}

}  // namespace

std::vector<ModelConfig> latent_presets() {
  // clang-format off
  //                       layers width    ffn heads q_rank   vocab experts k  ffn shared dense
  return {
      deepseek_v2({"deepseek-v2-lite", 27, 2048, 10944,  16,    0, 102400,  64, 6, 1408, 2816, 1}, 1, 1, 1),
      deepseek_v2({"deepseek-v2",      60, 5120, 12288, 128, 1536, 102400, 160, 6, 1536, 3072, 1}, 8, 3, 16),
      deepseek_v3(latent_model({"deepseek-v3", 61, 7168, 18432, 128, 1536, 129280, 256, 8, 2048, 2048, 3}, 10000, 40, 1),
                  8, 4, 2.5),
      deepseek_v3(kimi_k2(latent_model({"kimi-k2", 61, 7168, 18432, 64, 1536, 163840, 384, 8, 2048, 2048, 1}, 50000, 32, 1)),
                  1, 1, 2.827),
      deepseek_v3(kimi_k2(latent_model({"kimi-k2-0905", 61, 7168, 18432, 64, 1536, 163840, 384, 8, 2048, 2048, 1}, 50000, 64, 1)),
                  1, 1, 2.827),
  };
  // clang-format on
}

}  // namespace precbench
