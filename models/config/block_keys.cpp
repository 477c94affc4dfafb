// Keys of our own JSON for what a block and its surroundings have besides Llama's. See config_keys.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr EnumNames<NormPlace, 3> kNormPlaceNames{{"before", "after", "both"}};
constexpr EnumNames<Activation, 4> kActivationNames{{"silu", "gelu_tanh", "gelu", "relu2"}};
constexpr EnumNames<TensorFusion, 12> kTensorFusionNames{
    {"none", "qkv_and_gate_up", "gate_up", "granite_hybrid", "gpt2", "gpt_bigcode", "gptj", "gpt_neox", "phi",
     "starcoder2", "exaone", "hunyuan"}};
constexpr EnumNames<NormNames, 2> kNormNames{{"gemma", "glm4"}};
constexpr EnumNames<RopePairs, 2> kRopePairsNames{{"halves", "interleaved"}};
constexpr EnumNames<NormKind, 2> kNormKindNames{{"rms", "layer"}};
constexpr EnumNames<Residual, 3> kResidualNames{{"sequential", "parallel", "parallel_one_norm"}};

/// Calls visit(key, member) for every key.
template <class Config, class Visit>
void each_block_key(Config& config, Visit&& visit) {
  visit("norms", config.block.norms);
  visit("residual_scale", config.block.residual_scale);
  visit("attention_scale", config.block.attention_scale);
  visit("layers_without_rope", config.block.layers_without_rope);
  visit("fused_tensors", config.block.fusion);
  visit("norm_names", config.block.norm_names);
  visit("rotary_dim", config.block.rotary_dim);
  visit("rope_pairs", config.block.rope_pairs);
  visit("o_bias", config.block.o_bias);
  visit("activation", config.block.activation);
  visit("gains_minus_one", config.block.gains_minus_one);
  visit("attention_softcap", config.block.attention_softcap);
  visit("local_layers", config.block.local_layers);
  visit("local_rope_theta", config.block.local_rope_theta);
  visit("norm", config.block.norm);
  visit("norm_bias", config.block.norm_bias);
  visit("residual", config.block.residual);
  visit("gated", config.block.gated);
  visit("ffn_bias", config.block.ffn_bias);
  visit("qk_norm_after_rope", config.block.qk_norm_after_rope);
  visit("attention_sinks", config.block.attention_sinks);
  visit("unit_queries_and_keys", config.block.unit_queries_and_keys);
  visit("temperature", config.block.temperature);
  visit("temperature_positions", config.block.temperature_positions);
  visit("head_bias", config.head_bias);
  visit("q_lora_rank", config.latent.q_rank);
  visit("kv_lora_rank", config.latent.kv_rank);
  visit("qk_rope_head_dim", config.latent.rope_dim);
  visit("v_head_dim", config.latent.v_dim);
  visit("embedding_scale", config.embedding_scale);
  visit("embedding_scale_rounded", config.embedding_scale_rounded);
  visit("logit_scale", config.logit_scale);
  visit("logit_softcap", config.logit_softcap);
  visit("original_context_only", config.original_context_only);
  visit("unchunked_positions", config.unchunked_positions);
}

const auto& block_names_of(NormPlace) { return kNormPlaceNames; }
const auto& block_names_of(TensorFusion) { return kTensorFusionNames; }
const auto& block_names_of(NormNames) { return kNormNames; }
const auto& block_names_of(RopePairs) { return kRopePairsNames; }
const auto& block_names_of(Activation) { return kActivationNames; }
const auto& block_names_of(NormKind) { return kNormKindNames; }
const auto& block_names_of(Residual) { return kResidualNames; }

template <class Value>
void read_block_member(const json& object, const char* key, Value& to) {
  if constexpr (std::is_enum_v<Value>) {
    read(object, key, to, block_names_of(to));
  } else if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, bool> ||
                       std::is_same_v<Value, std::int64_t>) {
    read(object, key, to);
  } else {
    if (!given(object, key)) return;
    const json& list = object.at(key);
    const auto is_layer = [](const json& layer) {
      return layer.is_number_integer() && layer >= 0 && layer < kMaxDimension;
    };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_layer))
      throw InvalidInput(fmt::format("{}: expected a list of layers from 0 on, got {}", key, shown(list)));
    to = list.get<std::vector<std::int64_t>>();
  }
}

}  // namespace

std::vector<const char*> block_key_names() {
  std::vector<const char*> names;
  const ModelConfig config;
  each_block_key(config, [&](const char* key, const auto&) { names.push_back(key); });
  return names;
}

void read_block(const json& object, ModelConfig& config) {
  each_block_key(config, [&](const char* key, auto& member) { read_block_member(object, key, member); });
}

json block_to_json(const ModelConfig& config) {
  const auto written = [](const ModelConfig& of) {
    json object = json::object();
    each_block_key(of, [&](const char* key, const auto& member) {
      if constexpr (std::is_enum_v<std::decay_t<decltype(member)>>)
        object[key] = block_names_of(member).of(member);
      else
        object[key] = member;
    });
    return object;
  };
  json object = written(config);
  const json defaults = written({});
  for (const auto& [key, value] : defaults.items())
    if (object[key] == value) object.erase(key);
  return object;
}

namespace {

void check_layers(const ModelConfig& config, const char* key, const std::vector<std::int64_t>& layers,
                  const KeyNames& names) {
  std::int64_t before = -1;
  for (const std::int64_t layer : layers) {
    if (layer <= before || layer >= config.layers)
      throw InvalidInput(
          fmt::format("{}: {} is not a layer after {} of {}", names(key), layer, before, config.layers));
    before = layer;
  }
}

}  // namespace

namespace {

void validate_latent(const ModelConfig& config, const KeyNames& names) {
  const LatentAttention& latent = config.latent;
  const auto refuse = [&](bool given, const char* key, const std::string& why) {
    if (given) throw InvalidInput(fmt::format("{}: {}", names(key), why));
  };
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
  const BlockForm& block = config.block;
  for (const auto& [key, given] :
       {std::pair{"qk_norm", config.qk_norm}, std::pair{"qkv_bias", config.qkv_bias},
        std::pair{"o_bias", block.o_bias}, std::pair{"rotary_dim", block.rotary_dim > 0},
        std::pair{"unit_queries_and_keys", block.unit_queries_and_keys},
        std::pair{"temperature", block.temperature != 0},
        std::pair{"layers_without_rope", !block.layers_without_rope.empty()},
        std::pair{"sliding_window", config.sliding_window > 0},
        std::pair{"attention_softcap", block.attention_softcap != 0},
        std::pair{"learned_positions", config.learned_positions > 0},
        std::pair{"norm", block.norm == NormKind::layer},
        std::pair{"norms", block.norms != NormPlace::before},
        std::pair{"residual", block.residual != Residual::sequential},
        std::pair{"gains_minus_one", block.gains_minus_one},
        std::pair{"fused_tensors", block.fusion != TensorFusion::none}})
    refuse(given, key, "not supported together with latent attention");
  refuse(config.moe && config.moe.names == ExpertNames::llama4, "expert_names",
         "Llama 4's are not supported together with latent attention");
}

}  // namespace

void validate_block(const ModelConfig& config, const KeyNames& names) {
  validate_latent(config, names);
  const BlockForm& block = config.block;
  const auto positive = [&](const char* key, double value) {
    if (!std::isfinite(value) || value <= 0)
      throw InvalidInput(fmt::format("{}: must be a positive number, got {}", names(key), value));
  };
  positive("residual_scale", block.residual_scale);
  positive("embedding_scale", config.embedding_scale);
  positive("logit_scale", config.logit_scale);
  for (const auto& [key, value] :
       {std::pair{"attention_scale", block.attention_scale},
        std::pair{"attention_softcap", block.attention_softcap},
        std::pair{"local_rope_theta", block.local_rope_theta}, std::pair{"temperature", block.temperature},
        std::pair{"logit_softcap", config.logit_softcap}})
    if (value != 0) positive(key, value);
  check_layers(config, "layers_without_rope", block.layers_without_rope, names);
  check_layers(config, "local_layers", block.local_layers, names);
  if (!block.local_layers.empty() && config.sliding_window == 0)
    throw InvalidInput(
        fmt::format("{}: the model has no {}", names("local_layers"), names("sliding_window")));
  if (block.local_rope_theta != 0 && config.sliding_window == 0)
    throw InvalidInput(
        fmt::format("{}: the model has no {}", names("local_rope_theta"), names("sliding_window")));
  for (const auto& [key, given] :
       {std::pair{"norms", block.norms != NormPlace::before},
        std::pair{"residual_scale", block.residual_scale != 1},
        std::pair{"residual", block.residual != Residual::sequential}, std::pair{"gated", !block.gated},
        std::pair{"activation", block.activation != Activation::silu}})
    if (config.moe && given)
      throw InvalidInput(fmt::format("{}: not supported together with experts", names(key)));
  if ((block.temperature != 0) != (block.temperature_positions != 0))
    throw InvalidInput(fmt::format("{}: goes with {}", names("temperature"), names("temperature_positions")));
  const bool layernorm = block.norm == NormKind::layer;
  const auto refuse = [&](bool given, const char* key, const char* why) {
    if (given) throw InvalidInput(fmt::format("{}: {}", names(key), why));
  };
  refuse(block.norm_bias && !layernorm, "norm_bias", "RMSNorm has none");
  refuse(layernorm && block.norms != NormPlace::before, "norms",
         "LayerNorm is supported on the inputs of a block's halves only");
  refuse(layernorm && config.qk_norm, "qk_norm", "not supported together with LayerNorm");
  refuse(block.unit_queries_and_keys && (config.qk_norm || layernorm), "unit_queries_and_keys",
         "not supported together with a QK-norm or LayerNorm");
  refuse(block.unit_queries_and_keys && config.rope_scaling.attention_factor != 1, "unit_queries_and_keys",
         "not supported together with a factor on RoPE's output (yarn, longrope)");
  refuse(block.qk_norm_after_rope && (!config.qk_norm || config.norms_all_heads()), "qk_norm_after_rope",
         "needs a qk_norm of each head");
  refuse(block.qk_norm_after_rope && config.rope_scaling.attention_factor != 1, "qk_norm_after_rope",
         "not supported together with a factor on RoPE's output (yarn, longrope)");
  refuse(block.residual != Residual::sequential && block.norms != NormPlace::before, "residual",
         "parallel residuals are supported with norms on inputs only");
  refuse(block.residual != Residual::sequential && block.residual_scale != 1, "residual_scale",
         "not supported with a parallel residual");
  const auto fused = [&](std::initializer_list<TensorFusion> all) {
    return std::find(all.begin(), all.end(), block.fusion) != all.end();
  };
  refuse(!block.gated && fused({TensorFusion::gate_up, TensorFusion::qkv_and_gate_up,
                                TensorFusion::granite_hybrid, TensorFusion::exaone, TensorFusion::hunyuan}),
         "fused_tensors", "checkpoints of this layout have a gate");
  refuse(block.gated && fused({TensorFusion::gpt2, TensorFusion::gpt_bigcode, TensorFusion::gptj,
                               TensorFusion::gpt_neox, TensorFusion::phi, TensorFusion::starcoder2}),
         "fused_tensors", "checkpoints of this layout have no gate");
  refuse(block.fusion == TensorFusion::gpt_neox && config.kv_heads != config.heads, "fused_tensors",
         "gpt_neox needs as many heads of keys and values as of queries");
  refuse(block.ffn_bias && block.gated, "ffn_bias", "supported without a gate only");
  refuse(block.gated && block.activation == Activation::relu2, "activation",
         "relu2 is supported without a gate only");
  if (block.rotary_dim < 0 || block.rotary_dim >= config.head_dim || block.rotary_dim % 2 != 0)
    throw InvalidInput(fmt::format("{}: {} is not an even number below {} {}", names("rotary_dim"),
                                   block.rotary_dim, names("head_dim"), config.head_dim));
  const std::size_t factors = config.rope_scaling.pair_factors.size();
  if (config.rope_scaling.kind == RopeScaling::Kind::longrope &&
      static_cast<std::int64_t>(factors) != config.rotary_dim() / 2)
    throw InvalidInput(fmt::format("rope_scaling: short_factor: has {} numbers, a head of {} has {} pairs",
                                   factors, config.rotary_dim(), config.rotary_dim() / 2));
}

}  // namespace precbench::config_keys
