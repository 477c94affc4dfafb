// FP8 exchange of the blocks' weights. Before the first gather of an optimizer step every rank quantizes its
// shards; the gather then moves half the bytes of BF16. A single rank or a replica may also keep FP8 weights.
//
//   one scale per matrix   Every rank casts its part of the master with the amax over all ranks. An FP32
//                          master is rounded only once this way, and twice via BF16 weights. With delayed
//                          scaling the amax comes from previous steps, without an exchange before the cast.
//   128x128 blocks         Every rank quantizes its rows of the BF16 weights. Shards end where blocks end.
//   1x32 blocks            The same, but each pass gathers its own data and scales: fprop's in forward,
//                          dgrad's in backward. Both are quantized from the BF16 value.
//
// Other scales, norm gains and biases are small, and every rank keeps all of them. They are summed over
// ranks, each of which contributes its own and zeros elsewhere.
//
// The recipe must use one weight format for fprop and dgrad, and every scale must lie within one rank's rows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "models/transformer/linear/delayed_scaling.h"
#include "models/transformer/linear/linear.h"
#include "models/transformer/state/layout.h"

namespace precbench {

/// A block's weights as the model uses them; vectors in BF16.
using BlockWeights = BlockOf<Weight>;

/// The half of a step for which a block's weights are gathered.
enum class Pass : std::uint8_t { forward, backward };

/// Returns why a model's weights cannot be exchanged in a recipe's FP8; null if they can. `repeats_fprop`:
/// backward runs GEMMs of the forward pass again.
std::optional<std::string> fp8_gather_unsupported_reason(const Recipe& recipe, const ModelConfig& model,
                                                         bool repeats_fprop);

class Fp8Weights {
 public:
  /// `format`: of the weights; `comm`: the ranks of a group, null if each keeps all data, which requires
  /// from_master(); `layers`: the blocks to exchange in FP8.
  Fp8Weights(Device& device, Comm* comm, Arena& arena, const Layout& layout, const QuantFormat& format,
             const std::vector<bool>& layers);

  bool has(int unit) const { return layout_.is_block(unit) && layers_[layer_of(unit)]; }
  /// Returns true if shards are cast from the master, so that BF16 weights are not read.
  bool from_master() const { return format_.granularity == Granularity::tensor; }
  /// Returns true if each pass gathers its own data and scales.
  bool by_pass() const { return format_.granularity == Granularity::block_1x32; }

  /// Quantizes this rank's shards and exchanges scales, gains and biases. `shard(unit)`: this rank's part of
  /// a unit, FP32 or BF16 (BF16 unless from_master()), valid until the next call. `leading(unit)`: the same
  /// in either. `delayed`: provides the amaxes of delayed scales and records the shards' own; may be null.
  void refresh(const std::function<Tensor(int)>& shard, const std::function<Tensor(int)>& leading,
               const DelayedScaling* delayed = nullptr);
  /// Return this rank's part of a unit: FP8 data, e4m3 [1, shard size], and with by_pass() scales, ue8m0 [1,
  /// shard size / kCodesPerScale].
  Tensor codes(int unit, Pass pass) const;
  Tensor scales(int unit, Pass pass) const;
  static constexpr std::int64_t kCodesPerScale = 32;
  /// Returns a unit's weights from its gathered FP8 data and, with by_pass(), scales. They are views, except
  /// backward's with by_pass(), which are assembled in the arena's stack.
  BlockWeights block(int unit, Pass pass, const Tensor& codes, const Tensor& scales, Arena& arena) const;

 private:
  /// This rank's part of a linear layer's matrix.
  struct Part {
    int unit;
    std::size_t linear;  // index in the block's linears
    const LinearMatrix& matrix;
    std::int64_t first;  // first element, within the matrix
    std::int64_t at;     // first element, within the shard
    std::int64_t count;  // elements; may be 0

    /// Returns the part's slice of a shard tensor with one entry per `per` elements; a tensor without data if
    /// empty.
    Tensor of(const Tensor& shard, std::int64_t per = 1) const {
      return count ? shard.elements(at / per, count / per) : Tensor{nullptr, shard.dtype, 0, 0};
    }
  };
  /// Calls body(part) for every matrix of the exchanged blocks, even if this rank has no part of it.
  template <class Body>
  void for_each_part(Body&& body) const;
  /// Steps of refresh(): FP8 data and scales in one of three ways, then gains and biases.
  void cast_with_common_amax(const std::function<Tensor(int)>& shard);
  void cast_with_known_amax(const std::function<Tensor(int)>& shard, const DelayedScaling& delayed);
  void quantize_own_rows(const std::function<Tensor(int)>& shard);
  void exchange_vectors(const std::function<Tensor(int)>& leading);

  int rank() const { return comm_ ? comm_->rank() : 0; }
  int layer_of(int unit) const { return unit - layout_.block_unit(0); }
  /// Returns the first scale of the block's i-th linear layer.
  std::int64_t first_scale(int unit, std::size_t i) const {
    return layer_of(unit) * scales_per_block_ + scale_offsets_[i];
  }
  Weight weight(int unit, std::size_t i, Pass pass, const Tensor& codes, const Tensor& scales,
                Arena& arena) const;
  /// Assembles a matrix's columnwise copy from gathered shards, each of which holds that of its own rows.
  GemmOperand columns(int unit, const LinearMatrix& matrix, const Tensor& codes, const Tensor& scales,
                      Arena& arena) const;
  /// Returns a shard's elements of a matrix as [first, last) of the unit; empty if first >= last.
  std::pair<std::int64_t, std::int64_t> range(int unit, int shard_rank, const LinearMatrix& matrix) const;

  Device& device_;
  Comm* comm_;
  const Layout& layout_;
  QuantFormat format_;
  std::vector<bool> layers_;
  std::vector<std::int64_t> scale_offsets_;  // of every linear layer within a block's scales
  std::int64_t scales_per_block_ = 0;
  std::int64_t vectors_per_block_ = 0;
  Tensor codes_[2];   // e4m3: one shard of every block; per pass with by_pass()
  Tensor beside_[2];  // ue8m0: scales of codes_ with by_pass()
  Tensor scales_;     // f32 [layers, scales of a block], without by_pass()
  Tensor amaxes_;     // f32 [layers, linear layers of a block], with one scale per matrix
  Tensor vectors_;    // bf16 [layers, gains and biases of a block]
};

}  // namespace precbench
