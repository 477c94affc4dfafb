// Gradients that are kept and exchanged in e4m3, one scale for a parameter (FP8-LM, arXiv 2310.18313; MS-AMP). Backward
// writes a unit's gradient in BF16, and reduce() takes it from there:
//
//   cast       codes with one scale for a parameter, 2^floor(log2(448 / amax)), whose amax is that of all ranks
//   exchange   every rank sends every other its part, one byte an element (an all-to-all)
//   sum        in FP32 and in the order of the ranks, whose scales are the same
//   cast       the sum's codes, by the sum's own amax; they stay, or where ranks are replicas go to all of them
//
// MS-AMP adds in FP8 instead (`round_sums`): every sum of two ranks' codes is rounded to e4m3, and what is beyond 448
// saturates. Codes are cast with room for it, their scale over sqrt(ranks), which is rounded down to a power of two here. So
// the last cast, to a power of two that is no smaller, is exact: what is kept is that sum, as in MS-AMP.
//
// Of micro-steps the new gradient is added to what the codes stand for, and the sum is cast again: sharded ranks exchange
// every micro-step's, replicas the last sum.
#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/comm.h"
#include "models/transformer/parameter_scales.h"

namespace precbench {

class Fp8Gradients {
 public:
  /// `comm`: the ranks, null for one. `layout`: of the codes that a rank keeps, a shard where it has shards; it must
  /// outlive this. `round_sums`: to e4m3, not to FP32; of one rank it changes nothing.
  Fp8Gradients(Device& device, Comm* comm, Arena& arena, const ModelConfig& config, const Layout& layout,
               bool round_sums);

  /// Where backward writes a unit's whole gradient, in BF16; embedding and head share one place, blocks another.
  Tensor staging(int unit) const;
  /// Before the first micro-step of a step: what codes stand for does not depend on the steps before.
  void begin_step() const;
  /// Adds the staged gradient to `codes`, this rank's part of the unit's; after the `last` micro-step it is the sum over
  /// ranks. A collective.
  void reduce(int unit, const Tensor& codes, bool first, bool last);
  /// How the codes of a unit's parameter are scaled, by its number there.
  Tensor scale(int unit, std::size_t parameter) const { return scales_.of(unit, parameter).scale; }

 private:
  bool sharded() const { return layout_.shards() > 1; }
  /// `common`: with the amax of all ranks; `room`: as in ops::Encode.
  struct Cast {
    bool accumulate = false, common = false;
    float room = 1;
  };
  /// Both passes over the pieces that `codes` and `values` have of a unit.
  void encode(int unit, const std::vector<Piece>& pieces, const Tensor& codes, const Tensor& values,
              const ParameterScales& scales, const Cast& cast) const;
  /// Sends the whole unit's `codes`, and returns this rank's part of the sum over ranks, in FP32.
  Tensor exchange(int unit, const Tensor& codes, const ParameterScales& scales) const;
  std::vector<Piece> whole(int unit) const;

  Device& device_;
  Comm* comm_;
  const Layout& layout_;
  bool round_sums_;
  float room_ =
      1;          ///< of what is summed; the least power of two whose square is not below the number of ranks
  Layout parts_;  ///< which part of a unit each rank sums
  ParameterScales scales_;                        ///< of what is kept
  std::unique_ptr<ParameterScales> sent_scales_;  ///< sharded: of what is sent
  Tensor staging_[2];                             ///< bf16: a block's gradient, and the edges'
  Tensor sent_, received_;  ///< e4m3: a unit's codes, and the ranks' of this rank's part
  Tensor sum_;              ///< f32: of that part
  Tensor summed_;           ///< e4m3: replicas' codes of it
};

}  // namespace precbench
