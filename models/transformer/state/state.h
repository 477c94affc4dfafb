// The state of a run: everything it needs, besides its case, to continue. Checkpoints, memory accounting and
// fingerprints use the same list: Parameters::state names every tensor that persists between steps, with this
// rank's part. Everything else is derived: BF16 weights from their master; the learning rate, data order and
// random numbers from the step and the case's seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/element_map.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// A state tensor, of which this rank holds `values`. Ranks at the same position on the shard and tensor axes hold the
/// same part; of experts, ranks at the same position in their expert-parallel groups.
struct StateTensor {
  std::string name;                 ///< "weights/model.norm.weight", "m/...", "v/..."
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  ElementMap place = {};            ///< of the values in the flattened whole
  Tensor values = {};  ///< on the device; without data (dtype only) if other ranks hold all of it
};

/// Position of a run, besides its tensors.
struct RunPosition {
  std::int64_t step = 0;       ///< completed optimizer steps
  std::int64_t sequences = 0;  ///< sequences read, over all ranks
  std::uint64_t seed = 0;      ///< seed of the initial weights and of stochastic rounding
  /// Optimizer steps the moments had seen before the run; nonzero for a fork.
  std::int64_t optimizer_steps_before = 0;

  bool operator==(const RunPosition&) const = default;
};

/// Write or fill the values of a tensor's part. `bytes` has the size of the part; a writer may swap it for a buffer of
/// its own to keep the data. A reader's part is consecutive in the whole, and its `values` may have no data.
using StateWriter = std::function<void(const StateTensor& part, std::vector<std::byte>& bytes)>;
using StateReader = std::function<void(const StateTensor& part, std::vector<std::byte>& bytes)>;

/// Returns all of a tensor in FP32, even if this rank has only a part, from a reader that converts.
std::vector<float> read_whole(const StateReader& read, const StateTensor& tensor);

/// Maximum bytes staged between host and device at a time, so that saving needs no second copy of the state.
inline constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;

/// Call write, or read, for every tensor of which this rank has a part, in pieces that span `staging` bytes at most.
void save_state(Device& device, const std::vector<StateTensor>& state, const StateWriter& write,
                std::int64_t staging = kStagingBytes);
void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read,
                std::int64_t staging = kStagingBytes);

}  // namespace precbench
