// Structure of a block: its linear layers, each with a role, its norm gains and biases. Layout, FLOPs,
// recipes, FP8 weights and reports all read this declaration. A new kind of block needs a branch in block_of
// and a role (linear_role.h) for each new kind of linear layer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/tensor.h"
#include "models/config/config.h"

namespace precbench {

/// Initialization and weight decay of a parameter.
enum class ParameterKind : std::uint8_t {
  matrix,          ///< starts random; decayed
  gain,            ///< norm gain; starts at 1
  bias,            ///< starts at 0
  gain_minus_one,  ///< norm gain minus 1; starts at 0
};

/// Returns the kind of a model's norm weights.
inline ParameterKind gain_kind(const ModelConfig& config) {
  return config.block.gains_minus_one ? ParameterKind::gain_minus_one : ParameterKind::gain;
}

/// A named parameter of a block: rows of a linear layer's matrix, or elements of a vector.
struct ParameterPart {
  std::string name;  ///< as in a Hugging Face checkpoint, without the block's prefix
  std::int64_t size;
};

/// A linear layer's matrix [out, in], made of parts in row order. For experts it is a stack: all parts of one
/// expert, then those of the next.
struct LinearSpec {
  LinearRole role;
  std::int64_t in;
  std::vector<ParameterPart> parts;
  std::int64_t experts = 1;

  std::int64_t out() const;
  /// Returns the rows of one expert.
  std::int64_t expert_out() const { return out() / experts; }
  std::int64_t size() const { return out() * in; }
};

/// A block's gains and biases, as views of weights or of gradients.
struct BlockVectors {
  /// [1, C]: gains on the inputs of the halves, and on their outputs; empty where the block has no norm.
  Tensor norm1, norm2, post_norm1, post_norm2;
  Tensor norm1_bias, norm2_bias;  ///< [1, C], empty without
  /// [1, D]; with a norm over all heads [1, H D] and [1, KV D]; empty without QK-norm.
  Tensor q_norm, k_norm;
  Tensor q_latent_norm, kv_latent_norm;  ///< [1, q_rank] and [1, kv_rank]: gains on latents; empty without
  Tensor qkv_bias;                       ///< [1, (H + 2 KV) D], empty without biases
  Tensor o_bias;                         ///< [1, C], empty without one
  Tensor up_bias;                        ///< [1, F], empty without
  Tensor down_bias;                      ///< [1, C], empty without
  Tensor sinks;                          ///< [1, H], empty without
  /// [1, E]; [1, E 2F], an expert's gate before its up; [1, E C]: biases of the router and of all experts, which every
  /// rank has; empty without.
  Tensor router_bias, expert_up_bias, expert_down_bias;
};

/// A vector [1, size], made of consecutive parts.
struct VectorSpec {
  Tensor BlockVectors::*tensor;
  ParameterKind kind;
  std::vector<ParameterPart> parts;

  std::int64_t size() const;
  /// Returns true for biases of experts, of which a token uses those of its own.
  bool of_experts() const {
    return tensor == &BlockVectors::expert_up_bias || tensor == &BlockVectors::expert_down_bias;
  }
};

struct BlockSpec {
  std::vector<LinearSpec> linears;
  std::vector<VectorSpec> vectors;

  /// Return the number of elements of all matrices and of all vectors.
  std::int64_t linear_parameters() const;
  std::int64_t vector_parameters() const;
};

/// Returns a block: attention, then a dense network or a mixture of experts, each with a norm. All blocks with experts
/// have the same parameters, and so have all without.
BlockSpec block_of(const ModelConfig& config, std::int64_t layer);

/// Returns true if a linear layer's matrix is a stack of experts.
inline bool is_stack(const ModelConfig& config, std::int64_t layer, LinearRole role) {
  return (role == LinearRole::gate_up || role == LinearRole::down) && config.has_experts(layer);
}

/// Returns the checkpoint name of the router's bias, which no optimizer updates.
std::string route_bias_name(const ModelConfig& config, std::int64_t layer);

/// Returns lm_head, or the embedding if tied.
LinearSpec head_linear(const ModelConfig& config);

/// A value for every linear layer of a block, indexed by role, and the block's vectors.
template <class Value>
struct BlockOf : BlockVectors {
  std::array<Value, kAllLinearRoles> linears{};

  Value& operator[](LinearRole role) { return linears[static_cast<int>(role)]; }
  const Value& operator[](LinearRole role) const { return linears[static_cast<int>(role)]; }
};

}  // namespace precbench
