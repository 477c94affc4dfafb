// The shape of a model, the presets, and the JSON that describes a user's own.
//
// One family is covered: Llama (RMSNorm, RoPE, grouped-query attention, SwiGLU, no biases) and Qwen3's
// per-head RMSNorm on queries and keys. Two published details are left out on purpose, because they cost no
// measurable time and every framework treats them differently:
//   - RoPE is plain: a checkpoint's `rope_scaling` (Llama 3.1's long-context stretch) is not applied;
//   - Qwen2.5's biases on q, k and v are not there, so its presets count L * (H + 2 KV) * D parameters fewer
//   than published.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace precbench {

struct ModelConfig {
  std::string name;
  std::int64_t layers = 0;    ///< L
  std::int64_t width = 0;     ///< C, of the residual stream
  std::int64_t ffn = 0;       ///< F, inner width of SwiGLU
  std::int64_t heads = 0;     ///< H, query heads
  std::int64_t kv_heads = 0;  ///< KV, key and value heads; divides H
  std::int64_t head_dim = 0;  ///< D, even; H * D need not be C
  std::int64_t vocab = 0;     ///< V
  bool tied = false;          ///< lm_head is the embedding matrix
  bool qk_norm = false;       ///< RMSNorm over D on every query and key head, before RoPE
  double rope_theta = 500000;
  double norm_eps = 1e-5;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool operator==(const ModelConfig&) const = default;
};

/// All trained parameters: embedding, blocks, final norm, and lm_head unless tied.
std::int64_t parameter_count(const ModelConfig& config);

/// P_layer of numerics.md: the weights of one block's seven linear layers, norms not counted.
std::int64_t block_matrix_parameters(const ModelConfig& config);

/// Throws InvalidInput that names the field: a dimension below 1, heads % kv_heads, odd head_dim, bad eps or
/// theta.
void validate(const ModelConfig& config);

/// Smallest first within each family; `tiny` is the first.
const std::vector<ModelConfig>& model_presets();

/// A preset's name, or the path of a JSON file (anything that ends in ".json").
/// Throws InvalidInput with the nearest preset, or with the file's name and its bad field.
ModelConfig find_model(const std::string& name_or_path);

/// Reads and checks a model: our own keys (those of model_to_json), or a Hugging Face config.json of
/// model_type llama, qwen2 or qwen3. Own keys: layers, width, ffn, heads and vocab are required; kv_heads
/// defaults to heads, head_dim to width / heads, the rest as in ModelConfig; an unknown key is an error, with
/// the nearest valid one. A Hugging Face file may hold any other key (its bookkeeping differs by version),
/// but not one that asks for something this family lacks: another model_type or hidden_act, explicit biases,
/// a sliding window.
ModelConfig model_from_json(const nlohmann::json& json);
nlohmann::json model_to_json(const ModelConfig& config);

}  // namespace precbench
