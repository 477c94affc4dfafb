// What a block is made of: its linear layers, each with its role, and its norm gains and biases. Layout, FLOPs,
// recipes, FP8 weights and reports read this one declaration. A new kind of block is another branch of block_of, and a
// role (linear_role.h) for each kind of linear layer that is new with it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/tensor.h"
#include "models/config/config.h"

namespace precbench {

/// How a parameter starts and whether weight decay applies to it.
enum class ParameterKind : std::uint8_t {
  matrix,  ///< starts at random; decayed
  gain,    ///< of a norm: starts at 1
  bias,    ///< starts at 0
};

/// A named parameter of a block: rows of a linear layer's matrix, or elements of a vector.
struct ParameterPart {
  std::string name;  ///< as in a Hugging Face checkpoint, without the block's prefix
  std::int64_t size;
};

/// A linear layer's matrix [out, in]: its parts, row behind row. That of experts is a stack: one's parts behind another's.
struct LinearSpec {
  LinearRole role;
  std::int64_t in;
  std::vector<ParameterPart> parts;
  std::int64_t experts = 1;

  std::int64_t out() const;
  /// Of one expert.
  std::int64_t expert_out() const { return out() / experts; }
  std::int64_t size() const { return out() * in; }
};

/// A block's gains and biases; as views of weights and of gradients.
struct BlockVectors {
  Tensor norm1, norm2;    ///< [1, C]: input_layernorm, post_attention_layernorm
  Tensor q_norm, k_norm;  ///< [1, D], of a norm over all heads [1, H D] and [1, KV D]; empty without QK-norm
  Tensor qkv_bias;        ///< [1, (H + 2 KV) D], empty without biases
};

/// A vector [1, size]: its parts, one behind the other.
struct VectorSpec {
  Tensor BlockVectors::*tensor;
  ParameterKind kind;
  std::vector<ParameterPart> parts;

  std::int64_t size() const;
};

struct BlockSpec {
  std::vector<LinearSpec> linears;
  std::vector<VectorSpec> vectors;

  /// Elements of all matrices, and of all vectors.
  std::int64_t linear_parameters() const;
  std::int64_t vector_parameters() const;
};

/// Llama's block: attention, then SwiGLU or a mixture of experts, a norm before each. Blocks of one kind are alike: those
/// with experts, and those without.
BlockSpec block_of(const ModelConfig& config, std::int64_t layer);

/// Whether a linear layer's matrix is a stack.
inline bool is_stack(const ModelConfig& config, std::int64_t layer, LinearRole role) {
  return (role == LinearRole::gate_up || role == LinearRole::down) && config.has_experts(layer);
}

/// The router's bias in a checkpoint; no optimizer updates it.
std::string route_bias_name(std::int64_t layer);

/// lm_head, or the embedding where it is tied to it.
LinearSpec head_linear(const ModelConfig& config);

/// A value for every linear layer of a block, by role, beside the block's vectors.
template <class Value>
struct BlockOf : BlockVectors {
  std::array<Value, kAllLinearRoles> linears{};

  Value& operator[](LinearRole role) { return linears[static_cast<int>(role)]; }
  const Value& operator[](LinearRole role) const { return linears[static_cast<int>(role)]; }
};

}  // namespace precbench
