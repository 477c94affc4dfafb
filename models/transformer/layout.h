// Where every parameter lies: pure arithmetic, the same on every device and rank.
//
// Parameters form units: one per block, and the edges (embedding; final norm and lm_head, or all three in one
// unit when tied). A unit is what is gathered, released and reduced at a time. Inside a unit the matrices
// come first, norm gains and biases last, so that weight decay covers one run; q|k|v and gate|up lie side by
// side and are used as one matrix, as the biases of q|k|v are as one vector. Over the whole model the units lie
// in the order in which backward finishes them, last to first: that lets the gradient buffer overlay
// the activations until backward reaches it (kernels/device/memory.h).
//
// Under FSDP a unit is cut into `shards` equal shards, the last ones padded or empty. Where ranks have different experts
// these are two units behind their block's, gate_up and down, of which a rank has its experts' part and nobody the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numerics/tensor.h"
#include "models/config/block.h"
#include "models/config/config.h"

namespace precbench {

/// A tensor under its Hugging Face name.
struct Parameter {
  std::string name;
  std::int64_t offset = 0;  ///< element in its unit
  std::int64_t rows = 0, cols = 0;
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t in_model = 0;  ///< its first element in the model of one rank: the counter of random numbers

  std::int64_t size() const { return rows * cols; }
  /// [rows, cols], or [cols] of a vector.
  std::vector<std::int64_t> shape() const {
    return kind == ParameterKind::matrix ? std::vector<std::int64_t>{rows, cols}
                                         : std::vector<std::int64_t>{cols};
  }
};

struct Unit {
  std::vector<Parameter> parameters;
  std::int64_t size = 0;    ///< elements, alignment holes included
  std::int64_t layer = -1;  ///< of a block
  std::optional<LinearRole> experts =
      {};  ///< whose matrices of a block these are, where ranks have different ones

  /// First element of its vectors, gains and biases, which come last; `size` where it has none.
  std::int64_t vectors_offset() const;
};

/// The stacked matrices of a block's experts.
inline constexpr LinearRole kExpertRoles[] = {LinearRole::gate_up, LinearRole::down};

/// How many ranks have different experts, each an equal part in order, and which of them this is.
struct ExpertShare {
  int ranks = 1, rank = 0;
};

/// A run of elements that the optimizer treats alike.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t in_model = 0;  ///< of the first, as Parameter's

  bool decay() const { return kind == ParameterKind::matrix; }
};

/// What a shard has of a parameter of its unit.
struct Piece {
  const Parameter* parameter;
  std::int64_t first = 0;   ///< element of the flattened parameter
  std::int64_t offset = 0;  ///< the same in the shard
  std::int64_t count = 0;   ///< 0: nothing

  std::int64_t in_model() const { return parameter->in_model + first; }
};

/// A linear layer's matrix in a block's unit: its first element, its rows and columns, and how many experts it stacks.
struct LinearMatrix {
  LinearRole role;
  std::int64_t offset, rows, cols;
  std::int64_t experts = 1;

  std::int64_t size() const { return rows * cols; }
};

/// A block's tensors as views of its unit, for weights and gradients alike: matrices [out, in].
using BlockTensors = BlockOf<Tensor>;

class Layout {
 public:
  /// shards: 1, or the ranks that share every unit. `whole_blocks`: the shards of blocks end where 128 rows
  /// of a matrix end, and are a little larger for it. `experts`: the ranks divide those of a block.
  Layout(const ModelConfig& config, int shards, bool whole_blocks = false, const ExpertShare& experts = {});

  const std::vector<Unit>& units() const { return units_; }
  int unit_count() const { return static_cast<int>(units_.size()); }
  int block_unit(std::int64_t layer) const { return block_units_[layer]; }
  /// The unit of a block's gate_up or down where ranks have different experts.
  int expert_unit(std::int64_t layer, LinearRole role) const {
    return block_unit(layer) + (role == LinearRole::gate_up ? 1 : 2);
  }
  int embedding_unit() const { return embedding_unit_; }
  int head_unit() const { return unit_count() - 1; }
  /// Units in the order in which backward completes their gradients.
  std::vector<int> backward_order() const;
  /// Whether it is a block, or what is left of it without its experts.
  bool is_block(int unit) const { return units_[unit].layer >= 0 && !is_experts(unit); }
  bool is_experts(int unit) const { return units_[unit].experts.has_value(); }
  /// Of a block or its experts.
  std::int64_t layer_of(int unit) const { return units_[unit].layer; }

  const ExpertShare& expert_share() const { return experts_; }
  /// Whether a block's experts are units of their own.
  bool experts_apart(std::int64_t layer) const { return experts_.ranks > 1 && config_.has_experts(layer); }

  int shards() const { return shards_; }
  /// Elements of one shard of a unit; the whole unit where shards is 1. Of experts a rank's part, whatever the shards.
  std::int64_t shard_size(int unit) const { return shard_sizes_[unit]; }
  /// First element of a unit in a buffer that holds one shard of every unit, and that buffer's size.
  std::int64_t shard_offset(int unit) const { return shard_offsets_[unit]; }
  std::int64_t local_size() const { return shard_offsets_.back(); }
  /// First element of a unit in the unsharded model.
  std::int64_t model_offset(int unit) const { return units_[unit].parameters.front().in_model; }
  /// The unit's elements in the shard of `shard_rank`, as [first, last) of the unit; of experts this rank's.
  std::pair<std::int64_t, std::int64_t> shard_range(int unit, int shard_rank) const;

  /// Of every parameter of the unit, in order, what the shard of `shard_rank` has.
  std::vector<Piece> pieces(int unit, int shard_rank) const;
  /// The runs of a shard, without holes; offsets relative to the shard.
  std::vector<Run> runs(int unit, int shard_rank) const;

  /// What no optimizer updates, FP32 and whole on every rank: the biases of the blocks' routers, [experts] each.
  const std::vector<Parameter>& buffers() const { return buffers_; }

  BlockTensors block(std::int64_t layer, const Tensor& unit) const;
  /// This rank's part of a unit of experts as one stacked matrix.
  Tensor expert_stack(int unit, const Tensor& part) const;
  /// The matrices of a block's linear layers, in the order of the declaration; without experts that are units.
  const std::vector<LinearMatrix>& block_linears(std::int64_t layer) const { return kind_of(layer).linears; }
  /// First element of a block's vectors, gains and biases, which are the rest of its unit.
  std::int64_t vectors_offset(std::int64_t layer) const { return kind_of(layer).vectors_offset; }
  /// The vectors alone, from that part of a unit: [1, unit size - vectors_offset(layer)].
  BlockVectors block_vectors(std::int64_t layer, const Tensor& vectors) const;
  Tensor embedding(const Tensor& unit) const;   ///< of embedding_unit: [V, C]
  Tensor final_norm(const Tensor& unit) const;  ///< of head_unit: [1, C]
  Tensor lm_head(const Tensor& unit) const;     ///< of head_unit: [V, C]; the embedding when tied

 private:
  /// What blocks that are alike have in common: where their matrices and vectors lie.
  struct BlockKind {
    BlockSpec spec;
    std::vector<LinearMatrix> linears;
    std::vector<std::int64_t> vector_offsets;  // of every declared vector in its unit
    std::int64_t vectors_offset = 0, size = 0;
  };
  const BlockKind& kind_of(std::int64_t layer) const { return kinds_[config_.has_experts(layer)]; }
  Unit make_block(std::int64_t layer) const;
  void push_block(std::int64_t layer, Unit block);
  void find_block_tensors(std::int64_t layer);
  /// The smallest shard of a block, at least its share, that ends whole wherever it ends.
  std::int64_t whole_block_shard(std::int64_t layer) const;

  ModelConfig config_;
  BlockKind kinds_[2];  // without experts, and with
  int shards_;
  ExpertShare experts_;
  int embedding_unit_ = 0;
  std::vector<int> block_units_;
  std::vector<Unit> units_;
  std::vector<Parameter> buffers_;
  std::int64_t final_norm_offset_ = 0;
  std::vector<std::int64_t> shard_sizes_, shard_offsets_;
};

}  // namespace precbench
