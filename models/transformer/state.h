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
/// whole. Ranks at the same place on the shard axis have the same part.
struct StateTensor {
  std::string name;                 ///< "weights/model.norm.weight", "m/...", "v/..."
  std::vector<std::int64_t> shape;  ///< of the whole
  std::int64_t first = 0;
  Tensor values = {};  ///< on the rank's device; empty where other ranks have it all
};

/// Where a run stands beside its tensors.
struct RunPosition {
  std::int64_t step = 0;       ///< optimizer steps done
  std::int64_t sequences = 0;  ///< of the data's order that they have read, on all ranks
  std::uint64_t seed = 0;      ///< of the first weights and of stochastic rounding

  bool operator==(const RunPosition&) const = default;
};

/// Takes the values of a tensor, and fills them in: `bytes`, of the values' size.
using StateWriter = std::function<void(const StateTensor& tensor, const std::vector<std::byte>& bytes)>;
using StateReader = std::function<void(const StateTensor& tensor, std::vector<std::byte>& bytes)>;

/// Calls write, or read, for every tensor of which this rank has a part.
void save_state(Device& device, const std::vector<StateTensor>& state, const StateWriter& write);
void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read);

}  // namespace precbench
