// Gradients kept and exchanged in e4m3 with one scale per parameter (FP8-LM, arXiv 2310.18313; MS-AMP).
// Backward writes a unit's gradient in BF16, then reduce() processes it:
//
//   cast       to e4m3, scale 2^floor(log2(448 / amax)) per parameter, with the amax over all ranks
//   exchange   all-to-all: every rank sends every other its part, one byte per element
//   sum        in FP32, in rank order; the ranks' scales are equal
//   cast       the sum, by its own amax; sharded ranks keep it, replicas all-gather it
//
// MS-AMP adds in FP8 instead (`round_sums`): every sum of two ranks' values is rounded to e4m3 and saturates
// at 448. To leave headroom, the scale is divided by sqrt(ranks), rounded here to a power of two. The last
// cast, to a power of two that is no smaller, is then exact, so the kept gradient is that sum, as in MS-AMP.
//
// With accumulation the new gradient is added to the decoded one and the sum is cast again. Sharded ranks
// exchange every micro-step, replicas only the final sum.
#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/comm.h"
#include "models/transformer/state/parameter_scales.h"

namespace precbench {

class Fp8Gradients {
 public:
  /// `comm`: the ranks; null for a single one. `layout`: of the gradients that a rank keeps (its shards);
  /// must outlive this. `round_sums`: sum in e4m3 instead of FP32; no effect on one rank.
  Fp8Gradients(Device& device, Comm* comm, Arena& arena, const ModelConfig& config, const Layout& layout,
               bool round_sums);

  /// Returns where backward writes a unit's whole BF16 gradient. The edges share one buffer, the blocks
  /// another.
  Tensor staging(int unit) const;
  /// Call before the first micro-step of a step. Resets the scales, so that a step does not depend on
  /// previous ones.
  void begin_step() const;
  /// Adds the staged gradient to `codes`, this rank's part of the unit's FP8 gradient; after the `last`
  /// micro-step that is the sum over ranks. A collective.
  void reduce(int unit, const Tensor& codes, bool first, bool last);
  /// Returns the scale of a unit's parameter, f32 [1].
  Tensor scale(int unit, std::size_t parameter) const { return scales_.of(unit, parameter).scale; }

 private:
  bool sharded() const { return layout_.shards() > 1; }
  /// `common`: uses the amax over all ranks; `headroom`: as in ops::Encode.
  struct Cast {
    bool accumulate = false, common = false;
    float headroom = 1;
  };
  /// Runs both passes (amax, cast) over the pieces of a unit in `codes` and `values`.
  void encode(int unit, const std::vector<Piece>& pieces, const Tensor& codes, const Tensor& values,
              const ParameterScales& scales, const Cast& cast) const;
  /// Sends the whole unit's `codes` and returns this rank's part of the sum over ranks, in FP32.
  Tensor exchange(int unit, const Tensor& codes, const ParameterScales& scales) const;
  std::vector<Piece> whole(int unit) const;

  Device& device_;
  Comm* comm_;
  const Layout& layout_;
  bool round_sums_;
  float headroom_ =
      1;          ///< headroom of summed values: smallest power of two with headroom_^2 >= number of ranks
  Layout parts_;  ///< the part of a unit that each rank sums
  ParameterScales scales_;                        ///< of the kept gradients
  std::unique_ptr<ParameterScales> sent_scales_;  ///< sharded: of the sent gradients
  Tensor staging_[2];                             ///< bf16: a block's gradient, and the edges'
  Tensor sent_, received_;  ///< e4m3: a whole unit to send; this rank's part as received from all ranks
  Tensor sum_;              ///< f32: sum of that part
  Tensor summed_;           ///< e4m3: replicas: that sum, cast
};

}  // namespace precbench
