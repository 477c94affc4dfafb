// Families with LayerNorm in a Hugging Face config.json: GPT-2 and its relatives, GPT-NeoX, Phi-2, StarCoder2,
// StableLM, Nemotron and Command R. Source of the defaults: the configuration classes of transformers 5.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr std::int64_t kCohere2Pattern = 4;  // every fourth layer has neither a window nor RoPE

/// A family's block, without what its file decides.
struct ClassicBlock {
  const char* model_type;
  const char* activation;  ///< default, in the file's terms
  TensorFusion tensors;
  bool gated, norm_bias, ffn_bias;
  Residual residual;
};
constexpr ClassicBlock kClassicBlocks[] = {
    {"gpt2", "gelu_new", TensorFusion::gpt2, false, true, true, Residual::sequential},
    {"gpt_bigcode", "gelu_pytorch_tanh", TensorFusion::gpt_bigcode, false, true, true, Residual::sequential},
    {"gptj", "gelu_new", TensorFusion::gptj, false, true, true, Residual::parallel_one_norm},
    {"gpt_neox", "gelu", TensorFusion::gpt_neox, false, true, true, Residual::parallel},
    {"phi", "gelu_new", TensorFusion::phi, false, true, true, Residual::parallel_one_norm},
    {"starcoder2", "gelu_pytorch_tanh", TensorFusion::starcoder2, false, true, true, Residual::sequential},
    {"stablelm", "silu", TensorFusion::none, true, true, false, Residual::sequential},
    {"nemotron", "relu2", TensorFusion::none, false, true, false, Residual::sequential},
    {"cohere", "silu", TensorFusion::none, true, false, false, Residual::parallel_one_norm},
    {"cohere2", "silu", TensorFusion::none, true, false, false, Residual::parallel_one_norm},
};

const ClassicBlock* classic_block(std::string_view model_type) {
  const auto found = std::find_if(std::begin(kClassicBlocks), std::end(kClassicBlocks),
                                  [&](const ClassicBlock& block) { return block.model_type == model_type; });
  return found == std::end(kClassicBlocks) ? nullptr : found;
}

Activation classic_activation(const json& object, const ClassicBlock& block) {
  const std::string key = key_in_file(object, block.model_type, "hidden_act");
  std::string name = block.activation;
  read(object, key.c_str(), name);
  for (const auto& [theirs, ours] :
       {std::pair{"gelu_new", Activation::gelu_tanh}, std::pair{"gelu_pytorch_tanh", Activation::gelu_tanh},
        std::pair{"gelu_fast", Activation::gelu_tanh}, std::pair{"gelu", Activation::gelu},
        std::pair{"silu", Activation::silu}, std::pair{"relu2", Activation::relu2}})
    if (name == theirs && !(block.gated && ours == Activation::relu2)) return ours;
  throw InvalidInput(
      fmt::format("{}: \"{}\" is not supported; {} is the model_type's", key, name, block.activation));
}

/// Reads a flag that sets several of ours.
void read_biases(const json& object, const char* key, bool otherwise, std::initializer_list<bool*> flags) {
  bool value = otherwise;
  read(object, key, value);
  for (bool* flag : flags) *flag = value;
}

void read_cohere2(const json& object, ModelConfig& config) {
  std::int64_t pattern = kCohere2Pattern;
  read(object, "sliding_window_pattern", pattern);
  read_local_layers(
      object, [=](std::int64_t layer) { return (layer + 1) % pattern != 0; }, config);
  // Only layers with a window have RoPE, so without one none has.
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if (config.window(layer) == 0) config.block.layers_without_rope.push_back(layer);
}

}  // namespace

void set_classic_dimensions(const std::string& model_type, ModelConfig& config) {
  struct Dimensions {
    const char* model_type;
    std::int64_t layers, width, ffn, heads, vocab;  // ffn 0: four times the width
  };
  static constexpr Dimensions kAll[] = {
      {"gpt2", 12, 768, 0, 12, 50257},         {"gpt_bigcode", 12, 768, 0, 12, 50257},
      {"gptj", 28, 4096, 0, 16, 50400},        {"gpt_neox", 44, 6144, 24576, 64, 50432},
      {"phi", 24, 2048, 8192, 32, 51200},      {"starcoder2", 30, 3072, 12288, 24, 49152},
      {"stablelm", 32, 2560, 6912, 32, 50304}, {"nemotron", 32, 6144, 24576, 48, 256000},
      {"cohere", 40, 8192, 22528, 64, 256000}, {"cohere2", 40, 8192, 22528, 64, 256000},
  };
  for (const Dimensions& d : kAll) {
    if (d.model_type != model_type) continue;
    config.layers = d.layers;
    config.width = d.width;
    config.ffn = d.ffn;
    config.heads = d.heads;
    config.vocab = d.vocab;
  }
}

void read_classic_block(const json& object, const std::string& model_type, ModelConfig& config) {
  const ClassicBlock* known = classic_block(model_type);
  if (!known) return;
  BlockForm& block = config.block;
  block.norm = NormKind::layer;
  block.norm_bias = known->norm_bias;
  block.gated = known->gated;
  block.ffn_bias = known->ffn_bias;
  block.residual = known->residual;
  block.fusion = known->tensors;
  block.activation = classic_activation(object, *known);
  block.o_bias = config.qkv_bias;
  // Transformers does not read these keys here: as many heads of keys and values as of queries, of width / heads.
  if (block.fusion == TensorFusion::gpt2 || block.fusion == TensorFusion::gptj ||
      block.fusion == TensorFusion::gpt_neox)
    for (const auto& [key, equal] : {std::pair("num_key_value_heads", config.kv_heads == config.heads),
                                     std::pair("head_dim", config.head_dim * config.heads == config.width)})
      if (given(object, key) && !equal)
        throw InvalidInput(fmt::format("{}: no {} has other heads than its number of heads and its width say",
                                       key, model_type));
  if (config.ffn == 0) config.ffn = 4 * config.width;
  if (model_type == "gpt2" || model_type == "gpt_bigcode") config.learned_positions = config.max_positions;
  if (model_type == "gpt_bigcode") config.kv_heads = 1;
  if (model_type == "gptj") {
    std::int64_t rotary = 64;
    const std::int64_t head = config.heads > 0 ? config.width / config.heads : 0;
    read(object, "rotary_dim", rotary);
    if (object.contains("rotary_dim") && !given(object, "rotary_dim")) rotary = head;
    block.rotary_dim = rotary == head ? 0 : rotary;
  }
  config.head_bias = model_type == "gptj" || model_type == "phi";
  if (model_type == "gpt_neox") {
    bool parallel = true;
    read(object, "use_parallel_residual", parallel);
    block.residual = parallel ? Residual::parallel : Residual::sequential;
    read_biases(object, "attention_bias", true, {&config.qkv_bias, &block.o_bias});
  }
  if (model_type == "starcoder2")
    read_biases(object, "use_bias", true, {&config.qkv_bias, &block.o_bias, &block.ffn_bias});
  if (model_type == "stablelm") {
    bool parallel = false;
    read(object, "use_parallel_residual", parallel);
    block.residual = parallel ? Residual::parallel_one_norm : Residual::sequential;
    read_biases(object, "use_qkv_bias", false, {&config.qkv_bias});
    block.o_bias = false;
  }
  if (model_type == "nemotron") {
    block.gains_minus_one = true;
    read_biases(object, "attention_bias", false, {&config.qkv_bias, &block.o_bias});
    read_biases(object, "mlp_bias", false, {&block.ffn_bias});
  }
  if (model_type.starts_with("cohere")) {
    config.logit_scale = 0.0625;
    read(object, "logit_scale", config.logit_scale);
    read_biases(object, "attention_bias", false, {&config.qkv_bias, &block.o_bias});
    block.rope_pairs = RopePairs::interleaved;
  }
  if (model_type == "gptj") block.rope_pairs = RopePairs::interleaved;
  if (model_type == "cohere2") read_cohere2(object, config);
}

}  // namespace precbench::config_keys
