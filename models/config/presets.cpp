// The presets: published shapes and our own small ones. Those of families with LayerNorm are in presets_classic.cpp, those with
// latent attention in presets_latent.cpp.
#include <cmath>

#include "models/config/presets.h"

namespace precbench {
namespace {

ModelConfig llama(std::string name, std::int64_t layers, std::int64_t width, std::int64_t ffn,
                  std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t vocab,
                  bool tied) {
  return {.name = std::move(name),
          .layers = layers,
          .width = width,
          .ffn = ffn,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .vocab = vocab,
          .tied = tied};
}

/// Llama 3.1 to 3.3: trained on 8192 positions, then extended to 131072.
ModelConfig stretched(ModelConfig config, double factor) {
  config.rope_scaling.kind = RopeScaling::Kind::llama3;
  config.rope_scaling.factor = factor;
  config.rope_scaling.original_context = 8192;
  config.max_positions = 131072;
  return config;
}

ModelConfig qwen(std::string name, std::int64_t layers, std::int64_t width, std::int64_t ffn,
                 std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t vocab,
                 bool tied, bool qk_norm) {
  ModelConfig config = llama(std::move(name), layers, width, ffn, heads, kv_heads, head_dim, vocab, tied);
  config.qk_norm = qk_norm;
  config.qkv_bias = !qk_norm;  // Qwen3 replaced the biases by QK-norm
  config.rope_theta = 1e6;
  config.norm_eps = 1e-6;
  return config;
}

ModelConfig with_rope(ModelConfig config, double theta, std::int64_t positions) {
  config.rope_theta = theta;
  config.max_positions = positions;
  return config;
}

ModelConfig with_norm_eps(ModelConfig config, double eps) {
  config.norm_eps = eps;
  return config;
}

/// SmolLM3: every fourth layer has no RoPE.
ModelConfig smollm3() {
  ModelConfig config = with_norm_eps(
      with_rope(llama("smollm3-3b", 36, 2048, 11008, 16, 4, 128, 128256, true), 5e6, 65536), 1e-6);
  for (std::int64_t layer = 3; layer < config.layers; layer += 4)
    config.block.layers_without_rope.push_back(layer);
  return config;
}

/// Granite 3: factors of embedding, scores, residual branches and logits.
ModelConfig granite(ModelConfig config, double attention_scale, double logits_scaling) {
  config.rope_theta = 5e6;
  config.max_positions = 131072;
  config.embedding_scale = 12;
  config.block.residual_scale = 0.22;
  config.block.attention_scale = attention_scale;
  config.logit_scale = 1 / logits_scaling;
  return config;
}

/// OLMo 2: norms on the outputs of a block's halves, and a QK-norm over all heads.
ModelConfig olmo2(ModelConfig shape) {
  ModelConfig config = with_norm_eps(with_rope(std::move(shape), 500000, 4096), 1e-6);
  config.qk_norm = true;
  config.qk_norm_over = QkNormOver::heads;
  config.block.norms = NormPlace::after;
  return config;
}

/// OLMo 3: windows in all layers but every fourth, the only ones that were extended by YaRN.
ModelConfig olmo3(ModelConfig shape) {
  ModelConfig config = olmo2(std::move(shape));
  config.max_positions = 65536;
  config.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 8, .original_context = 8192};
  config.rope_scaling.attention_factor = 0.1 * std::log(8.0) + 1;
  config.sliding_window = 4096;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if ((layer + 1) % 4 != 0) config.block.local_layers.push_back(layer);
  config.block.local_rope_theta = config.rope_theta;
  return config;
}

/// Phi-3 and Phi-4: a Llama whose checkpoints join q, k and v, and gate and up.
ModelConfig phi(ModelConfig config) {
  config.block.fusion = TensorFusion::qkv_and_gate_up;
  return config;
}

/// Phi-4-mini rotates three quarters of a head; up to the original context LongRoPE changes only cos and sin.
ModelConfig phi4_mini() {
  ModelConfig config =
      phi(with_rope(llama("phi-4-mini", 32, 3072, 8192, 24, 8, 128, 200064, true), 1e4, 131072));
  config.block.rotary_dim = 96;
  config.sliding_window = 262144;
  config.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                         .factor = 32,
                         .original_context = 4096,
                         .attention_factor = std::sqrt(1 + std::log(32.0) / std::log(4096.0)),
                         .pair_factors = std::vector<double>(48, 1.0)};
  config.original_context_only = true;
  return config;
}

/// GLM: half of a head rotates, with interleaved pairs; biases on q, k and v.
ModelConfig glm(ModelConfig config, double eps, std::int64_t positions) {
  config = with_norm_eps(with_rope(std::move(config), 1e4, positions), eps);
  config.qkv_bias = true;
  config.block.rotary_dim = config.head_dim / 2;
  config.block.rope_pairs = RopePairs::interleaved;
  config.block.fusion = TensorFusion::gate_up;
  return config;
}

/// GLM-4-0414: norms on inputs and outputs.
ModelConfig glm4(const ModelConfig& shape) {
  ModelConfig config = glm(shape, 1e-5, 32768);
  config.block.norms = NormPlace::both;
  config.block.norm_names = NormNames::glm4;
  return config;
}

ModelConfig seed_oss() {
  ModelConfig config = with_norm_eps(
      with_rope(llama("seed-oss-36b", 64, 5120, 27648, 80, 8, 128, 155136, false), 1e7, 524288), 1e-6);
  config.qkv_bias = true;
  return config;
}

/// ERNIE 4.5: a Llama with interleaved RoPE.
ModelConfig ernie(ModelConfig config) {
  config.block.rope_pairs = RopePairs::interleaved;
  return with_rope(std::move(config), 5e5, 131072);
}

/// EXAONE 4: norms on outputs, QK-norm of a head. With a window three of four layers have it, and only these have RoPE.
ModelConfig exaone4(ModelConfig config, std::int64_t window, std::int64_t positions) {
  config = with_rope(std::move(config), 1e6, positions);
  config.qk_norm = true;
  config.block.norms = NormPlace::after;
  config.rope_scaling.kind = RopeScaling::Kind::llama3;
  config.rope_scaling.factor = 16;
  config.rope_scaling.original_context = 8192;
  config.sliding_window = window;
  for (std::int64_t layer = 0; window > 0 && layer < config.layers; ++layer)
    ((layer + 1) % 4 == 0 ? config.block.layers_without_rope : config.block.local_layers).push_back(layer);
  return config;
}

/// The first Mistral: a window in all layers.
ModelConfig mistral_v01() {
  ModelConfig config =
      with_rope(llama("mistral-7b-v0.1", 32, 4096, 14336, 32, 8, 128, 32000, false), 1e4, 32768);
  config.sliding_window = 4096;
  return config;
}

ModelConfig phi3_mini() {
  ModelConfig config =
      phi(with_rope(llama("phi-3-mini", 32, 3072, 8192, 32, 32, 96, 32064, false), 1e4, 4096));
  config.sliding_window = 2047;
  return config;
}

/// The language model of Ministral 3, whose scores grow beyond the original context.
ModelConfig ministral3() {
  ModelConfig config =
      with_rope(llama("ministral3-3b", 26, 3072, 9216, 32, 8, 128, 131072, true), 1e6, 262144);
  config.rope_scaling.kind = RopeScaling::Kind::yarn;
  config.rope_scaling.factor = 16;
  config.rope_scaling.original_context = 16384;
  config.original_context_only = true;
  return config;
}

/// Gemma: gains minus 1, GELU, and embeddings times the root of the width.
ModelConfig gemma(ModelConfig shape, std::int64_t positions) {
  ModelConfig config = with_norm_eps(with_rope(std::move(shape), 1e4, positions), 1e-6);
  config.block.activation = Activation::gelu_tanh;
  config.block.gains_minus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.width));
  config.embedding_scale_rounded = true;
  return config;
}

/// Gemma 2 and 3: four norms, and windows in all layers but every n-th. `scalar`: scores are divided by its root.
ModelConfig later_gemma(ModelConfig config, double scalar, std::int64_t window, std::int64_t every) {
  config.block.norms = NormPlace::both;
  if (scalar != static_cast<double>(config.head_dim)) config.block.attention_scale = 1 / std::sqrt(scalar);
  config.sliding_window = window;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if ((layer + 1) % every != 0) config.block.local_layers.push_back(layer);
  return config;
}

ModelConfig gemma2(const ModelConfig& shape, double scalar) {
  ModelConfig config = later_gemma(gemma(shape, 8192), scalar, 4096, 2);
  config.block.attention_softcap = 50;
  config.logit_softcap = 30;
  return config;
}

ModelConfig gemma3(const ModelConfig& shape, double scalar, std::int64_t window, std::int64_t positions) {
  ModelConfig config = later_gemma(gemma(shape, positions), scalar, window, 6);
  config.rope_theta = 1e6;
  config.block.local_rope_theta = 1e4;
  config.qk_norm = true;
  return config;
}

/// The language models of the larger Gemma 3: their context was extended.
ModelConfig large_gemma3(const ModelConfig& shape, double scalar) {
  ModelConfig config = gemma3(shape, scalar, 1024, 131072);
  config.rope_scaling.kind = RopeScaling::Kind::linear;
  config.rope_scaling.factor = 8;
  return config;
}

RoutingRule softmax_of(std::int64_t experts, std::int64_t top_k) {
  return {.experts = experts, .top_k = top_k};
}

ModelConfig with_experts(ModelConfig config, const RoutingRule& rule, std::int64_t expert_ffn) {
  config.moe.rule = rule;
  config.moe.expert_ffn = expert_ffn;
  return config;
}

/// DeepSeek-V3's router and a shared expert, at the size of tiny.
ModelConfig tiny_moe_shared() {
  RoutingRule rule = softmax_of(8, 2);
  rule.score = RouterScore::sigmoid;
  ModelConfig config = with_experts(llama("tiny-moe-shared", 4, 128, 128, 4, 2, 32, 256, true), rule, 128);
  config.moe.shared_ffn = 128;
  config.moe.route_bias = true;
  return config;
}

/// A Mixtral: 8 experts of the shape's ffn, of which a token uses 2.
ModelConfig mixtral(ModelConfig shape, std::int64_t positions) {
  const std::int64_t expert_ffn = shape.ffn;
  ModelConfig config = with_experts(std::move(shape), softmax_of(8, 2), expert_ffn);
  config.moe.names = ExpertNames::mixtral;
  return with_rope(std::move(config), 1e6, positions);
}

ModelConfig olmoe() {
  RoutingRule rule = softmax_of(64, 8);
  rule.normalise = false;
  ModelConfig config =
      with_experts(llama("olmoe-1b-7b", 16, 2048, 1024, 16, 16, 128, 50304, false), rule, 1024);
  config.qk_norm = true;
  config.qk_norm_over = QkNormOver::heads;
  config.rope_theta = 10000;
  config.max_positions = 4096;
  return config;
}

/// Qwen1.5-MoE and Qwen2-MoE: a shared expert with a gate.
ModelConfig qwen2_moe(ModelConfig config, std::int64_t experts, std::int64_t top_k, std::int64_t expert_ffn,
                      std::int64_t shared_ffn, std::int64_t positions) {
  RoutingRule rule = softmax_of(experts, top_k);
  rule.normalise = false;
  config = with_experts(with_rope(std::move(config), 1e6, positions), rule, expert_ffn);
  config.moe.shared_ffn = shared_ffn;
  config.moe.shared_gate = true;
  config.moe.names = ExpertNames::qwen2;
  return config;
}

RoutingRule sigmoid_of(std::int64_t experts, std::int64_t top_k) {
  RoutingRule rule = softmax_of(experts, top_k);
  rule.score = RouterScore::sigmoid;
  return rule;
}

/// GLM-4.5: DeepSeek-V3's routing without groups, biases on q, k and v, and half of a head rotates.
ModelConfig glm4_moe(ModelConfig config, std::int64_t experts, std::int64_t expert_ffn,
                     std::int64_t dense_layers, double route_scale) {
  RoutingRule rule = sigmoid_of(experts, 8);
  rule.scale = route_scale;
  rule.group_score = GroupScore::top2;
  config = with_experts(with_rope(std::move(config), 1e6, 131072), rule, expert_ffn);
  config.moe.shared_ffn = expert_ffn;
  config.moe.dense_layers = dense_layers;
  config.moe.route_bias = true;
  config.qkv_bias = true;
  config.block.rotary_dim = config.head_dim / 2;
  return config;
}

ModelConfig glm45() {
  ModelConfig config =
      glm4_moe(llama("glm-4.5", 92, 5120, 12288, 96, 8, 128, 151552, false), 160, 1536, 3, 2.5);
  config.qk_norm = true;
  return config;
}

/// GLM-4.6: the same with a longer context.
ModelConfig glm46() {
  ModelConfig config = glm45();
  config.name = "glm-4.6";
  config.max_positions = 202752;
  return config;
}

ModelConfig minimax_m2() {
  ModelConfig config = with_experts(
      with_norm_eps(with_rope(llama("minimax-m2", 62, 3072, 1536, 48, 8, 128, 200064, false), 5e6, 196608),
                    1e-6),
      sigmoid_of(256, 8), 1536);
  config.qk_norm = true;
  config.qk_norm_over = QkNormOver::heads;
  config.block.rotary_dim = 64;
  config.moe.route_bias = true;
  config.moe.names = ExpertNames::mixtral;
  return config;
}

ModelConfig ernie45_moe() {
  ModelConfig config = with_experts(
      ernie(llama("ernie-4.5-21b-a3b", 28, 2560, 12288, 20, 4, 128, 103424, true)), softmax_of(64, 6), 1536);
  config.moe.shared_ffn = 2 * 1536;
  config.moe.dense_layers = 1;
  config.moe.route_bias = true;
  config.moe.names = ExpertNames::ernie4_5;
  return config;
}

ModelConfig deepseek_moe() {
  RoutingRule rule = softmax_of(64, 6);
  rule.normalise = false;
  ModelConfig config = with_experts(
      with_norm_eps(
          with_rope(llama("deepseek-moe-16b", 28, 2048, 10944, 16, 16, 128, 102400, false), 1e4, 4096), 1e-6),
      rule, 1408);
  config.moe.shared_ffn = 2816;
  config.moe.dense_layers = 1;
  return config;
}

ModelConfig deepseek_v2_lite() {
  RoutingRule rule = softmax_of(64, 6);
  rule.normalise = false;
  ModelConfig config =
      with_experts(llama("deepseek-v2-lite-gqa", 27, 2048, 10944, 16, 16, 128, 102400, false), rule, 1408);
  config.moe.shared_ffn = 2816;
  config.moe.dense_layers = 1;
  config.rope_theta = 10000;
  config.norm_eps = 1e-6;
  config.cuts = "plain attention instead of latent attention (MLA), no YaRN";
  return config;
}

ModelConfig deepseek_v3() {
  RoutingRule rule = softmax_of(256, 8);
  rule.score = RouterScore::sigmoid;
  rule.scale = 2.5;
  rule.groups = 8;
  rule.group_top_k = 4;
  rule.group_score = GroupScore::top2;
  ModelConfig config =
      with_experts(llama("deepseek-v3-gqa", 61, 7168, 18432, 128, 128, 128, 129280, false), rule, 2048);
  config.moe.shared_ffn = 2048;
  config.moe.dense_layers = 3;
  config.moe.route_bias = true;
  config.rope_theta = 10000;
  config.norm_eps = 1e-6;
  config.cuts = "plain attention instead of latent attention (MLA), no YaRN, no multi-token prediction";
  return config;
}

/// gpt-oss: windows of 128 keys in every second layer.
ModelConfig gpt_oss(const char* name, std::int64_t layers, std::int64_t experts) {
  ModelConfig config =
      with_experts(with_rope(llama(name, layers, 2880, 2880, 64, 8, 64, 201088, false), 1.5e5, 131072),
                   softmax_of(experts, 4), 2880);
  config.rope_scaling.kind = RopeScaling::Kind::yarn;
  config.rope_scaling.factor = 32;
  config.rope_scaling.original_context = 4096;
  config.rope_scaling.truncate = false;
  config.rope_scaling.attention_factor = 0.1 * std::log(32.0) + 1;
  config.qkv_bias = config.block.o_bias = config.block.attention_sinks = true;
  config.sliding_window = 128;
  for (std::int64_t layer = 0; layer < layers; layer += 2) config.block.local_layers.push_back(layer);
  config.moe.logit_bias = config.moe.expert_bias = true;
  config.moe.swiglu_limit = 7;
  config.moe.names = ExpertNames::gpt_oss;
  return config;
}

/// Llama 4's language model. `dense_ffn`: width of the layers without experts, every second one; 0: all have experts.
ModelConfig llama4(std::string name, std::int64_t experts, std::int64_t dense_ffn, std::int64_t positions) {
  RoutingRule rule = softmax_of(experts, 1);
  rule.score = RouterScore::sigmoid;
  rule.normalise = false;
  ModelConfig config =
      with_experts(llama(std::move(name), 48, 5120, 8192, 40, 8, 128, 202048, false), rule, 8192);
  MoeConfig& moe = config.moe;
  moe.shared_ffn = 8192;
  moe.weight_at = WeightAt::input;
  moe.names = ExpertNames::llama4;
  if (dense_ffn > 0) {
    moe.layer_interval = 2;
    config.ffn = dense_ffn;
  }
  BlockForm& block = config.block;
  for (std::int64_t layer = 3; layer < config.layers; layer += 4) block.layers_without_rope.push_back(layer);
  block.temperature = 0.1;
  block.temperature_positions = config.unchunked_positions = 8192;
  config.max_positions = positions;
  return config;
}

ModelConfig llama4_scout() {
  ModelConfig config = llama4("llama4-scout", 16, 0, 10485760);
  config.block.unit_queries_and_keys = true;
  config.rope_scaling.kind = RopeScaling::Kind::llama3;
  config.rope_scaling.factor = 16;
  config.rope_scaling.low_freq_factor = config.rope_scaling.high_freq_factor = 1;
  config.rope_scaling.original_context = 8192;
  return config;
}

ModelConfig llama4_maverick() { return llama4("llama4-maverick", 128, 16384, 1048576); }

}  // namespace

const std::vector<ModelConfig>& model_presets() {
  // `tiny` is also the model of the PyTorch baseline script. 15m, 36m and 125m are ours: all dimensions are
  // multiples of 128, so that every recipe supports them. 15m reads bytes and 36m the tokens made by
  // tools/data. 125m has GPT-2 small's shape with SwiGLU at 8/3 of the width, and GPT-2's vocabulary padded
  // to a multiple of 128, so that it reads llm.c's token files.
  // Published models have the values of their config.json; hub_names.cpp names the repositories. The
  // definitions of presets that have committed records stay as they are, also where they leave out
  // `max_positions`.
  static const std::vector<ModelConfig> presets = [] {
    std::vector<ModelConfig> all = {
        // clang-format off
      //                    layers  width    ffn  heads kv   D   vocab  tied
      llama("tiny",              4,   128,   384,   4,  2,  32,    256, true),
      llama("15m",               6,   512,  1280,   8,  2,  64,    256, true),
      llama("36m",               8,   512,  1536,   8,  8,  64,  16384, true),
      llama("125m",             12,   768,  2048,  12, 12,  64,  50304, true),
      //                                                                                       theta   positions
      with_rope(llama("llama2-7b",         32, 4096, 11008, 32, 32, 128,  32000, false), 1e4,    4096),
      with_rope(llama("llama2-13b",        40, 5120, 13824, 40, 40, 128,  32000, false), 1e4,    4096),
      with_rope(llama("llama2-70b",        80, 8192, 28672, 64,  8, 128,  32000, false), 1e4,    4096),
      stretched(llama("llama3.2-1b",    16,  2048,  8192,  32,  8,  64, 128256, true), 32),
      stretched(llama("llama3.2-3b",    28,  3072,  8192,  24,  8, 128, 128256, true), 32),
      stretched(llama("llama3.1-8b",    32,  4096, 14336,  32,  8, 128, 128256, false), 8),
      llama("llama3-70b",               80,  8192, 28672,  64,  8, 128, 128256, false),
      stretched(llama("llama3.1-70b",   80,  8192, 28672,  64,  8, 128, 128256, false), 8),
      stretched(llama("llama3.3-70b",   80,  8192, 28672,  64,  8, 128, 128256, false), 8),
      stretched(llama("llama3.1-405b", 126, 16384, 53248, 128,  8, 128, 128256, false), 8),
      //                                                                                       theta   positions
      with_rope(llama("tinyllama-1.1b",    22, 2048,  5632, 32,  4,  64,  32000, false), 1e4,    2048),
      with_rope(llama("smollm2-135m",      30,  576,  1536,  9,  3,  64,  49152, true),  1e5,    8192),
      with_rope(llama("smollm2-360m",      32,  960,  2560, 15,  5,  64,  49152, true),  1e5,    8192),
      with_rope(llama("smollm2-1.7b",      24, 2048,  8192, 32, 32,  64,  49152, true),  1.3e5,  8192),
      mistral_v01(),
      with_rope(llama("mistral-7b-v0.3",   32, 4096, 14336, 32,  8, 128,  32768, false), 1e6,   32768),
      with_rope(llama("mistral-nemo-12b",  40, 5120, 14336, 32,  8, 128, 131072, false), 1e6,  128000),
      with_rope(llama("mistral-small-24b", 40, 5120, 32768, 32,  8, 128, 131072, false), 1e8,   32768),
      with_rope(llama("mistral-small-3.1-24b",
                                           40, 5120, 32768, 32,  8, 128, 131072, false), 1e9,  131072),
      with_norm_eps(with_rope(
                llama("deepseek-llm-7b",   30, 4096, 11008, 32, 32, 128, 102400, false), 1e4,    4096), 1e-6),
      ministral3(),
      smollm3(),
      granite(llama("granite-3.1-2b",     40, 2048,  8192, 32,  8,  64,  49155, true), 1.0 / 64, 8),
      granite(llama("granite-3.1-8b",     40, 4096, 12800, 32,  8, 128,  49155, true), 1.0 / 128, 16),
      olmo2(llama("olmo2-1b",             16, 2048,  8192, 16, 16, 128, 100352, false)),
      olmo2(llama("olmo2-7b",             32, 4096, 11008, 32, 32, 128, 100352, false)),
      olmo2(llama("olmo2-32b",            64, 5120, 27648, 40,  8, 128, 100352, false)),
      olmo3(llama("olmo3-7b",             32, 4096, 11008, 32, 32, 128, 100278, false)),
      olmo3(llama("olmo3-32b",            64, 5120, 27648, 40,  8, 128, 100278, false)),
      phi3_mini(),
      phi(with_rope(llama("phi-4",        40, 5120, 17920, 40, 10, 128, 100352, false), 2.5e5, 16384)),
      phi(with_rope(llama("phi-4-reasoning",
                                          40, 5120, 17920, 40, 10, 128, 100352, false), 5e5, 32768)),
      phi4_mini(),
      glm(llama("glm-4-9b",               40, 4096, 13696, 32,  2, 128, 151552, false), 1.5625e-7, 131072),
      glm4(llama("glm-4-9b-0414",         40, 4096, 13696, 32,  2, 128, 151552, false)),
      seed_oss(),
      ernie(llama("ernie-4.5-0.3b",       18, 1024,  3072, 16,  2, 128, 103424, true)),
      exaone4(llama("exaone-4.0-1.2b",    30, 2048,  4096, 32,  8,  64, 102400, true), 0, 65536),
      exaone4(llama("exaone-4.0-32b",     64, 5120, 27392, 40,  8, 128, 102400, false), 4096, 131072),
      //                    layers  width    ffn  heads kv   D   vocab  tied
      gemma(llama("gemma-2b",         18, 2048, 16384,  8,  1, 256, 256000, true), 8192),
      gemma(llama("gemma-7b",         28, 3072, 24576, 16, 16, 256, 256000, true), 8192),
      gemma2(llama("gemma-2-2b",      26, 2304,  9216,  8,  4, 256, 256000, true), 256),
      gemma2(llama("gemma-2-9b",      42, 3584, 14336, 16,  8, 256, 256000, true), 256),
      gemma2(llama("gemma-2-27b",     46, 4608, 36864, 32, 16, 128, 256000, true), 144),
      gemma3(llama("gemma-3-270m",    18,  640,  2048,  4,  1, 256, 262144, true), 256, 512, 32768),
      gemma3(llama("gemma-3-1b",      26, 1152,  6912,  4,  1, 256, 262144, true), 256, 512, 32768),
      large_gemma3(llama("gemma-3-4b",  34, 2560, 10240,  8,  4, 256, 262208, true), 256),
      large_gemma3(llama("gemma-3-12b", 48, 3840, 15360, 16,  8, 256, 262208, true), 256),
      large_gemma3(llama("gemma-3-27b", 62, 5376, 21504, 32, 16, 128, 262208, true), 168),
      //                                                                        QK-norm
      qwen("qwen2.5-0.5b",      24,   896,  4864,  14,  2,  64, 151936, true,   false),
      qwen("qwen2.5-1.5b",      28,  1536,  8960,  12,  2, 128, 151936, true,   false),
      with_rope(qwen("qwen2.5-3b",  36, 2048, 11008, 16,  2, 128, 151936, true,  false), 1e6,  32768),
      qwen("qwen2.5-7b",        28,  3584, 18944,  28,  4, 128, 152064, false,  false),
      with_norm_eps(with_rope(
                qwen("qwen2.5-14b", 48, 5120, 13824, 40,  8, 128, 152064, false, false), 1e6, 131072), 1e-5),
      with_norm_eps(with_rope(
                qwen("qwen2.5-32b", 64, 5120, 27648, 40,  8, 128, 152064, false, false), 1e6, 131072), 1e-5),
      with_norm_eps(with_rope(
                qwen("qwen2.5-72b", 80, 8192, 29568, 64,  8, 128, 152064, false, false), 1e6, 131072), 1e-5),
      with_rope(qwen("deepseek-r1-distill-qwen-7b",
                              28, 3584, 18944, 28,  4, 128, 152064, false, false), 1e4, 131072),
      with_rope(qwen("qwen3-0.6b",  28, 1024,  3072, 16,  8, 128, 151936, true,  true),  1e6,  40960),
      with_rope(qwen("qwen3-1.7b",  28, 2048,  6144, 16,  8, 128, 151936, true,  true),  1e6,  40960),
      qwen("qwen3-4b",          36,  2560,  9728,  32,  8, 128, 151936, true,   true),
      with_rope(qwen("qwen3-4b-2507",
                              36, 2560,  9728, 32,  8, 128, 151936, true,  true),  5e6, 262144),
      with_rope(qwen("qwen3-8b",    36, 4096, 12288, 32,  8, 128, 151936, false, true),  1e6,  40960),
      qwen("qwen3-14b",         40,  5120, 17408,  40,  8, 128, 151936, false,  true),
      with_rope(qwen("qwen3-32b",   64, 5120, 25600, 64,  8, 128, 151936, false, true),  1e6,  40960),
      // MoE models; ffn is the width of dense blocks or, without any, of an expert.
      with_experts(llama("tiny-moe",        4,   128,   128,   4,  2,  32,    256, true), softmax_of(8, 2), 128),
      tiny_moe_shared(),
      with_experts(llama("moe-4b-a1b",     16,  2048,  1024,  32,  8,  64, 128256, true), softmax_of(32, 8), 1024),
      olmoe(),
      mixtral(llama("mixtral-8x7b",       32, 4096, 14336, 32, 8, 128, 32000, false), 32768),
      mixtral(llama("mixtral-8x22b",      56, 6144, 16384, 48, 8, 128, 32000, false), 65536),
      mixtral(llama("mixtral-8x22b-v0.3", 56, 6144, 16384, 48, 8, 128, 32768, false), 65536),
      with_experts(qwen("qwen3-30b-a3b",   48,  2048,   768,  32,  4, 128, 151936, false,  true), softmax_of(128, 8), 768),
      with_experts(with_rope(qwen("qwen3-30b-a3b-2507",
                                           48,  2048,   768,  32,  4, 128, 151936, false,  true), 1e7, 262144), softmax_of(128, 8), 768),
      with_experts(qwen("qwen3-235b-a22b", 94,  4096,  1536,  64,  4, 128, 151936, false,  true), softmax_of(128, 8), 1536),
      qwen2_moe(qwen("qwen1.5-moe-a2.7b",  24,  2048,  1408,  16, 16, 128, 151936, false, false), 60, 4, 1408, 5632, 8192),
      qwen2_moe(qwen("qwen2-57b-a14b",     28,  3584,  2560,  28,  4, 128, 151936, false, false), 64, 8, 2560, 20480, 131072),
      ernie45_moe(),
      glm4_moe(llama("glm-4.5-air",        46,  4096, 10944,  96,  8, 128, 151552, false), 128, 1408, 1, 1),
      glm45(),
      glm46(),
      minimax_m2(),
      gpt_oss("gpt-oss-20b",              24,  32),
      gpt_oss("gpt-oss-120b",             36, 128),
      deepseek_moe(),
      deepseek_v2_lite(),
      deepseek_v3(),
      llama4_scout(),
      llama4_maverick(),
        // clang-format on
    };
    for (const std::vector<ModelConfig>& more : {classic_presets(), latent_presets()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return presets;
}

}  // namespace precbench
