// The declarations of blocks. See block.h.
#include "models/config/block.h"

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

}  // namespace

std::int64_t LinearSpec::out() const { return total(parts); }
std::int64_t VectorSpec::size() const { return total(parts); }
std::int64_t BlockSpec::linear_parameters() const { return total_size(linears); }
std::int64_t BlockSpec::vector_parameters() const { return total_size(vectors); }

BlockSpec dense_block(const ModelConfig& c) {
  BlockSpec block;
  block.linears = {
      {LinearRole::qkv,
       c.width,
       {{"self_attn.q_proj.weight", c.q_width()},
        {"self_attn.k_proj.weight", c.kv_width()},
        {"self_attn.v_proj.weight", c.kv_width()}}},
      {LinearRole::o, c.q_width(), {{"self_attn.o_proj.weight", c.width}}},
      {LinearRole::gate_up, c.width, {{"mlp.gate_proj.weight", c.ffn}, {"mlp.up_proj.weight", c.ffn}}},
      {LinearRole::down, c.ffn, {{"mlp.down_proj.weight", c.width}}},
  };
  const ParameterKind gain = ParameterKind::gain;
  block.vectors = {
      {&BlockVectors::norm1, gain, {{"input_layernorm.weight", c.width}}},
      {&BlockVectors::norm2, gain, {{"post_attention_layernorm.weight", c.width}}},
  };
  if (c.qk_norm) {
    block.vectors.push_back({&BlockVectors::q_norm, gain, {{"self_attn.q_norm.weight", c.head_dim}}});
    block.vectors.push_back({&BlockVectors::k_norm, gain, {{"self_attn.k_norm.weight", c.head_dim}}});
  }
  if (c.qkv_bias)
    block.vectors.push_back({&BlockVectors::qkv_bias,
                             ParameterKind::bias,
                             {{"self_attn.q_proj.bias", c.q_width()},
                              {"self_attn.k_proj.bias", c.kv_width()},
                              {"self_attn.v_proj.bias", c.kv_width()}}});
  return block;
}

LinearSpec head_linear(const ModelConfig& c) {
  return {LinearRole::head, c.width, {{c.tied ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab}}};
}

}  // namespace precbench
