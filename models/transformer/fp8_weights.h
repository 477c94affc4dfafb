// Blocks' weights as ranks exchange them in FP8. Before the first gather of an optimizer step every rank quantizes its
// shards. What is gathered then is bytes, half of what BF16 takes. One rank, or a replica, may keep its weights so as well.
//
//   one scale per matrix   Every rank casts its part of the master with the amax over all ranks. An FP32 master is
//                          rounded once so; by way of BF16 weights it would be rounded twice.
//                          With delayed scaling that amax is one of steps before, and nothing is exchanged first.
//   128x128 blocks         Every rank quantizes its rows of the BF16 weights. Shards end where blocks end.
//   1x32 blocks            The same, but each pass gathers codes of its own with their scales: those of fprop in
//                          forward, those of dgrad in backward. Both come from the BF16 value.
//
// Other scales, norm gains and biases are small, and every rank has all of them: they are summed over ranks, each of
// which holds its own and zeros elsewhere.
//
// The recipe must take weights in one format in fprop and dgrad. In both, every scale must belong to one rank's rows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "models/transformer/delayed_scaling.h"
#include "models/transformer/layout.h"
#include "models/transformer/linear.h"

namespace precbench {

/// A block's weights as the model uses them; vectors in BF16.
using BlockWeights = BlockOf<Weight>;

/// The half of a step that a block's weights are gathered for.
enum class Pass : std::uint8_t { forward, backward };

/// Why a model's weights cannot be exchanged in a recipe's FP8; empty if they can. recompute: backward runs fprop
/// again.
std::string why_not_fp8_weights(const Recipe& recipe, const ModelConfig& model, bool recompute);

class Fp8Weights {
 public:
  /// `format`: of the weights; `comm`: the ranks of a group, null where each keeps all of the codes, which needs
  /// from_master(); `layers`: which blocks.
  Fp8Weights(Device& device, Comm* comm, Arena& arena, const Layout& layout, const QuantFormat& format,
             const std::vector<bool>& layers);

  bool has(int unit) const { return layout_.is_block(unit) && layers_[layer_of(unit)]; }
  /// Whether shards are cast from the master, so that nobody reads BF16 weights.
  bool from_master() const { return format_.granularity == Granularity::tensor; }
  /// Whether the two passes gather codes of their own, with scales beside them.
  bool by_pass() const { return format_.granularity == Granularity::block_1x32; }

  /// Quantizes this rank's shards and exchanges scales, gains and biases. `shard(unit)`: this rank's part of a unit,
  /// FP32 or BF16, BF16 unless from_master().
  /// `delayed`: where scales are known before; the amaxes of the shards are noted there. May be null.
  void refresh(const std::function<Tensor(int)>& shard, const DelayedScaling* delayed = nullptr);
  /// This rank's codes of a unit, e4m3 [1, shard size], and where by_pass() their scales, ue8m0 [1, shard size /
  /// kCodesPerScale].
  Tensor codes(int unit, Pass pass) const;
  Tensor scales(int unit, Pass pass) const;
  static constexpr std::int64_t kCodesPerScale = 32;
  /// A unit whose codes, and scales where by_pass(), have been gathered: views of them, but where by_pass() those of
  /// backward, which are put together in the arena's stack.
  BlockWeights block(int unit, Pass pass, const Tensor& codes, const Tensor& scales, Arena& arena) const;

 private:
  /// This rank's part of a linear layer's matrix.
  struct Part {
    int unit;
    std::size_t linear;  // which of the block's
    const LinearMatrix& matrix;
    std::int64_t first;  // element of the matrix
    std::int64_t at;     // element of the shard
    std::int64_t count;  // of elements; may be 0

    /// Its elements of a shard in which `per` of them share one; a tensor without data where there is none.
    Tensor of(const Tensor& shard, std::int64_t per = 1) const {
      return count ? shard.elements(at / per, count / per) : Tensor{nullptr, shard.dtype, 0, 0};
    }
  };
  /// body(part) for every exchanged block's matrices, on which this rank may have no part.
  template <class Body>
  void for_each_part(Body&& body) const;
  /// The steps of refresh: codes and scales, one way or the other, then gains and biases.
  void cast_with_common_amax(const std::function<Tensor(int)>& shard);
  void cast_with_known_amax(const std::function<Tensor(int)>& shard, const DelayedScaling& delayed);
  void quantize_own_rows(const std::function<Tensor(int)>& shard);
  void exchange_vectors(const std::function<Tensor(int)>& shard);

  int rank() const { return comm_ ? comm_->rank() : 0; }
  int layer_of(int unit) const { return unit - layout_.block_unit(0); }
  /// Of the block's i-th linear layer.
  std::int64_t first_scale(int unit, std::size_t i) const {
    return layer_of(unit) * scales_per_block_ + scale_offsets_[i];
  }
  Weight weight(int unit, std::size_t i, Pass pass, const Tensor& codes, const Tensor& scales,
                Arena& arena) const;
  /// A matrix's column form from gathered shards, each of which holds that of its rows.
  GemmOperand columns(int unit, const LinearMatrix& matrix, const Tensor& codes, const Tensor& scales,
                      Arena& arena) const;
  /// A shard's elements of a matrix, as [first, last) of the unit; empty where first >= last.
  std::pair<std::int64_t, std::int64_t> range(int unit, int shard_rank, const LinearMatrix& matrix) const;

  Device& device_;
  Comm* comm_;
  const Layout& layout_;
  QuantFormat format_;
  std::vector<bool> layers_;
  std::vector<std::int64_t> scale_offsets_;  // of every linear layer in a block's scales
  std::int64_t scales_per_block_ = 0;
  std::int64_t vectors_per_block_ = 0;
  Tensor codes_[2];   // e4m3: one shard of every block, for each pass where by_pass()
  Tensor beside_[2];  // ue8m0: their scales, where by_pass()
  Tensor scales_;     // f32 [layers, scales of a block], else
  Tensor amaxes_;     // f32 [layers, linear layers of a block], with one scale per matrix
  Tensor vectors_;    // bf16 [layers, gains and biases of a block]
};

}  // namespace precbench
