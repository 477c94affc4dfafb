// Blocks' weights as ranks exchange them in FP8: before every optimizer step's first gather each rank quantizes
// its shards, and what is gathered is bytes, half of BF16's.
//
//   one scale per matrix   every rank casts its part of the master (FP32 where there is one: one rounding,
//                          where BF16 weights would have been rounded twice) with the amax over all ranks
//   128x128 blocks         every rank quantizes its rows of the BF16 weights; shards end where blocks end
//   1x32 blocks            so too, but along each GEMM's own direction, from the BF16 value both times: fprop's
//                          codes are gathered for forward, dgrad's for backward, each with their scales
// Other scales, norm gains and biases are small: every rank has all of them, summed from ranks that hold zeros elsewhere.
//
// It needs a recipe that takes weights in one format in fprop and dgrad, and scales of which each belongs to one
// rank's rows in both.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "models/transformer/layout.h"
#include "models/transformer/linear.h"

namespace precbench {

/// A block's weights as the model uses them.
struct BlockWeights {
  Weight qkv, o, gate_up, down;
  Tensor norm1, norm2;    ///< BF16 [1, C]
  Tensor q_norm, k_norm;  ///< BF16 [1, D], empty without QK-norm
  Tensor qkv_bias;        ///< BF16 [1, (H + 2 KV) D], empty without biases
};

/// The half of a step that a block's weights are gathered for.
enum class Pass : std::uint8_t { forward, backward };

/// Why a model's weights cannot be exchanged in a recipe's FP8; empty if they can. recompute: backward runs fprop
/// again.
std::string why_not_fp8_weights(const Recipe& recipe, const ModelConfig& model, bool recompute);

class Fp8Weights {
 public:
  /// `format`: of the weights; `comm`: the ranks of a group; `layers`: which blocks.
  Fp8Weights(Device& device, Comm& comm, Arena& arena, const Layout& layout, const QuantFormat& format,
             const std::vector<bool>& layers);

  bool has(int unit) const { return layout_.is_block(unit) && layers_[layer_of(unit)]; }
  /// Whether shards are cast from the master, so that nobody reads BF16 weights.
  bool from_master() const { return format_.granularity == Granularity::tensor; }
  /// Whether the two passes gather codes of their own, with scales beside them.
  bool by_pass() const { return format_.granularity == Granularity::block_1x32; }

  /// Quantizes this rank's shards and exchanges scales, gains and biases. `shard(unit)`: this rank's part of a unit,
  /// FP32 or BF16, BF16 unless from_master().
  void refresh(const std::function<Tensor(int)>& shard);
  /// This rank's codes of a unit, e4m3 [1, shard size], and where by_pass() their scales, ue8m0 [1, shard size /
  /// kCodesPerScale].
  Tensor codes(int unit, Pass pass) const;
  Tensor scales(int unit, Pass pass) const;
  static constexpr std::int64_t kCodesPerScale = 32;
  /// A unit whose codes, and scales where by_pass(), have been gathered: views of them, but where by_pass() those of
  /// backward, which are put together in the arena's stack.
  BlockWeights block(int unit, Pass pass, const Tensor& codes, const Tensor& scales, Arena& arena) const;

 private:
  static constexpr int kMatrices = 4;
  int layer_of(int unit) const { return unit - layout_.block_unit(0); }
  int first_scale(int unit, int matrix) const {
    return layer_of(unit) * scales_per_block_ + scale_offsets_[matrix];
  }
  Weight weight(int unit, int matrix, Pass pass, const Tensor& codes, const Tensor& scales,
                Arena& arena) const;
  /// A matrix's column form from gathered shards, each of which holds that of its rows.
  GemmOperand columns(int unit, const Layout::Matrix& matrix, const Tensor& codes, const Tensor& scales,
                      Arena& arena) const;
  /// A shard's elements of a matrix, as [first, last) of the unit; empty where first >= last.
  std::pair<std::int64_t, std::int64_t> range(int unit, int shard_rank, const Layout::Matrix& matrix) const;

  Device& device_;
  Comm& comm_;
  const Layout& layout_;
  QuantFormat format_;
  std::vector<bool> layers_;
  int scale_offsets_[kMatrices] = {}, scales_per_block_ = 0;
  std::int64_t vectors_per_block_ = 0;
  Tensor codes_[2];   // e4m3: one shard of every block, for each pass where by_pass()
  Tensor beside_[2];  // ue8m0: their scales, where by_pass()
  Tensor scales_;     // f32 [layers, scales of a block], else
  Tensor amaxes_;     // f32 [layers, 4], with one scale per matrix
  Tensor vectors_;    // bf16 [layers, gains and biases of a block]
};

}  // namespace precbench
