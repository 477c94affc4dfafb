// Presets of families with LayerNorm: GPT-2 and its relatives, Pythia, Phi-2, StarCoder2, StableLM, Nemotron and
// Command R. Values of their config.json.
#include "models/config/presets.h"

namespace precbench {
namespace {

struct ClassicShape {
  const char* name;
  std::int64_t layers, width, ffn, heads, kv_heads, head_dim, vocab;
  bool tied;
};

/// A block with LayerNorm with biases, and a non-gated MLP.
ModelConfig layernorm_model(const ClassicShape& s, TensorFusion tensors) {
  ModelConfig config{.name = s.name,
                     .layers = s.layers,
                     .width = s.width,
                     .ffn = s.ffn,
                     .heads = s.heads,
                     .kv_heads = s.kv_heads,
                     .head_dim = s.head_dim,
                     .vocab = s.vocab,
                     .tied = s.tied};
  config.rope_theta = 10000;
  config.block.norm = NormKind::layer;
  config.block.norm_bias = true;
  config.block.gated = false;
  config.block.fusion = tensors;
  return config;
}

void set_biases(ModelConfig& config) { config.qkv_bias = config.block.o_bias = config.block.ffn_bias = true; }

ModelConfig gpt2(const ClassicShape& s, TensorFusion tensors = TensorFusion::gpt2,
                 std::int64_t positions = 1024) {
  ModelConfig config = layernorm_model(s, tensors);
  set_biases(config);
  config.block.activation = Activation::gelu_tanh;
  config.learned_positions = config.max_positions = positions;
  return config;
}

/// Pythia: GPT-NeoX with a quarter of each head rotated.
ModelConfig pythia(const ClassicShape& s) {
  ModelConfig config = layernorm_model(s, TensorFusion::gpt_neox);
  set_biases(config);
  config.block.activation = Activation::gelu;
  config.block.residual = Residual::parallel;
  config.block.rotary_dim = s.head_dim / 4;
  config.max_positions = 2048;
  return config;
}

ModelConfig phi2(const ClassicShape& s) {
  ModelConfig config = layernorm_model(s, TensorFusion::phi);
  set_biases(config);
  config.head_bias = true;
  config.block.activation = Activation::gelu_tanh;
  config.block.residual = Residual::parallel_one_norm;
  config.block.rotary_dim = 32;
  config.max_positions = 2048;
  return config;
}

ModelConfig gptj() {
  ModelConfig config =
      layernorm_model({"gpt-j-6b", 28, 4096, 16384, 16, 16, 256, 50400, false}, TensorFusion::gptj);
  config.block.ffn_bias = config.head_bias = true;
  config.block.activation = Activation::gelu_tanh;
  config.block.residual = Residual::parallel_one_norm;
  config.block.rotary_dim = 64;
  config.block.rope_pairs = RopePairs::interleaved;
  config.max_positions = 2048;
  return config;
}

ModelConfig starcoder2(const ClassicShape& s, double theta) {
  ModelConfig config = layernorm_model(s, TensorFusion::starcoder2);
  set_biases(config);
  config.block.activation = Activation::gelu_tanh;
  config.rope_theta = theta;
  config.sliding_window = 4096;
  config.max_positions = 16384;
  return config;
}

ModelConfig stablelm(const ClassicShape& s, bool qkv_bias) {
  ModelConfig config = layernorm_model(s, TensorFusion::none);
  config.block.gated = true;
  config.qkv_bias = qkv_bias;
  config.block.rotary_dim = s.head_dim / 4;
  config.max_positions = 4096;
  return config;
}

/// Nemotron: LayerNorm whose weights are the gains minus 1, and squared ReLU.
ModelConfig nemotron(const ClassicShape& s) {
  ModelConfig config = layernorm_model(s, TensorFusion::none);
  config.block.gains_minus_one = true;
  config.block.activation = Activation::relu2;
  config.block.rotary_dim = s.head_dim / 2;
  config.max_positions = 4096;
  return config;
}

ModelConfig command_r(const ClassicShape& s, double theta, double logit_scale, std::int64_t positions) {
  ModelConfig config = layernorm_model(s, TensorFusion::none);
  config.block.norm_bias = false;
  config.block.gated = true;
  config.block.residual = Residual::parallel_one_norm;
  config.block.rope_pairs = RopePairs::interleaved;
  config.rope_theta = theta;
  config.logit_scale = logit_scale;
  config.max_positions = positions;
  return config;
}

/// Command R7B: windows with RoPE in all layers but every fourth.
ModelConfig command_r7b() {
  ModelConfig config =
      command_r({"command-r7b", 32, 4096, 14336, 32, 8, 128, 256000, true}, 50000, 0.25, 132096);
  config.sliding_window = 4096;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    (layer % 4 == 3 ? config.block.layers_without_rope : config.block.local_layers).push_back(layer);
  return config;
}

}  // namespace

std::vector<ModelConfig> classic_presets() {
  return {
      // clang-format off
      //              layers  width    ffn  heads kv   D   vocab  tied
      gpt2({"gpt2",        12,  768,  3072, 12, 12,  64,  50257, true}),
      gpt2({"gpt2-medium", 24, 1024,  4096, 16, 16,  64,  50257, true}),
      gpt2({"gpt2-large",  36, 1280,  5120, 20, 20,  64,  50257, true}),
      gpt2({"gpt2-xl",     48, 1600,  6400, 25, 25,  64,  50257, true}),
      gpt2({"starcoder",   40, 6144, 24576, 48,  1, 128,  49152, true}, TensorFusion::gpt_bigcode, 8192),
      gptj(),
      pythia({"pythia-70m",   6,  512,  2048,  8,  8,  64, 50304, false}),
      pythia({"pythia-160m", 12,  768,  3072, 12, 12,  64, 50304, false}),
      pythia({"pythia-410m", 24, 1024,  4096, 16, 16,  64, 50304, false}),
      pythia({"pythia-1b",   16, 2048,  8192,  8,  8, 256, 50304, false}),
      pythia({"pythia-1.4b", 24, 2048,  8192, 16, 16, 128, 50304, false}),
      pythia({"pythia-2.8b", 32, 2560, 10240, 32, 32,  80, 50304, false}),
      pythia({"pythia-6.9b", 32, 4096, 16384, 32, 32, 128, 50432, false}),
      pythia({"pythia-12b",  36, 5120, 20480, 40, 40, 128, 50688, false}),
      phi2({"phi-1.5", 24, 2048,  8192, 32, 32, 64, 51200, false}),
      phi2({"phi-2",   32, 2560, 10240, 32, 32, 80, 51200, false}),
      starcoder2({"starcoder2-3b",  30, 3072, 12288, 24, 2, 128, 49152, true}, 999999.4420358813),
      starcoder2({"starcoder2-7b",  32, 4608, 18432, 36, 4, 128, 49152, true}, 1e6),
      starcoder2({"starcoder2-15b", 40, 6144, 24576, 48, 4, 128, 49152, false}, 1e5),
      stablelm({"stablelm-2-1.6b",    24, 2048, 5632, 32, 32, 64, 100352, false}, true),
      stablelm({"stablelm-3b-4e1t",   32, 2560, 6912, 32, 32, 80,  50304, false}, false),
      nemotron({"nemotron-mini-4b", 32, 3072,  9216, 24, 8, 128, 256000, false}),
      nemotron({"minitron-8b",      32, 4096, 16384, 48, 8, 128, 256000, false}),
      command_r({"aya-23-8b",     32, 4096, 14336, 32,  8, 128, 256000, true}, 1e4, 0.0625, 8192),
      command_r7b(),
      command_r({"command-r-35b", 40, 8192, 22528, 64, 64, 128, 256000, true}, 8e6, 0.0625, 131072),
      // clang-format on
  };
}

}  // namespace precbench
