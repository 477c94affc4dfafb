// Names of presets on the Hugging Face hub, and suggestions for unknown names.
#include "models/config/hub_names.h"

#include <map>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/config.h"
#include "models/config/missing_families.h"

namespace precbench {
namespace {

std::string refusal(const std::string& name) {
  return refusal_of([&] { find_model(name); });
}

TEST_CASE("find_model: hub names and letter case do not matter", "[models]") {
  const std::map<std::string, std::string> names = {
      {"Qwen/Qwen3-8B", "qwen3-8b"},
      {"qwen/qwen3-8b-BASE", "qwen3-8b"},
      {"Qwen3-8B", "qwen3-8b"},
      {"QWEN3-0.6B", "qwen3-0.6b"},
      {"meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"},
      {"llama-3.1-8b", "llama3.1-8b"},
      {"meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"},
      {"mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"},
      {"HuggingFaceTB/SmolLM2-135M", "smollm2-135m"},
      {"mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"},
      {"mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-v0.3"},
      {"Tiny", "tiny"},
      {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-2507"},
      {"Qwen3-Coder-30B-A3B", "qwen3-30b-a3b-2507"},
      {"deepseek-ai/DeepSeek-V3.1", "deepseek-v3"},
      {"DeepSeek-R1-Distill-Llama-8B", "llama3.1-8b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"},
      {"zai-org/GLM-4.6", "glm-4.6"},
      {"moonshotai/Kimi-K2-Thinking", "kimi-k2-0905"},
      {"mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"},
      {"microsoft/Phi-4-reasoning", "phi-4-reasoning"},
      {"NousResearch/Hermes-4-70B", "llama3.1-70b"},
      {"EleutherAI/pythia-1b-deduped", "pythia-1b"},
      {"CohereLabs/c4ai-command-r7b-12-2024", "command-r7b"},
      {"Qwen/Qwen2.5-72B", "qwen2.5-72b"},
      {"meta-llama/Llama-2-7b-hf", "llama2-7b"},
      {"mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"},
      {"allenai/OLMo-2-0325-32B", "olmo2-32b"},
      {"Qwen/Qwen2.5-Coder-7B", "qwen2.5-7b"},
      {"Qwen/Qwen3-8B-FP8", "qwen3-8b"},
  };
  for (const auto& [given, preset] : names) {
    INFO(given);
    CHECK(find_model(given) == find_model(preset));
    CHECK(preset_name(given) == preset);
  }
  CHECK(preset_name("my/model.json") == "my/model.json");
}

TEST_CASE("hub_names: every repository leads to one preset that exists", "[models]") {
  std::map<std::string, int> seen;
  for (const HubName& hub : hub_names()) {
    INFO(hub.repository);
    CHECK(++seen[hub.repository] == 1);
    CHECK(find_model(hub.preset).cuts.empty());
    CHECK(find_model(hub.repository).name == hub.preset);
  }
}

TEST_CASE("find_model: a suggestion never has another size or family", "[models]") {
  CHECK(refusal("lama3.1-8b") == "unknown model \"lama3.1-8b\"; did you mean llama3.1-8b?");
  CHECK(refusal("Qwen/Qwen3-8b-Bas") ==
        "unknown model \"Qwen/Qwen3-8b-Bas\"; did you mean Qwen/Qwen3-8B-Base?");
  CHECK(contains(refusal("tinny"), "did you mean tiny?"));
  const std::string of_family = refusal("qwen3-9b");
  CHECK(of_family.starts_with("unknown model \"qwen3-9b\"; the nearest of qwen are qwen3-"));
  CHECK(contains(of_family, "qwen3-8b"));
  CHECK(!contains(of_family, "llama"));
  CHECK(of_family.ends_with("; precbench list models has all, or give the path of its config.json"));
  for (const char* other : {"yi-6b", "falcon3-7b", "acme/Model-8B"}) {
    INFO(other);
    CHECK(!contains(refusal(other), "did you mean"));
    CHECK(contains(refusal(other), "; precbench list models has all, or "));
    CHECK(refusal(other).size() < 300);
  }
}

TEST_CASE(
    "find_model: a word that tells models apart is no typo, and a family that is missing is named with the reason",
    "[models]") {
  for (const char* other :
       {"Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-3n-E4B-it"}) {
    INFO(other);
    CHECK(!contains(refusal(other), "did you mean"));
  }
  CHECK(
      refusal("google/gemma-3n-E4B-it") ==
      "unknown model \"google/gemma-3n-E4B-it\"; its family needs AltUp, LAuReL and per-layer embeddings, which is not "
      "supported; the nearest preset is gemma-3-4b");
  CHECK(contains(refusal("Qwen/Qwen3-Next-80B-A3B-Instruct"), "gated DeltaNet layers (linear attention)"));
  CHECK(contains(refusal("nvidia/Nemotron-H-8B-Base-8K"), "needs Mamba-2 layers"));
  CHECK(contains(refusal("bloom-7b1"), "needs ALiBi"));
  CHECK(contains(refusal("google/recurrentgemma-9b"), "the nearest preset is gemma-2-9b"));
}

TEST_CASE("missing families: the nearest is supported", "[models]") {
  for (const char* type :
       {"qwen3_next", "nemotron_h", "gemma3n", "deepseek_v32", "apertus", "zamba2", "falcon"}) {
    INFO(type);
    const MissingFamily* family = missing_family_of_type(type);
    REQUIRE(family != nullptr);
    const std::string preset = family->preset;
    if (!preset.empty()) CHECK(find_model(preset).name == preset);
  }
  CHECK(missing_family_of_type("llama") == nullptr);
  CHECK(missing_family_of_name("qwen3-8b") == nullptr);
  CHECK(missing_family_of_name("") == nullptr);
}

constexpr const char* kGlm45 =
    R"({"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 3, "head_dim": 128,
    "hidden_size": 5120, "intermediate_size": 12288, "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 160, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 92,
    "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 1000000, "routed_scaling_factor": 2.5, "tie_word_embeddings": false, "topk_group": 1,
    "use_qk_norm": true, "vocab_size": 151552})";

/// Checks that a preset is what is read from a published config.json. `changes`: keys in which the file differs from
/// `config`, that of another edition.
void same(const char* preset, const char* config, const nlohmann::json& changes = nlohmann::json::object()) {
  INFO(preset);
  nlohmann::json file = nlohmann::json::parse(config);
  file.update(changes);
  ModelConfig read = model_from_json(file);
  read.name = preset;
  CHECK(read == find_model(preset));
}

TEST_CASE("presets: values of the published config.json", "[models]") {
  same("qwen3-8b",
       R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "max_position_embeddings": 40960})");
  same("llama2-13b", R"({"model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-05, "rope_scaling": null, "max_position_embeddings": 4096})");
  same("mistral-7b-v0.1", R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "sliding_window": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "max_position_embeddings": 32768})");
  same("qwen2.5-72b", R"({"model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "use_sliding_window": false,
    "max_position_embeddings": 131072})");
  same("qwen3-30b-a3b-2507", R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": false,
    "rms_norm_eps": 1e-06, "rope_theta": 10000000, "max_position_embeddings": 262144})");
  same("olmo3-32b", R"({"model_type": "olmo3", "hidden_size": 5120, "intermediate_size": 27648,
    "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 100278,
    "sliding_window": 4096, "rms_norm_eps": 1e-06, "rope_theta": 500000, "max_position_embeddings": 65536,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836,
    "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0}})");
  same("qwen2.5-3b", R"({"model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": true, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "max_position_embeddings": 32768})");
  same("mistral-nemo-12b", R"({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 131072, "sliding_window": null, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "max_position_embeddings": 128000})");
  same("smollm2-360m", R"({"model_type": "llama", "hidden_size": 960, "intermediate_size": 2560,
    "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "vocab_size": 49152,
    "tie_word_embeddings": true, "rms_norm_eps": 1e-05, "rope_theta": 100000, "max_position_embeddings": 8192})");
  same("smollm3-3b", R"({"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
    "tie_word_embeddings": true, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0, "rope_scaling": null,
    "no_rope_layer_interval": 4, "use_sliding_window": false, "sliding_window": null,
    "max_position_embeddings": 65536})");
  same("granite-3.1-8b", R"({"model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49155,
    "tie_word_embeddings": true, "rms_norm_eps": 1e-05, "rope_theta": 5000000.0, "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16.0,
    "max_position_embeddings": 131072})");
  same("olmo2-7b", R"({"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-06, "rope_theta": 500000, "max_position_embeddings": 4096})");
  same("gemma-2b", R"({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
    "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 256000, "hidden_act": "gelu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": null,
    "max_position_embeddings": 8192})");
  same("gemma-2-27b", R"({"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864,
    "num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
    "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "query_pre_attn_scalar": 144, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "max_position_embeddings": 8192})");
  same("gemma-3-1b", R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 262144, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "rope_local_base_freq": 10000, "rope_scaling": null, "query_pre_attn_scalar": 256, "sliding_window": 512,
    "sliding_window_pattern": 6, "attn_logit_softcapping": null, "final_logit_softcapping": null,
    "cache_implementation": "hybrid", "max_position_embeddings": 32768})");
  same("phi-3-mini", R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 2047,
    "rope_scaling": null, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096})");
  same(
      "gpt2",
      R"({"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_embd": 768,
    "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257})");
  same("gpt-j-6b", R"({"model_type": "gptj", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05,
    "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
    "tie_word_embeddings": false, "vocab_size": 50400})");
  same("pythia-160m", R"({"model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 768,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 12,
    "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
    "use_parallel_residual": true, "vocab_size": 50304})");
  same("phi-2",
       R"({"model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
    "partial_rotary_factor": 0.4, "qk_layernorm": false, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "vocab_size": 51200})");
  same("starcoder2-7b",
       R"({"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 4608,
    "intermediate_size": 18432, "max_position_embeddings": 16384, "norm_epsilon": 1e-05, "num_attention_heads": 36,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "rope_theta": 1000000, "sliding_window": 4096,
    "use_bias": true, "vocab_size": 49152})");
  same("stablelm-2-1.6b", R"({"model_type": "stablelm", "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
    "tie_word_embeddings": false, "use_qkv_bias": true, "vocab_size": 100352})");
  same("command-r7b", R"({"model_type": "cohere2", "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "layer_norm_eps": 1e-05, "logit_scale": 0.25, "max_position_embeddings": 132096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_theta": 50000,
    "sliding_window": 4096, "sliding_window_pattern": 4, "use_gated_activation": true, "use_parallel_block": true,
    "vocab_size": 256000})");
  same("glm-4.5", kGlm45);
  same("qwen1.5-moe-a2.7b", R"({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
    "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false, "use_sliding_window": false,
    "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false})");
  same("exaone-4.0-32b", R"({"model_type": "exaone4", "hidden_size": 5120, "intermediate_size": 27392,
    "max_position_embeddings": 131072, "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "head_dim": 128, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "rope_scaling": {"factor": 16.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "sliding_window": 4096, "sliding_window_pattern": "LLLG", "tie_word_embeddings": false, "vocab_size": 102400})");
  same("mixtral-8x22b-v0.3", R"({"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384,
    "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "max_position_embeddings": 65536})");
}

TEST_CASE("presets: later editions have the RoPE base and the context of their config.json", "[models]") {
  same("olmo2-32b", R"({"model_type": "olmo2", "hidden_size": 5120, "intermediate_size": 27648,
    "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 100352,
    "rms_norm_eps": 1e-06, "rope_theta": 500000, "rope_scaling": null, "max_position_embeddings": 4096})");
  same("phi-4-reasoning", R"({"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352,
    "rms_norm_eps": 1e-05, "rope_theta": 500000, "rope_scaling": null, "sliding_window": null,
    "tie_word_embeddings": false, "max_position_embeddings": 32768,
    "original_max_position_embeddings": 32768, "partial_rotary_factor": 1.0})");
  same("deepseek-r1-distill-qwen-7b", R"({"model_type": "qwen2", "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "vocab_size": 152064, "rms_norm_eps": 1e-06, "rope_theta": 10000, "use_sliding_window": false,
    "sliding_window": 4096, "tie_word_embeddings": false, "max_position_embeddings": 131072})");
  same("qwen3-4b-2507", R"({"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "rms_norm_eps": 1e-06, "rope_theta": 5000000, "tie_word_embeddings": true,
    "max_position_embeddings": 262144})");
  same("mistral-small-3.1-24b", R"({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 131072, "rms_norm_eps": 1e-05, "rope_theta": 1e9, "sliding_window": null,
    "max_position_embeddings": 131072})");  // text_config
  same("glm-4.6", kGlm45, {{"max_position_embeddings", 202752}});
  same("kimi-k2-0905", R"({"model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-06, "rope_theta": 50000.0, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0,
    "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    "type": "yarn"}, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "tie_word_embeddings": false})");
}

}  // namespace
}  // namespace precbench
