// Where every parameter lies: pure arithmetic, the same on every device and rank.
//
// Parameters form units: one per block, and the edges (embedding; final norm and lm_head, or all three in one
// unit when tied). A unit is what is gathered, released and reduced at a time. Inside a unit the matrices
// come first, norm gains and biases last, so that weight decay covers one run; q|k|v and gate|up lie side by
// side and are used as one matrix, as the biases of q|k|v are as one vector. Over the whole model the units lie
// in the order in which backward finishes them, last to first: that lets the gradient buffer overlay
// the activations until backward reaches it (kernels/device/memory.h).
//
// Under FSDP a unit is cut into `shards` equal shards, the last ones padded or empty.
#pragma once

#include <cstdint>
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

  std::int64_t size() const { return rows * cols; }
  /// [rows, cols], or [cols] of a vector.
  std::vector<std::int64_t> shape() const {
    return kind == ParameterKind::matrix ? std::vector<std::int64_t>{rows, cols}
                                         : std::vector<std::int64_t>{cols};
  }
};

struct Unit {
  std::vector<Parameter> parameters;
  std::int64_t size = 0;  ///< elements, alignment holes included
};

/// A run of elements that the optimizer treats alike.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
  ParameterKind kind = ParameterKind::matrix;

  bool decay() const { return kind == ParameterKind::matrix; }
};

/// What a shard has of a parameter of its unit.
struct Piece {
  const Parameter* parameter;
  std::int64_t first = 0;   ///< element of the flattened parameter
  std::int64_t offset = 0;  ///< the same in the shard
  std::int64_t count = 0;   ///< 0: nothing
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
  /// of a matrix end, and are a little larger for it.
  Layout(const ModelConfig& config, int shards, bool whole_blocks = false);

  const std::vector<Unit>& units() const { return units_; }
  int unit_count() const { return static_cast<int>(units_.size()); }
  int block_unit(std::int64_t layer) const { return first_block_ + static_cast<int>(layer); }
  int embedding_unit() const { return embedding_unit_; }
  int head_unit() const { return unit_count() - 1; }
  /// Units in the order in which backward completes their gradients.
  std::vector<int> backward_order() const;
  bool is_block(int unit) const { return unit >= first_block_ && unit < first_block_ + config_.layers; }
  std::int64_t layer_of(int block_unit) const { return block_unit - first_block_; }

  int shards() const { return shards_; }
  /// Elements of one shard of a unit; the whole unit where shards is 1.
  std::int64_t shard_size(int unit) const { return shard_sizes_[unit]; }
  /// First element of a unit in a buffer that holds one shard of every unit, and that buffer's size.
  std::int64_t shard_offset(int unit) const { return shard_offsets_[unit]; }
  std::int64_t local_size() const { return shard_offsets_.back(); }
  /// First element of a unit in the unsharded model: the counter of random numbers.
  std::int64_t model_offset(int unit) const { return model_offsets_[unit]; }
  /// The unit's elements in the shard of `shard_rank`, as [first, last) of the unit.
  std::pair<std::int64_t, std::int64_t> shard_range(int unit, int shard_rank) const;

  /// Of every parameter of the unit, in order, what the shard of `shard_rank` has.
  std::vector<Piece> pieces(int unit, int shard_rank) const;
  /// The runs of a shard, without holes; offsets relative to the shard.
  std::vector<Run> runs(int unit, int shard_rank) const;

  /// What no optimizer updates, FP32 and whole on every rank: the biases of the blocks' routers, [experts] each.
  const std::vector<Parameter>& buffers() const { return buffers_; }

  BlockTensors block(std::int64_t layer, const Tensor& unit) const;
  /// The matrices of a block's linear layers, in the order of the declaration.
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
  void find_block_tensors(std::int64_t layer);
  /// The smallest shard of a block, at least its share, that ends whole wherever it ends.
  std::int64_t whole_block_shard(std::int64_t layer) const;

  ModelConfig config_;
  BlockKind kinds_[2];  // without experts, and with
  int shards_;
  int first_block_ = 0, embedding_unit_ = 0;
  std::vector<Unit> units_;
  std::vector<Parameter> buffers_;
  std::int64_t final_norm_offset_ = 0;
  std::vector<std::int64_t> shard_sizes_, shard_offsets_, model_offsets_;
};

}  // namespace precbench
