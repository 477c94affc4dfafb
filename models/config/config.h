// The shape of a model, the presets, and the JSON that describes a user's own.
//
// One family is covered: Llama (RMSNorm, RoPE with or without a stretched context, grouped-query attention, SwiGLU),
// with Qwen2's biases on q, k and v, or an RMSNorm on queries and keys, Qwen3's per head or OLMoE's over all heads.
// Mistral is of it as long as a sequence fits its sliding window. In the place of SwiGLU there may be a mixture of experts:
// Mixtral's, Qwen3's, OLMoE's, and DeepSeek's and Llama 4's router under plain attention.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/numerics/rope_table.h"
#include "kernels/numerics/routing_rule.h"

namespace precbench {

/// Standard deviation of freshly initialised matrices: initializer_range of the published configurations.
inline constexpr double kInitializerRange = 0.02;

/// Where a token's weight meets its expert: in SwiGLU's output, which the last layer is linear in, or in the input.
enum class WeightAt : std::uint8_t { swiglu, input };
/// Whose checkpoints name the experts' tensors so. Llama 4's hold those of a layer in two tensors, and queries and keys in
/// another order: StoredForm (bench/step).
enum class ExpertNames : std::uint8_t { qwen3, mixtral, llama4 };

/// A mixture of experts, in every block but the first `dense_layers`, which have SwiGLU of ModelConfig::ffn.
struct MoeConfig {
  RoutingRule rule;               ///< of no experts: there is no mixture
  std::int64_t expert_ffn = 0;    ///< F, inner width of an expert
  std::int64_t shared_ffn = 0;    ///< of the expert that every token takes; 0: none
  std::int64_t dense_layers = 0;  ///< fewer than layers
  bool route_bias = false;        ///< a bias on the keys that evens the load (DeepSeek-V3)
  WeightAt weight_at = WeightAt::swiglu;
  ExpertNames names = ExpertNames::qwen3;

  explicit operator bool() const { return rule.experts > 0; }
  bool operator==(const MoeConfig&) const = default;
};

/// What one RMSNorm of queries, and one of keys, takes together: D elements of a head, or the H D or KV D of all.
enum class QkNormOver : std::uint8_t { head, heads };

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
  bool qk_norm = false;       ///< RMSNorm on queries and keys, before RoPE
  QkNormOver qk_norm_over = QkNormOver::head;
  bool qkv_bias = false;  ///< biases on q, k and v; not together with qk_norm
  /// RoPE changes its angles in sequences beyond max_positions, which are unsupported. No part of model_to_json: shorter
  /// sequences are the same work without it.
  bool dynamic_rope = false;
  double rope_theta = 500000;
  double norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  std::int64_t sliding_window = 0;  ///< positions that a layer's attention sees; 0: all before. None of it is
                                    ///< modelled: longer sequences are unsupported
  std::int64_t max_positions = 0;   ///< that the checkpoint is made for; 0: not known
  std::vector<std::string> not_modelled =
      {};  ///< what its file asks for and a step does without, a line each
  MoeConfig moe = {};
  std::string cuts = {};  ///< what it lacks of the model that it is named after; empty: nothing

  /// Whether a block has experts.
  bool has_experts(std::int64_t layer) const { return moe && layer >= moe.dense_layers; }
  bool norms_all_heads() const { return qk_norm && qk_norm_over == QkNormOver::heads; }

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  /// Elements of a row that QK-norm takes together, of queries and of keys; 0 without it.
  std::int64_t q_normed() const { return !qk_norm ? 0 : norms_all_heads() ? q_width() : head_dim; }
  std::int64_t k_normed() const { return !qk_norm ? 0 : norms_all_heads() ? kv_width() : head_dim; }
  bool operator==(const ModelConfig&) const = default;
};

/// All trained parameters: embedding, blocks, final norm, and lm_head unless tied.
std::int64_t parameter_count(const ModelConfig& config);

/// Those of them that a token meets: of the experts top_k, and the shared one.
std::int64_t active_parameter_count(const ModelConfig& config);

/// Weights of the blocks' linear layers that a token meets, those of routers not counted.
std::int64_t active_matrix_parameters(const ModelConfig& config);

/// The same model with so many blocks, which its name and its cuts say; 0: as it is. Throws InvalidInput where it has fewer
/// or where none of those left has experts.
ModelConfig cut_to(ModelConfig config, std::int64_t layers);

/// Throws InvalidInput that names the field: a dimension below 1, heads % kv_heads, odd head_dim, bad eps or
/// theta, biases beside QK-norm, heads of a QK-norm that is none, a router that cannot choose.
void validate(const ModelConfig& config);

/// Smallest first within each family; `tiny` is the first.
const std::vector<ModelConfig>& model_presets();

/// A preset's name, or the path of a JSON file (anything that ends in ".json"). A file without a name in it has that of its
/// path: of its folder where it is a config.json, of the repository in a cache of Hugging Face.
/// Throws InvalidInput with the nearest preset, with a folder's config.json, or with the file's name and its bad field.
ModelConfig find_model(const std::string& name_or_path);

/// Reads and checks a model: our own keys (those of model_to_json), or a Hugging Face config.json of model_type llama,
/// mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, deepseek_v2, deepseek_v3 or llama4_text. Own keys: layers, width, ffn, heads and vocab are required; kv_heads
/// defaults to heads, head_dim to width / heads, the rest as in ModelConfig; an unknown key is an error, with
/// the nearest valid one. In a Hugging Face file an absent key means what its model_type's configuration says, and a
/// number may have any name that transformers takes for it. What would make it another model is an error that names all
/// such keys (another model_type or hidden_act, biases, softcapping, multipliers, a parallel residual, a partial rotary
/// factor, another kind of RoPE or attention). What else it asks for and is not read stands in not_modelled.
ModelConfig model_from_json(const nlohmann::json& json);
nlohmann::json model_to_json(const ModelConfig& config);

}  // namespace precbench
