// Options of the training step.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/sequence_part.h"
#include "kernels/numerics/tensor.h"
#include "models/transformer/layers/packed_lengths.h"

namespace precbench {

/// Exchange of tokens with the ranks that have their experts (expert_exchange.h).
struct ExchangeOptions {
  enum class Mode : std::uint8_t { gather, slots, sync } mode = Mode::gather;
  bool codes = false;      ///< sends the recipe's 8-bit data and scales if it has rowwise ones, else BF16
  std::int64_t slots = 0;  ///< Mode::slots: rows per destination rank
};

/// Activations that backward computes again, to the same bits, instead of reading them from memory.
struct Recompute {
  std::int64_t blocks = 0;  ///< number of first blocks of which only the input stays
  /// Keeps what torchtitan's selective activation checkpointing keeps: beside a block's input the output of attention and,
  /// of BF16 linear layers and as KeptActivations::gemm_output says of others, q, v and gate (up without a gate).
  bool selective = false;
  // Parts of the other blocks:
  bool norm = false;       ///< the norms' outputs
  bool ffn = false;        ///< gate|up, and what experts of other ranks received
  bool attention = false;  ///< q|k|v; attention's output stays, so attention itself never runs again

  bool whole_block(std::int64_t layer) const { return layer < blocks; }
  bool all_blocks() const { return blocks == std::numeric_limits<std::int64_t>::max(); }
  /// Returns true if backward runs GEMMs of the forward pass again.
  bool repeats_fprop() const { return blocks > 0 || ffn || attention; }
  bool operator==(const Recompute&) const = default;
};
inline constexpr Recompute kRecomputeBlocks{.blocks = std::numeric_limits<std::int64_t>::max()};
inline constexpr Recompute kRecomputeSelective{.blocks = kRecomputeBlocks.blocks, .selective = true};
/// Ranks over which the amax of a per-tensor scale is reduced: none, those that share its sequences, or all.
enum class AmaxGroup : std::uint8_t { own, context, all };

struct TransformerOptions {
  std::int64_t B = 1, T = 128;  ///< sequences of one micro-step on one rank; tokens of a whole sequence
  int context_ranks = 1;        ///< ranks that share these sequences
  int context_rank = 0;         ///< this rank's number among them
  bool ring = false;            ///< they pass keys and values around a ring; false: each gathers all of them
  /// Returns the recipe of a linear layer, which must outlive the transformer. `layer`: the block, or
  /// config.layers for lm_head; `role`: a role that selects a recipe (recipe_role). All quantized down layers
  /// must share one recipe. If q, k or v is quantized, qkv is not, and the three run as separate GEMMs.
  std::function<const Recipe&(std::int64_t layer, LinearRole role)> recipe_of;
  KeptActivations kept = {};
  Recompute recompute = {};                ///< of what `kept` keeps
  bool recompute_norms = false;            ///< repeat a norm for wgrad instead of saving its BF16 output
  bool tensor_fp8 = false;                 ///< tensor ranks gather FP8 data where a cast has one scale
  AmaxGroup reduce_amax = AmaxGroup::own;  ///< ranks whose amax a per-tensor scale uses
  DType activations = DType::bf16;         ///< f32: the FP32 reference model of the tests
  Tensor random_word = {};                 ///< random word of stochastic rounding (RandomStream); empty: 0
  std::int64_t first_sequence = 0;         ///< this rank's first among a micro-step's sequences on all ranks
  /// MoE capacity factor: an expert takes at most ceil(capacity * tokens * top_k / experts) of this rank's
  /// slots; 0: no limit.
  double capacity = 0;
  std::int64_t group_rows = 1;    ///< alignment of an expert's first row: at least kGpuGroupRows on a GPU
  float balance = 0, z_loss = 0;  ///< coefficients of the router losses, which the reported loss excludes
  ExchangeOptions exchange = {};
  /// Documents of packed sequences, whose attention costs count; null: a sequence is one document. Without effect on
  /// results (Tokens has the mask).
  std::shared_ptr<const PackedLengths> packed = {};
  /// For tests of expert parallelism by all-gather: i32 [tokens, top_k] holding 0, 1, 2, ... If set, every
  /// slot's row is returned separately and a token's rows are summed as on one rank. If empty, each rank
  /// returns its partial sum.
  Tensor slot_numbers = {};

  /// Returns this rank's part of each sequence.
  SequencePart sequence() const { return {T, context_ranks, context_rank}; }
};

}  // namespace precbench
