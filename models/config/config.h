// The shape of a model, the presets, and the JSON description of a user's own model.
//
// A block has attention (RoPE on all or part of each head, or learned positions; grouped queries; windows), RMSNorm or
// LayerNorm, and a feed-forward network with a gate (SwiGLU, GeGLU) or without (GELU, squared ReLU), or a mixture of
// experts. BlockForm has the differences from Llama's block. models/README.md lists the families.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/numerics/activation.h"
#include "kernels/numerics/rope_table.h"
#include "kernels/numerics/routing_rule.h"

namespace precbench {

/// Standard deviation of initial matrices: initializer_range of the published configurations.
inline constexpr double kInitializerRange = 0.02;

/// Tensor that the routing weight multiplies: SwiGLU's output (in which the down layer is linear) or the
/// expert's input.
enum class WeightAt : std::uint8_t { swiglu, input };
/// Naming scheme of the experts' tensors in checkpoints. Llama 4 and gpt-oss store all experts of a layer in two
/// tensors, and Llama 4 queries and keys in another row order: StoredForm (bench/step).
enum class ExpertNames : std::uint8_t { qwen3, mixtral, llama4, qwen2, ernie4_5, gpt_oss };

/// A mixture of experts in the last of every `layer_interval` blocks, except the first `dense_layers`. Blocks without have a
/// SwiGLU of ModelConfig::ffn.
struct MoeConfig {
  RoutingRule rule;                 ///< 0 experts: not an MoE model
  std::int64_t expert_ffn = 0;      ///< F, inner width of an expert
  std::int64_t shared_ffn = 0;      ///< inner width of the shared expert; 0: none
  bool shared_gate = false;         ///< the shared expert's output times sigmoid(x . w) (Qwen2)
  std::int64_t dense_layers = 0;    ///< less than layers
  std::int64_t layer_interval = 1;  ///< Llama 4 Maverick: 2
  bool route_bias = false;          ///< load-balancing bias on the router's scores (DeepSeek-V3)
  bool logit_bias = false;          ///< a trained bias on the router's logits (gpt-oss)
  bool expert_bias = false;         ///< biases of the experts' gate, up and down (gpt-oss)
  /// gpt-oss: SwiGLU becomes (up + 1) gate sigmoid(1.702 gate), with gate at most the limit and up within it; 0: plain.
  double swiglu_limit = 0;
  WeightAt weight_at = WeightAt::swiglu;
  ExpertNames names = ExpertNames::qwen3;

  explicit operator bool() const { return rule.experts > 0; }
  /// Returns true if no block has a SwiGLU instead of experts.
  bool in_all_layers() const { return dense_layers == 0 && layer_interval == 1; }
  bool operator==(const MoeConfig&) const = default;
};

/// Scope of the QK-norm: the D elements of one head, or all H D of queries and KV D of keys.
enum class QkNormOver : std::uint8_t { head, heads };

/// Position of the norms of a block's halves: on the input of each (Llama), on its output (OLMo 2), or on both
/// (Gemma 2).
enum class NormPlace : std::uint8_t { before, after, both };
/// RMSNorm, or LayerNorm, which also subtracts the mean (GPT-2, GPT-NeoX, Nemotron).
enum class NormKind : std::uint8_t { rms, layer };
/// Inputs of a block's halves: the second reads the sum of the stream and the first (Llama), or both read the
/// stream, each through a norm of its own (GPT-NeoX) or through the same one (Phi-2, GPT-J, Command R).
enum class Residual : std::uint8_t { sequential, parallel, parallel_one_norm };
/// Names of norms on inputs and outputs of halves (NormPlace::both): Gemma 2's or GLM-4's.
enum class NormNames : std::uint8_t { gemma, glm4 };
/// Order of a head's rotated elements in checkpoints: element i pairs with i + rotary_dim / 2 (Llama), or 2 i with
/// 2 i + 1 (GLM, Ernie).
enum class RopePairs : std::uint8_t { halves, interleaved };

/// Latent attention (MLA, DeepSeek-V2): keys and values are made from one narrow vector of a token, which is normed, and
/// queries from another one or from the block's input. head_dim is the width of queries and keys, whose last rope_dim
/// elements RoPE rotates; keys have these in common. There are as many key heads as query heads.
struct LatentAttention {
  std::int64_t q_rank = 0;    ///< width of the queries' latent; 0: queries come from the block's input
  std::int64_t kv_rank = 0;   ///< width of the keys' and values' latent; 0: attention is not latent
  std::int64_t rope_dim = 0;  ///< even
  std::int64_t v_dim = 0;     ///< width of a value head

  explicit operator bool() const { return kv_rank > 0; }
  bool operator==(const LatentAttention&) const = default;
};
/// Epsilon of the latents' norms in transformers, whatever the model's norm_eps is.
inline constexpr double kLatentNormEps = 1e-6;

/// Differences of a block from Llama's.
struct BlockForm {
  NormPlace norms = NormPlace::before;
  double residual_scale = 1;                           ///< factor of each half's output (Granite)
  double attention_scale = 0;                          ///< factor of the scores; 0: 1 / sqrt(head_dim)
  std::vector<std::int64_t> layers_without_rope = {};  ///< ascending (SmolLM3)
  std::string tensors =
      "none";  ///< layout of its checkpoints (tensor_layout.h); "none": a tensor for each parameter
  NormNames norm_names = NormNames::gemma;
  std::int64_t rotary_dim = 0;  ///< elements of a head that RoPE rotates, even, from the first on; 0: all
  RopePairs rope_pairs = RopePairs::halves;
  bool o_bias = false;                       ///< a bias on the output of attention's o
  Activation activation = Activation::silu;  ///< of SwiGLU's gate
  bool gains_minus_one = false;              ///< weights of norms are the gains minus 1 (Gemma)
  double attention_softcap = 0;              ///< scores become c tanh(score / c) (Gemma 2); 0: they stay
  /// Ascending: layers with the window, if some have none (Gemma 2 and 3, OLMo 3).
  std::vector<std::int64_t> local_layers = {};
  double local_rope_theta = 0;  ///< of local layers, which are then not scaled (Gemma 3); 0: as the others
  NormKind norm = NormKind::rms;
  bool norm_bias = false;  ///< of LayerNorm
  Residual residual = Residual::sequential;
  bool gated = true;      ///< false: act(x W_up) W_down instead of SwiGLU
  bool ffn_bias = false;  ///< biases of up and down without a gate
  /// The QK-norm of a head comes after RoPE (Hunyuan), so its gains multiply rotated elements.
  bool qk_norm_after_rope = false;
  /// A trained logit per head joins the softmax's denominator as a key without a value (gpt-oss).
  bool attention_sinks = false;
  /// Each head of queries and keys is divided by its root mean square after RoPE, in layers with RoPE (Llama 4).
  bool unit_queries_and_keys = false;
  /// In layers without RoPE, the query at position p is multiplied by 1 + temperature ln(1 + floor((p + 1) / temperature_positions))
  /// (Llama 4); 0: by 1. Longer sequences than temperature_positions tokens are unsupported, so only the last query of a sequence
  /// of exactly as many tokens changes.
  double temperature = 0;
  std::int64_t temperature_positions = 0;

  bool operator==(const BlockForm&) const = default;
};

struct ModelConfig {
  std::string name;
  std::int64_t layers = 0;    ///< L
  std::int64_t width = 0;     ///< C, width of the residual stream
  std::int64_t ffn = 0;       ///< F, inner width of the feed-forward network
  std::int64_t heads = 0;     ///< H, query heads
  std::int64_t kv_heads = 0;  ///< KV, key and value heads; divides H
  std::int64_t head_dim = 0;  ///< D, even; H * D need not be C
  std::int64_t vocab = 0;     ///< V
  bool tied = false;          ///< lm_head is the embedding matrix
  bool qk_norm = false;       ///< RMSNorm on queries and keys, before RoPE unless BlockForm says otherwise
  QkNormOver qk_norm_over = QkNormOver::head;
  bool qkv_bias = false;  ///< biases on q, k and v; not with a QK-norm over all heads
  /// RoPE changes its angles in sequences longer than max_positions, which are unsupported. Not written by
  /// model_to_json, because shorter sequences are computed as without it.
  bool dynamic_rope = false;
  /// Beyond rope_scaling.original_context the model computes something else, which is unsupported. Always so
  /// with LongRoPE.
  bool original_context_only = false;
  /// Tokens up to which the chunks of attention are the whole sequence (Llama 4). Longer sequences are unsupported. 0: no limit.
  std::int64_t unchunked_positions = 0;
  double rope_theta = 500000;
  double norm_eps = 1e-5;
  RopeScaling rope_scaling = {};
  /// Number of keys that a query sees, its own and those before it, in BlockForm::local_layers, or without these
  /// in all layers; 0: all.
  std::int64_t sliding_window = 0;
  std::int64_t max_positions = 0;              ///< positions that the checkpoint supports; 0: unknown
  std::vector<std::string> not_modelled = {};  ///< settings of its file that a step omits, a line each
  MoeConfig moe = {};
  LatentAttention latent = {};
  BlockForm block = {};
  double embedding_scale = 1;            ///< factor of the embedded tokens
  bool embedding_scale_rounded = false;  ///< to the dtype of the activations (Gemma)
  double logit_scale = 1;                ///< factor of the logits
  double logit_softcap = 0;              ///< logits become c tanh(logit / c) (Gemma 2); 0: they stay
  std::int64_t learned_positions = 0;    ///< rows of a table added to the embedding, without RoPE (GPT-2)
  bool head_bias = false;                ///< of lm_head (Phi-2, GPT-J)
  std::string cuts = {};                 ///< differences from the model it is named after; empty: none

  /// Returns true if a block has experts.
  bool has_experts(std::int64_t layer) const {
    return moe && layer >= moe.dense_layers && (layer + 1) % moe.layer_interval == 0;
  }
  /// Returns the blocks with experts, ascending.
  std::vector<std::int64_t> layers_with_experts() const;
  /// Returns a block of each kind that the model has: one without experts, one with.
  std::vector<std::int64_t> layer_of_each_kind() const;
  /// Returns the number of elements of a head that RoPE rotates.
  std::int64_t rotary_dim() const {
    return latent ? latent.rope_dim : block.rotary_dim > 0 ? block.rotary_dim : head_dim;
  }
  /// Returns true if a block rotates its queries and keys.
  bool has_rope(std::int64_t layer) const;
  /// Returns true if a block norms its queries and keys, with or without gains.
  bool norms_queries_and_keys(std::int64_t layer) const {
    return qk_norm || (block.unit_queries_and_keys && has_rope(layer));
  }
  /// Returns the number of keys that a query of the layer sees; 0: all before it.
  std::int64_t window(std::int64_t layer) const;
  bool norms_all_heads() const { return qk_norm && qk_norm_over == QkNormOver::heads; }

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  /// Returns the width of a value head.
  std::int64_t v_dim() const { return latent ? latent.v_dim : head_dim; }
  /// Returns the width of attention's output, which o reads.
  std::int64_t attention_width() const { return heads * v_dim(); }
  /// Return the number of elements that one QK-norm covers, of queries and of keys; 0 without QK-norm.
  std::int64_t q_normed() const { return !qk_norm ? 0 : norms_all_heads() ? q_width() : head_dim; }
  std::int64_t k_normed() const { return !qk_norm ? 0 : norms_all_heads() ? kv_width() : head_dim; }
  bool operator==(const ModelConfig&) const = default;
};

/// Returns the number of trained parameters: embedding, blocks, final norm, and lm_head unless tied.
std::int64_t parameter_count(const ModelConfig& config);

/// Returns the number of parameters that process a token: of the experts top_k and the shared one.
std::int64_t active_parameter_count(const ModelConfig& config);

/// Returns the number of weights in linear layers of the blocks that process a token, without routers.
std::int64_t active_matrix_parameters(const ModelConfig& config);

/// Returns the model with its first `layers` blocks and records this in its name and cuts; 0: unchanged.
/// Throws InvalidInput if the model has fewer, or if no remaining block has experts.
ModelConfig cut_to(ModelConfig config, std::int64_t layers);

/// Throws InvalidInput that names the field: a dimension below 1, heads not divisible by kv_heads, an odd
/// head_dim, bad eps, theta or scale, biases with a QK-norm over all heads, a QK-norm scope without QK-norm, layers
/// without RoPE or with a window that the model lacks, experts with another form of block, or an impossible router.
void validate(const ModelConfig& config);

/// Returns the presets, smallest first within each family; `tiny` is the first.
const std::vector<ModelConfig>& model_presets();

/// Returns a preset by one of its names (hub_names.h), or the model of a JSON file (a path that ends in
/// ".json", or "-" for standard input). A file without a name inside is named after its path; a config.json
/// after its folder, or after its repository in a Hugging Face cache. Throws InvalidInput that suggests the
/// nearest preset or a folder's config.json, or names the file and its bad field.
ModelConfig find_model(const std::string& name_or_path);

/// Reads and validates a model: our own keys (those of model_to_json), or a Hugging Face config.json of a model_type
/// in families.json; of a multimodal model its text_config, llm_config or language_config.
///   own keys      layers, width, ffn, heads and vocab are required; kv_heads defaults to heads, head_dim to
///                 width / heads, the rest as in ModelConfig
///   config.json   absent keys have the model_type's defaults; aliases that transformers accepts are read
/// Throws InvalidInput for an unknown own key (with the nearest valid one) and for config.json keys that ask
/// for another model, all in one error: other model_types, their activations, biases, softcapping, multipliers,
/// parallel residuals, partial rotary factors, other kinds of RoPE or attention. Other keys that are not read
/// are listed in not_modelled.
ModelConfig model_from_json(const nlohmann::json& json);
nlohmann::json model_to_json(const ModelConfig& config);

}  // namespace precbench
