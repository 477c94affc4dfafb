// The table of families. Source: the modeling files of transformers 5.24 and of the models' own repositories.
#include "models/config/missing_families.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace precbench {
namespace {

constexpr const char* kDeltaNet = "gated DeltaNet layers (linear attention)";
constexpr const char* kMamba2 = "Mamba-2 layers";
constexpr const char* kMamba = "Mamba layers";
constexpr const char* kIndexer = "the indexer of sparse attention (up to index_topk tokens it chooses all)";
constexpr const char* kAlibi = "ALiBi";

/// The longer of two beginnings of one name comes first.
constexpr MissingFamily kFamilies[] = {
    {"qwen3_next", "qwen3-next", kDeltaNet, "qwen3_moe", "qwen3-30b-a3b"},
    {"qwen3_5_moe", "qwen3.5", kDeltaNet, "qwen3_moe", "qwen3-30b-a3b"},
    {"qwen3_5_moe_text", "qwen3.6", kDeltaNet, "qwen3_moe", "qwen3-30b-a3b"},
    {"qwen3_5", "", kDeltaNet, "qwen3", "qwen3-32b"},
    {"qwen3_5_text", "", kDeltaNet, "qwen3", "qwen3-32b"},
    {"olmo_hybrid", "olmo-hybrid", kDeltaNet, "olmo3", "olmo3-7b"},
    {"kimi_linear", "kimi-linear", "Kimi Delta Attention (linear attention)", "deepseek_v3", "deepseek-v3"},
    {"minimax", "minimax-text-01", "lightning attention (linear attention)", "minimax_m2", "minimax-m2"},
    {"nemotron_h", "nemotron-h", kMamba2, "nemotron", "minitron-8b"},
    {"nemotron_h", "nvidia-nemotron", kMamba2, "nemotron", "minitron-8b"},
    {"nemotron_h", "nemotron-3", kMamba2, "nemotron", "minitron-8b"},
    {"granitemoehybrid", "granite-4.0-h", kMamba2, "granite", "granite-3.1-8b"},
    {"falcon_h1", "falcon-h1", "Mamba-2 beside attention in every layer", "llama", "llama3.1-8b"},
    {"bamba", "bamba", kMamba2, "llama", "llama3.1-8b"},
    {"zamba2", "zamba2", kMamba2, "", ""},
    {"zamba", "zamba", kMamba, "", ""},
    {"jamba", "jamba", kMamba, "mixtral", "mixtral-8x7b"},
    {"mamba2", "mamba2", kMamba2, "", ""},
    {"mamba", "mamba", kMamba, "", ""},
    {"falcon_mamba", "falcon-mamba", kMamba, "", ""},
    {"rwkv", "rwkv", "RWKV's recurrent layers", "", ""},
    {"lfm2", "lfm2", "short convolutions in most layers", "llama", "llama3.2-1b"},
    {"lfm2_moe", "", "short convolutions in most layers", "qwen3_moe", "qwen3-30b-a3b"},
    {"recurrent_gemma", "recurrentgemma", "recurrent layers (RG-LRU)", "gemma2", "gemma-2-9b"},
    {"gemma3n", "gemma-3n", "AltUp, LAuReL and per-layer embeddings", "gemma3_text", "gemma-3-4b"},
    {"gemma3n_text", "", "AltUp, LAuReL and per-layer embeddings", "gemma3_text", "gemma-3-4b"},
    {"gemma4", "gemma-4", "per-layer embeddings and keys that are values", "gemma3_text", "gemma-3-4b"},
    {"gemma4_text", "", "per-layer embeddings and keys that are values", "gemma3_text", "gemma-3-4b"},
    {"t5gemma", "t5gemma", "an encoder and cross-attention", "gemma2", "gemma-2-2b"},
    {"deepseek_v32", "deepseek-v3.2", kIndexer, "deepseek_v3", "deepseek-v3"},
    {"glm_moe_dsa", "glm-5", kIndexer, "deepseek_v3", "deepseek-v3"},
    {"deepseek_v4", "deepseek-v4", "compressed sparse attention and hyper-connections", "deepseek_v3",
     "deepseek-v3"},
    {"longcat_flash", "longcat", "experts that compute nothing, and shortcuts around experts", "deepseek_v3",
     "deepseek-v3"},
    {"hunyuan_v1_moe", "hunyuan-a13b", "experts of this model_type", "hunyuan_v1_dense", ""},
    {"granitemoe", "granite-3.0-1b-a400m", "experts with Granite's factors", "granite", "granite-3.1-2b"},
    {"granitemoe", "granite-3.1-1b-a400m", "experts with Granite's factors", "granite", "granite-3.1-2b"},
    {"granitemoeshared", "", "experts with Granite's factors", "granite", "granite-3.1-2b"},
    {"bailing_moe", "ling-", "a joint q, k and v beside DeepSeek-V3's router", "glm4_moe", "glm-4.5-air"},
    {"bailing_moe_v2", "ring-", "a joint q, k and v beside DeepSeek-V3's router", "glm4_moe", "glm-4.5-air"},
    {"phimoe", "phi-3.5-moe", "LayerNorm beside experts, and SparseMixer's router", "mixtral",
     "mixtral-8x7b"},
    {"flex_olmo", "flexolmo", "norms on outputs beside experts", "olmoe", "olmoe-1b-7b"},
    {"afmoe", "trinity", "a gate on attention's output, and norms on both sides of experts", "glm4_moe",
     "glm-4.5-air"},
    {"mimo_v2_flash", "mimo-v2", "sinks and other heads in layers with a window", "minimax_m2", "minimax-m2"},
    {"exaone_moe", "k-exaone", "experts beside layers without RoPE", "exaone4", "exaone-4.0-32b"},
    {"dbrx", "dbrx", "LayerNorm beside experts, and clipped queries, keys and values", "mixtral",
     "mixtral-8x7b"},
    {"apertus", "apertus", "the activation xIELU", "nemotron", "minitron-8b"},
    {"arcee", "afm-", "squared ReLU beside RMSNorm", "nemotron", "minitron-8b"},
    {"nanochat", "nanochat", "squared ReLU beside RMSNorm without gains", "nemotron", "minitron-8b"},
    {"bitnet", "bitnet", "ternary weights, and norms inside attention and MLP", "llama", "llama3.2-1b"},
    {"nemotron-nas", "llama-3_3-nemotron-super", "layers of different shapes", "llama", "llama3.3-70b"},
    {"nemotron-nas", "llama-3_1-nemotron-51b", "layers of different shapes", "llama", "llama3.1-70b"},
    {"chatglm", "chatglm", "names of keys and tensors; the editions whose names end in -hf are supported",
     "glm", "glm-4-9b"},
    {"olmo", "olmo-1b", "LayerNorm without gains", "olmo2", "olmo2-1b"},
    {"olmo", "olmo-7b", "LayerNorm without gains", "olmo2", "olmo2-7b"},
    {"opt", "opt-", "ReLU, and positions with an offset", "gpt2", "gpt2"},
    {"bloom", "bloom", kAlibi, "gpt2", "gpt2"},
    {"mpt", "mpt-", kAlibi, "gpt_neox", "pythia-6.9b"},
    {"falcon", "falcon-7b", "a joint q, k and v in groups", "gpt_neox", "pythia-6.9b"},
    {"falcon", "falcon-40b", "a joint q, k and v in groups", "gpt_neox", "pythia-6.9b"},
    {"baichuan", "baichuan", "a normed lm_head (Baichuan 2) and ALiBi (13B)", "llama", ""},
};

template <class Matches>
const MissingFamily* first_that(const Matches& matches) {
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies), matches);
  return found == std::end(kFamilies) ? nullptr : &*found;
}

}  // namespace

const MissingFamily* missing_family_of_type(const std::string& model_type) {
  return first_that([&](const MissingFamily& family) { return model_type == family.model_type; });
}

const MissingFamily* missing_family_of_name(const std::string& name) {
  return first_that([&](const MissingFamily& family) {
    return !std::string_view(family.hub_name).empty() && name.starts_with(family.hub_name);
  });
}

}  // namespace precbench
