// Placement of every parameter: pure arithmetic, the same on every device and rank.
//
// Parameters form units, which are gathered, released and reduced as a whole: one per block, and the edges
// (embedding and learned positions; final norm and lm_head; all in one unit if tied). Within a unit the matrices come first,
// norm gains and biases last, so that weight decay covers one run. q|k|v and gate|up are adjacent and used as
// one matrix, as the biases of q|k|v are as one vector. Units are stored in model order and finished by
// backward from last to first. That lets the gradient buffer overlay the activations until backward reaches
// it (kernels/device/memory.h).
//
// FSDP cuts a unit into `shards` equal shards, the last ones padded or empty. With expert parallelism the
// experts form two units behind their block's, gate_up and down. Each rank has the part of its own experts.
//
// Ranks of tensor parallelism have the layout of a model with fewer heads, a narrower feed-forward network and a
// smaller vocabulary: rows of q, k, v, gate, up, the embedding and lm_head, and columns of o and down. Vectors are
// whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numerics/element_map.h"
#include "kernels/numerics/tensor.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/transformer/state/lora.h"

namespace precbench {

/// Part of a matrix: the rows and columns of the whole, and the first that a rank has.
struct MatrixSlice {
  std::int64_t rows = 0, cols = 0;
  std::int64_t first_row = 0, first_col = 0;
};

/// A tensor under its Hugging Face name, or a rank's slice of it.
struct Parameter {
  std::string name;
  std::int64_t offset = 0;  ///< first element within its unit
  std::int64_t rows = 0, cols = 0;
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t in_model =
      0;  ///< first element of the whole in the model of one rank: counter of random numbers
  std::optional<MatrixSlice> slice = {};  ///< with tensor parallelism, unless the rank has all of it

  std::int64_t size() const { return rows * cols; }
  /// Returns the parameter in the model of one rank. Its offset is not defined if this is a slice.
  Parameter whole() const;
  /// Returns the slice of this shape that another tensor rank has.
  Parameter slice_of(int tensor_rank) const;
  /// Returns the places of the elements in the flattened whole.
  ElementMap in_whole() const;
  /// Returns [rows, cols] of the whole, or [cols] of a vector.
  std::vector<std::int64_t> shape() const;
};

struct Unit {
  std::vector<Parameter> parameters;
  std::int64_t size = 0;                   ///< elements, including alignment holes
  std::int64_t layer = -1;                 ///< of a block or its experts; -1: an edge
  std::optional<LinearRole> experts = {};  ///< expert parallelism: the experts' matrices it holds

  /// Returns the first element of its vectors (gains and biases), which come last; `size` if it has none.
  std::int64_t vectors_offset() const;
};

/// Roles of the stacked matrices of a block's experts.
inline constexpr LinearRole kExpertRoles[] = {LinearRole::gate_up, LinearRole::down};

/// Number of ranks that divide the experts into equal consecutive parts, and this rank's index among them.
struct ExpertShare {
  int ranks = 1, rank = 0;
};

/// Number of ranks of tensor parallelism, and this rank's index among them.
struct TensorShare {
  int ranks = 1, rank = 0;
};

/// Returns the shape of one tensor rank's part of a model. `ranks` divides its heads, kv heads, ffn and vocabulary.
ModelConfig tensor_share(ModelConfig model, int ranks);

/// A run of elements that the optimizer treats alike.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
  ParameterKind kind = ParameterKind::matrix;
  ElementMap in_model = {};  ///< places in the model of one rank

  bool decay() const { return kind == ParameterKind::matrix; }
};

/// A shard's part of a parameter of its unit.
struct Piece {
  const Parameter* parameter;
  std::int64_t first = 0;   ///< first element within the flattened parameter
  std::int64_t offset = 0;  ///< first element within the shard
  std::int64_t count = 0;   ///< elements; 0: the shard has none

  /// Returns the places of its elements in the flattened whole, and in the model of one rank.
  ElementMap in_whole() const { return parameter->in_whole().from(first); }
  ElementMap in_model() const { return in_whole().within(parameter->in_model); }
};

/// A linear layer's matrix in a block's unit: first element, rows and columns, and the number of stacked
/// experts.
struct LinearMatrix {
  LinearRole role;
  std::int64_t offset, rows, cols;
  std::int64_t experts = 1;

  std::int64_t size() const { return rows * cols; }
};

/// Adapters of a linear layer (lora.h) in a block's unit. The A of its parts lie side by side and are used as one
/// matrix [parts * rank, in].
struct LoraMatrices {
  struct Output {
    std::int64_t offset, out;  ///< B [out, rank] of a part
  };
  LinearRole role;
  std::int64_t in, rank, a_offset;
  std::vector<Output> outputs;

  /// Returns the rows of all A.
  std::int64_t inner() const { return static_cast<std::int64_t>(outputs.size()) * rank; }
  std::int64_t out() const;
};

/// A block's tensors as views of its unit, for weights and gradients alike. Matrices are [out, in].
using BlockTensors = BlockOf<Tensor>;

class Layout {
 public:
  /// shards: 1, or the ranks that share every unit. `whole_blocks`: block shards end at multiples of 128
  /// matrix rows, which makes them slightly larger. `experts`, `tensor`: division of a block's experts, or of all
  /// matrices, among ranks; not both.
  Layout(const ModelConfig& whole_model, int shards, bool whole_blocks = false,
         const ExpertShare& experts = {}, const TensorShare& tensor = {});

  /// Layout of a model's adapters alone. Its units have the numbers of the model's, and the edges are empty.
  Layout(const ModelConfig& config, const LoraOptions& lora);

  const std::vector<Unit>& units() const { return units_; }
  int unit_count() const { return static_cast<int>(units_.size()); }
  int block_unit(std::int64_t layer) const { return block_units_[layer]; }
  /// Returns the unit of a block's gate_up or down with expert parallelism.
  int expert_unit(std::int64_t layer, LinearRole role) const {
    return block_unit(layer) + (role == LinearRole::gate_up ? 1 : 2);
  }
  int embedding_unit() const { return embedding_unit_; }
  int head_unit() const { return unit_count() - 1; }
  /// Returns the units in the order in which backward completes their gradients.
  std::vector<int> backward_order() const;
  /// Returns true for a block, with expert parallelism for its part without experts.
  bool is_block(int unit) const { return units_[unit].layer >= 0 && !is_experts(unit); }
  bool is_experts(int unit) const { return units_[unit].experts.has_value(); }
  /// Returns the block that a unit belongs to, as block or experts; -1: an edge.
  std::int64_t layer_of(int unit) const { return units_[unit].layer; }

  const ExpertShare& expert_share() const { return experts_; }
  /// Returns true if a block's experts are units of their own.
  bool experts_apart(std::int64_t layer) const { return experts_.ranks > 1 && config_.has_experts(layer); }

  int shards() const { return shards_; }
  /// Elements of one shard of a unit; the whole unit if shards is 1. For expert units this rank's part.
  std::int64_t shard_size(int unit) const { return shard_sizes_[unit]; }
  /// First element of a unit in a buffer that holds one shard of every unit, and the buffer's size.
  std::int64_t shard_offset(int unit) const { return shard_offsets_[unit]; }
  std::int64_t local_size() const { return shard_offsets_.back(); }
  /// First element of a unit in the unsharded model.
  std::int64_t model_offset(int unit) const { return units_[unit].parameters.front().in_model; }
  /// Returns the elements [first, last) of a unit in the shard of `shard_rank`; of an expert unit this rank's
  /// part.
  std::pair<std::int64_t, std::int64_t> shard_range(int unit, int shard_rank) const;

  /// Returns the parts of the unit's parameters, in order, in the shard of `shard_rank`.
  std::vector<Piece> pieces(int unit, int shard_rank) const;
  /// Returns the runs of a shard without holes; offsets are relative to the shard.
  std::vector<Run> runs(int unit, int shard_rank) const;

  /// Tensors that no optimizer updates, FP32 and whole on every rank: the biases of the routers, [experts]
  /// each.
  const std::vector<Parameter>& buffers() const { return buffers_; }

  BlockTensors block(std::int64_t layer, const Tensor& unit) const;
  /// The adapters of a block's linear layers; empty unless this is a layout of adapters. Experts and routers have none.
  const std::vector<LoraMatrices>& lora(std::int64_t layer) const {
    return lora_[config_.has_experts(layer)];
  }
  /// Returns this rank's part of an expert unit as one stacked matrix.
  Tensor expert_stack(int unit, const Tensor& part) const;
  /// The matrices of a block's linear layers in declaration order, without experts that are units of their
  /// own.
  const std::vector<LinearMatrix>& block_linears(std::int64_t layer) const { return kind_of(layer).linears; }
  /// First element of a block's vectors (gains and biases), which are the rest of its unit.
  std::int64_t vectors_offset(std::int64_t layer) const { return kind_of(layer).vectors_offset; }
  /// Returns the vectors alone; `vectors`: that part of a unit, [1, unit size - vectors_offset(layer)].
  BlockVectors block_vectors(std::int64_t layer, const Tensor& vectors) const;
  Tensor embedding(const Tensor& unit) const;  ///< view of embedding_unit: [V, C]
  /// View of embedding_unit: [learned_positions, C]; empty without.
  Tensor positions(const Tensor& unit) const;
  Tensor final_norm(const Tensor& unit) const;  ///< view of head_unit: [1, C]
  /// Views of head_unit: [1, C] and [1, V]; empty without biases.
  Tensor final_norm_bias(const Tensor& unit) const;
  Tensor head_bias(const Tensor& unit) const;
  Tensor lm_head(const Tensor& unit) const;  ///< view of head_unit: [V, C]; the embedding if tied

 private:
  /// Common properties of blocks of one kind: where their matrices and vectors lie.
  struct BlockKind {
    BlockSpec spec;
    std::vector<LinearMatrix> linears;
    std::vector<std::int64_t> vector_offsets;  // of every declared vector, within its unit
    std::int64_t vectors_offset = 0, size = 0;
  };
  const BlockKind& kind_of(std::int64_t layer) const { return kinds_[config_.has_experts(layer)]; }
  /// Marks which part of the whole model's parameters this tensor rank's are.
  void mark_slices(const Layout& whole, int tensor_rank);
  /// Places the shards of all units one behind the other.
  void place_shards();
  Unit make_block(std::int64_t layer) const;
  void push_block(std::int64_t layer, Unit block);
  void find_block_tensors(std::int64_t layer);
  /// Returns the smallest shard size, at least the block's equal share, such that every shard ends at a
  /// 128-row boundary.
  std::int64_t whole_block_shard(std::int64_t layer) const;

  ModelConfig config_;
  BlockKind kinds_[2];  // [0]: without experts; [1]: with
  int shards_;
  ExpertShare experts_;
  int embedding_unit_ = 0;
  std::vector<int> block_units_;
  std::vector<Unit> units_;
  std::vector<Parameter> buffers_;
  std::int64_t positions_offset_ = 0, final_norm_offset_ = 0, final_norm_bias_offset_ = 0,
               head_bias_offset_ = 0;
  std::vector<std::int64_t> shard_sizes_, shard_offsets_;
  std::vector<LoraMatrices> lora_[2];  // [0]: of blocks without experts; [1]: with
};

/// Returns elements of a flat tensor; empty if the tensor is not kept.
inline Tensor part(const Tensor& t, std::int64_t first, std::int64_t count) {
  return t.empty() ? Tensor{} : t.elements(first, count);
}

}  // namespace precbench
