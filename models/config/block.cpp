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

using Parts = std::vector<ParameterPart>;

void add_linear(BlockSpec& block, LinearRole role, std::int64_t in, Parts parts, std::int64_t experts = 1) {
  block.linears.push_back({role, in, std::move(parts), experts});
}

void add_bias(BlockSpec& block, Tensor BlockVectors::*tensor, Parts parts) {
  block.vectors.push_back({tensor, ParameterKind::bias, std::move(parts)});
}

void add_swiglu(BlockSpec& block, const std::string& prefix, std::int64_t width, std::int64_t ffn,
                LinearRole gate_up, LinearRole down) {
  add_linear(block, gate_up, width, {{prefix + ".gate_proj.weight", ffn}, {prefix + ".up_proj.weight", ffn}});
  add_linear(block, down, ffn, {{prefix + ".down_proj.weight", width}});
}

void add_ungated(BlockSpec& block, const ModelConfig& c) {
  add_linear(block, LinearRole::gate_up, c.width, {{"mlp.up_proj.weight", c.ffn}});
  add_linear(block, LinearRole::down, c.ffn, {{"mlp.down_proj.weight", c.width}});
  if (!c.block.ffn_bias) return;
  add_bias(block, &BlockVectors::up_bias, {{"mlp.up_proj.bias", c.ffn}});
  add_bias(block, &BlockVectors::down_bias, {{"mlp.down_proj.bias", c.width}});
}

/// Adds the linear layers of attention up to o.
void add_attention(BlockSpec& block, const ModelConfig& c) {
  const LatentAttention& latent = c.latent;
  const ParameterPart q{"self_attn.q_proj.weight", c.q_width()};
  if (!latent)
    return add_linear(
        block, LinearRole::qkv, c.width,
        {q, {"self_attn.k_proj.weight", c.kv_width()}, {"self_attn.v_proj.weight", c.kv_width()}});
  add_linear(block, LinearRole::qkv, c.width,
             {latent.q_rank > 0 ? ParameterPart{"self_attn.q_a_proj.weight", latent.q_rank} : q,
              {"self_attn.kv_a_proj_with_mqa.weight", latent.kv_rank + latent.rope_dim}});
  if (latent.q_rank > 0)
    add_linear(block, LinearRole::q_up, latent.q_rank, {{"self_attn.q_b_proj.weight", c.q_width()}});
  const std::int64_t up = c.heads * (c.head_dim - latent.rope_dim + latent.v_dim);
  add_linear(block, LinearRole::kv_up, latent.kv_rank, {{"self_attn.kv_b_proj.weight", up}});
}

/// Names of the modules of experts, in the order of ExpertNames.
struct ExpertModules {
  const char *prefix, *router, *shared, *gate, *up, *down, *route_bias;
};
constexpr ExpertModules kExpertModules[] = {
    {"mlp", "gate", "shared_experts", "gate_proj", "up_proj", "down_proj", "gate"},
    {"block_sparse_moe", "gate", "shared_experts", "w1", "w3", "w2", ""},
    {"feed_forward", "router", "shared_expert", "gate_proj", "up_proj", "down_proj", "gate"},
    {"mlp", "gate", "shared_expert", "gate_proj", "up_proj", "down_proj", "gate"},
    {"mlp", "gate", "shared_experts", "gate_proj", "up_proj", "down_proj", "moe_statics"},
    {"mlp", "router", "shared_experts", "gate_proj", "up_proj", "down_proj", "gate"}};

const ExpertModules& expert_modules(const ModelConfig& c) {
  return kExpertModules[static_cast<std::size_t>(c.moe.names)];
}

/// Adds the router, the shared expert and the experts. The experts come last because backward finishes them
/// first.
void add_experts(BlockSpec& block, const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const std::int64_t E = moe.rule.experts;
  const ExpertModules& names = expert_modules(c);
  const std::string prefix = names.prefix + std::string("."), router = prefix + names.router;
  Parts routers = {{router + ".weight", E}};
  // A row behind the router's, which has no recipe either.
  if (moe.shared_gate) routers.push_back({prefix + "shared_expert_gate.weight", 1});
  add_linear(block, LinearRole::router, c.width, std::move(routers));
  if (moe.shared_ffn > 0)
    add_swiglu(block, prefix + names.shared, c.width, moe.shared_ffn, LinearRole::shared_gate_up,
               LinearRole::shared_down);
  Parts gate_up, down, up_bias, down_bias;
  std::string expert;
  // Hundreds of experts in every plan: each name is allocated once, and those of biases only if there are any.
  const auto add = [&](Parts& parts, const char* module, const char* kind, std::int64_t size) {
    std::string& name = parts.emplace_back().name;
    name.reserve(64);
    name.append(expert).append(module).append(kind);
    parts.back().size = size;
  };
  for (std::int64_t e = 0; e < E; ++e) {
    expert = prefix + "experts." + std::to_string(e) + ".";
    for (const char* module : {names.gate, names.up}) {
      add(gate_up, module, ".weight", moe.expert_ffn);
      if (moe.expert_bias) add(up_bias, module, ".bias", moe.expert_ffn);
    }
    add(down, names.down, ".weight", c.width);
    if (moe.expert_bias) add(down_bias, names.down, ".bias", c.width);
  }
  add_linear(block, LinearRole::gate_up, c.width, std::move(gate_up), E);
  add_linear(block, LinearRole::down, moe.expert_ffn, std::move(down), E);
  if (moe.logit_bias) add_bias(block, &BlockVectors::router_bias, {{router + ".bias", E}});
  if (!moe.expert_bias) return;
  add_bias(block, &BlockVectors::expert_up_bias, std::move(up_bias));
  add_bias(block, &BlockVectors::expert_down_bias, std::move(down_bias));
}

/// Adds the norms of a block's halves.
void add_norms(BlockSpec& block, const ModelConfig& c) {
  const NormPlace norms = c.block.norms;
  const bool inputs = norms != NormPlace::after, outputs = norms != NormPlace::before,
             both = norms == NormPlace::both, glm4 = both && c.block.norm_names == NormNames::glm4,
             own_norm2 = c.block.residual != Residual::parallel_one_norm;
  const auto add = [&](bool has, Tensor BlockVectors::*tensor, const char* name) {
    if (has) block.vectors.push_back({tensor, gain_kind(c), {{name, c.width}}});
  };
  const auto add_norm_bias = [&](bool has, Tensor BlockVectors::*tensor, const char* name) {
    if (has && c.block.norm_bias) add_bias(block, tensor, {{name, c.width}});
  };
  add(inputs, &BlockVectors::norm1, "input_layernorm.weight");
  add_norm_bias(true, &BlockVectors::norm1_bias, "input_layernorm.bias");
  add(outputs, &BlockVectors::post_norm1,
      glm4 ? "post_self_attn_layernorm.weight" : "post_attention_layernorm.weight");
  add(inputs && own_norm2, &BlockVectors::norm2,
      both && !glm4 ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
  add_norm_bias(own_norm2, &BlockVectors::norm2_bias, "post_attention_layernorm.bias");
  add(outputs, &BlockVectors::post_norm2,
      glm4 ? "post_mlp_layernorm.weight" : "post_feedforward_layernorm.weight");
}

}  // namespace

std::int64_t LinearSpec::out() const { return total(parts); }
std::int64_t VectorSpec::size() const { return total(parts); }
std::int64_t BlockSpec::linear_parameters() const { return total_size(linears); }
std::int64_t BlockSpec::vector_parameters() const { return total_size(vectors); }

BlockSpec block_of(const ModelConfig& c, std::int64_t layer) {
  BlockSpec block;
  add_attention(block, c);
  add_linear(block, LinearRole::o, c.attention_width(), {{"self_attn.o_proj.weight", c.width}});
  if (c.has_experts(layer))
    add_experts(block, c);
  else if (!c.block.gated)
    add_ungated(block, c);
  else
    add_swiglu(block, c.moe.names == ExpertNames::llama4 ? "feed_forward" : "mlp", c.width, c.ffn,
               LinearRole::gate_up, LinearRole::down);
  add_norms(block, c);
  const auto add_gain = [&](std::int64_t size, Tensor BlockVectors::*tensor, const char* name) {
    if (size > 0) block.vectors.push_back({tensor, gain_kind(c), {{name, size}}});
  };
  add_gain(c.q_normed(), &BlockVectors::q_norm, "self_attn.q_norm.weight");
  add_gain(c.k_normed(), &BlockVectors::k_norm, "self_attn.k_norm.weight");
  add_gain(c.latent.q_rank, &BlockVectors::q_latent_norm, "self_attn.q_a_layernorm.weight");
  add_gain(c.latent.kv_rank, &BlockVectors::kv_latent_norm, "self_attn.kv_a_layernorm.weight");
  if (c.qkv_bias)
    add_bias(block, &BlockVectors::qkv_bias,
             {{"self_attn.q_proj.bias", c.q_width()},
              {"self_attn.k_proj.bias", c.kv_width()},
              {"self_attn.v_proj.bias", c.kv_width()}});
  if (c.block.o_bias) add_bias(block, &BlockVectors::o_bias, {{"self_attn.o_proj.bias", c.width}});
  if (c.block.attention_sinks) add_bias(block, &BlockVectors::sinks, {{"self_attn.sinks", c.heads}});
  return block;
}

std::string route_bias_name(const ModelConfig& c, std::int64_t layer) {
  const ExpertModules& names = expert_modules(c);
  const std::string module =
      *names.route_bias ? std::string(".mlp.") + names.route_bias : ".block_sparse_moe";
  return "model.layers." + std::to_string(layer) + module + ".e_score_correction_bias";
}

LinearSpec head_linear(const ModelConfig& c) {
  return {LinearRole::head, c.width, {{c.tied ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab}}};
}

}  // namespace precbench
