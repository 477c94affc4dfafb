// The state of a run: what it needs, beside its case, to go on where it stands. One list serves checkpoints,
// accounts and fingerprints: whoever keeps a tensor from one step to the next names it there (Parameters::state), with
// the part of it that this rank has. Everything else is derived: BF16 weights from their master, the learning rate,
// the data's order and random numbers from the step and the case's seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// A tensor of the state, of which this rank has `values`: elements [first, first + values.size()) of the flattened
/// whole. Ranks at the same place on the shard axis have the same part, of experts those at the same place among the
/// ranks that have different ones.
struct StateTensor {
  std::string name;                 ///< "weights/model.norm.weight", "m/...", "v/..."
  std::vector<std::int64_t> shape;  ///< of the whole
  std::int64_t first = 0;
  Tensor values = {};  ///< on the rank's device; empty, but for its dtype, where other ranks have it all
};

/// Where a run stands beside its tensors.
struct RunPosition {
  std::int64_t step = 0;       ///< optimizer steps done
  std::int64_t sequences = 0;  ///< of the data's order that they have read, on all ranks
  std::uint64_t seed = 0;      ///< of the first weights and of stochastic rounding
  /// That the moments had seen before the run began: of a fork those of the run that it comes from.
  std::int64_t optimizer_steps_before = 0;

  bool operator==(const RunPosition&) const = default;
};

/// Takes the values of a tensor's part, and fills them in: `bytes`, of the part's size. A writer may keep what is in
/// `bytes` by swapping it for a buffer of its own.
using StateWriter = std::function<void(const StateTensor& part, std::vector<std::byte>& bytes)>;
using StateReader = std::function<void(const StateTensor& part, std::vector<std::byte>& bytes)>;

/// All of a tensor in FP32, of which this rank may have a part only, from a reader that converts.
std::vector<float> read_whole(const StateReader& read, const StateTensor& tensor);

/// The most that is on its way between host and device at a time, so that a state of any size needs no second copy.
inline constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;

/// Calls write, or read, for every tensor of which this rank has a part, in parts of at most `staging` bytes.
void save_state(Device& device, const std::vector<StateTensor>& state, const StateWriter& write,
                std::int64_t staging = kStagingBytes);
void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read,
                std::int64_t staging = kStagingBytes);

}  // namespace precbench
