// Declarations of the blocks. See block.h.
#include "models/config/block.h"

#include <utility>

namespace precbench {
namespace {

std::int64_t total(const std::vector<ParameterPart>& parts) {
  std::int64_t sum = 0;
  for (const ParameterPart& part : parts) sum += part.size;
  return sum;
}

template <class Spec>
std::int64_t total_size(const std::vector<Spec>& specs) {
  std::int64_t sum = 0;
  for (const Spec& spec : specs) sum += spec.size();
  return sum;
}

void add_swiglu(BlockSpec& block, const std::string& prefix, std::int64_t width, std::int64_t ffn,
                LinearRole gate_up, LinearRole down) {
  block.linears.push_back(
      {gate_up, width, {{prefix + ".gate_proj.weight", ffn}, {prefix + ".up_proj.weight", ffn}}});
  block.linears.push_back({down, ffn, {{prefix + ".down_proj.weight", width}}});
}

void add_ungated(BlockSpec& block, const ModelConfig& c) {
  block.linears.push_back({LinearRole::gate_up, c.width, {{"mlp.up_proj.weight", c.ffn}}});
  block.linears.push_back({LinearRole::down, c.ffn, {{"mlp.down_proj.weight", c.width}}});
  if (!c.block.ffn_bias) return;
  block.vectors.push_back({&BlockVectors::up_bias, ParameterKind::bias, {{"mlp.up_proj.bias", c.ffn}}});
  block.vectors.push_back({&BlockVectors::down_bias, ParameterKind::bias, {{"mlp.down_proj.bias", c.width}}});
}

/// Adds the linear layers of latent attention up to o.
void add_latent(BlockSpec& block, const ModelConfig& c) {
  const LatentAttention& latent = c.latent;
  const ParameterPart kv{"self_attn.kv_a_proj_with_mqa.weight", latent.kv_rank + latent.rope_dim};
  const ParameterPart q = latent.q_rank > 0 ? ParameterPart{"self_attn.q_a_proj.weight", latent.q_rank}
                                            : ParameterPart{"self_attn.q_proj.weight", c.q_width()};
  block.linears.push_back({LinearRole::qkv, c.width, {q, kv}});
  if (latent.q_rank > 0)
    block.linears.push_back({LinearRole::q_up, latent.q_rank, {{"self_attn.q_b_proj.weight", c.q_width()}}});
  const std::int64_t up = c.heads * (c.head_dim - latent.rope_dim + latent.v_dim);
  block.linears.push_back({LinearRole::kv_up, latent.kv_rank, {{"self_attn.kv_b_proj.weight", up}}});
}

/// Adds the router, the shared expert and the experts. The experts come last because backward finishes them
/// first.
void add_experts(BlockSpec& block, const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const std::int64_t E = moe.rule.experts;
  const bool mixtral = moe.names == ExpertNames::mixtral, llama4 = moe.names == ExpertNames::llama4;
  const bool router = llama4 || moe.names == ExpertNames::gpt_oss;
  const bool one_shared = llama4 || moe.names == ExpertNames::qwen2;
  const std::string prefix = mixtral ? "block_sparse_moe" : llama4 ? "feed_forward" : "mlp";
  block.linears.push_back(
      {LinearRole::router, c.width, {{prefix + (router ? ".router.weight" : ".gate.weight"), E}}});
  // A row behind the router's, which has no recipe either.
  if (moe.shared_gate) block.linears.back().parts.push_back({prefix + ".shared_expert_gate.weight", 1});
  if (moe.shared_ffn > 0)
    add_swiglu(block, prefix + (one_shared ? ".shared_expert" : ".shared_experts"), c.width, moe.shared_ffn,
               LinearRole::shared_gate_up, LinearRole::shared_down);
  LinearSpec gate_up{LinearRole::gate_up, c.width, {}, E}, down{LinearRole::down, moe.expert_ffn, {}, E};
  for (std::int64_t e = 0; e < E; ++e) {
    const std::string expert = prefix + ".experts." + std::to_string(e) + ".";
    gate_up.parts.push_back({expert + (mixtral ? "w1.weight" : "gate_proj.weight"), moe.expert_ffn});
    gate_up.parts.push_back({expert + (mixtral ? "w3.weight" : "up_proj.weight"), moe.expert_ffn});
    down.parts.push_back({expert + (mixtral ? "w2.weight" : "down_proj.weight"), c.width});
  }
  block.linears.push_back(std::move(gate_up));
  block.linears.push_back(std::move(down));
  if (moe.logit_bias)
    block.vectors.push_back({&BlockVectors::router_bias,
                             ParameterKind::bias,
                             {{prefix + (router ? ".router.bias" : ".gate.bias"), E}}});
  if (!moe.expert_bias) return;
  VectorSpec up_bias{&BlockVectors::expert_up_bias, ParameterKind::bias, {}},
      down_bias{&BlockVectors::expert_down_bias, ParameterKind::bias, {}};
  for (std::int64_t e = 0; e < E; ++e) {
    const std::string expert = prefix + ".experts." + std::to_string(e) + ".";
    up_bias.parts.push_back({expert + "gate_proj.bias", moe.expert_ffn});
    up_bias.parts.push_back({expert + "up_proj.bias", moe.expert_ffn});
    down_bias.parts.push_back({expert + "down_proj.bias", c.width});
  }
  block.vectors.push_back(std::move(up_bias));
  block.vectors.push_back(std::move(down_bias));
}

}  // namespace

std::int64_t LinearSpec::out() const { return total(parts); }
std::int64_t VectorSpec::size() const { return total(parts); }
std::int64_t BlockSpec::linear_parameters() const { return total_size(linears); }
std::int64_t BlockSpec::vector_parameters() const { return total_size(vectors); }

BlockSpec block_of(const ModelConfig& c, std::int64_t layer) {
  BlockSpec block;
  if (c.latent)
    add_latent(block, c);
  else
    block.linears = {{LinearRole::qkv,
                      c.width,
                      {{"self_attn.q_proj.weight", c.q_width()},
                       {"self_attn.k_proj.weight", c.kv_width()},
                       {"self_attn.v_proj.weight", c.kv_width()}}}};
  block.linears.push_back({LinearRole::o, c.attention_width(), {{"self_attn.o_proj.weight", c.width}}});
  if (c.has_experts(layer))
    add_experts(block, c);
  else if (!c.block.gated)
    add_ungated(block, c);
  else
    add_swiglu(block, c.moe.names == ExpertNames::llama4 ? "feed_forward" : "mlp", c.width, c.ffn,
               LinearRole::gate_up, LinearRole::down);
  const ParameterKind gain = gain_kind(c);
  const auto add_norm = [&](Tensor BlockVectors::*tensor, const char* name) {
    block.vectors.push_back({tensor, gain, {{name, c.width}}});
  };
  const NormPlace norms = c.block.norms;
  const auto add_norm_bias = [&](Tensor BlockVectors::*tensor, const char* name) {
    if (c.block.norm_bias) block.vectors.push_back({tensor, ParameterKind::bias, {{name, c.width}}});
  };
  const bool glm4 = norms == NormPlace::both && c.block.norm_names == NormNames::glm4;
  const bool own_norm2 = c.block.residual != Residual::parallel_one_norm;
  if (norms != NormPlace::after) add_norm(&BlockVectors::norm1, "input_layernorm.weight");
  add_norm_bias(&BlockVectors::norm1_bias, "input_layernorm.bias");
  if (norms != NormPlace::before)
    add_norm(&BlockVectors::post_norm1,
             glm4 ? "post_self_attn_layernorm.weight" : "post_attention_layernorm.weight");
  if (norms != NormPlace::after && own_norm2)
    add_norm(&BlockVectors::norm2, norms == NormPlace::both && !glm4 ? "pre_feedforward_layernorm.weight"
                                                                     : "post_attention_layernorm.weight");
  if (own_norm2) add_norm_bias(&BlockVectors::norm2_bias, "post_attention_layernorm.bias");
  if (norms != NormPlace::before)
    add_norm(&BlockVectors::post_norm2,
             glm4 ? "post_mlp_layernorm.weight" : "post_feedforward_layernorm.weight");
  if (c.qk_norm) {
    block.vectors.push_back({&BlockVectors::q_norm, gain, {{"self_attn.q_norm.weight", c.q_normed()}}});
    block.vectors.push_back({&BlockVectors::k_norm, gain, {{"self_attn.k_norm.weight", c.k_normed()}}});
  }
  if (c.latent.q_rank > 0)
    block.vectors.push_back(
        {&BlockVectors::q_latent_norm, gain, {{"self_attn.q_a_layernorm.weight", c.latent.q_rank}}});
  if (c.latent)
    block.vectors.push_back(
        {&BlockVectors::kv_latent_norm, gain, {{"self_attn.kv_a_layernorm.weight", c.latent.kv_rank}}});
  if (c.qkv_bias)
    block.vectors.push_back({&BlockVectors::qkv_bias,
                             ParameterKind::bias,
                             {{"self_attn.q_proj.bias", c.q_width()},
                              {"self_attn.k_proj.bias", c.kv_width()},
                              {"self_attn.v_proj.bias", c.kv_width()}}});
  if (c.block.o_bias)
    block.vectors.push_back(
        {&BlockVectors::o_bias, ParameterKind::bias, {{"self_attn.o_proj.bias", c.width}}});
  if (c.block.attention_sinks)
    block.vectors.push_back({&BlockVectors::sinks, ParameterKind::bias, {{"self_attn.sinks", c.heads}}});
  return block;
}

std::string route_bias_name(const ModelConfig& c, std::int64_t layer) {
  const ExpertNames names = c.moe.names;
  return "model.layers." + std::to_string(layer) +
         (names == ExpertNames::mixtral    ? ".block_sparse_moe"
          : names == ExpertNames::ernie4_5 ? ".mlp.moe_statics"
                                           : ".mlp.gate") +
         ".e_score_correction_bias";
}

LinearSpec head_linear(const ModelConfig& c) {
  return {LinearRole::head, c.width, {{c.tied ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab}}};
}

}  // namespace precbench
