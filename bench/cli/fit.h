// Answers of a dry run about memory: whether a case fits a GPU, and the smallest change with which it would.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/machine.h"
#include "bench/predict/predict.h"

namespace precbench {

/// Returns bytes in GiB: "7.479", "74.3".
std::string gib(std::int64_t bytes);

/// Memory of the GPU that a dry run asks about.
struct MemoryLimit {
  std::string name;  ///< as the driver reports it
  std::int64_t bytes = 0;
  std::string source;  ///< "98% of the data sheet's 80 GB", "of this machine"
};

/// Returns the memory of one GPU of a machine.
MemoryLimit memory_limit_of(const Machine& machine);

/// Returns the memory of the GPU that `name` names, in the table of data sheets; of this machine's smallest GPU
/// if it is empty; null if there is none. Throws InvalidInput for an unknown name.
std::optional<MemoryLimit> find_memory_limit(const std::string& name);

/// Bytes that a process holds on a GPU outside of what is predicted: context and libraries.
inline constexpr std::int64_t kContextBytes = std::int64_t{1} << 30;
inline bool fits(std::int64_t peak, const MemoryLimit& limit) { return peak + kContextBytes <= limit.bytes; }

/// Fields of a case with other values: flags in the order of the field table.
struct Change {
  std::vector<std::pair<std::string, std::string>> flags;  ///< {"--batch", "4"}
  std::int64_t peak = 0;                                   ///< bytes with the change

  std::string text() const;  ///< "--recompute block --batch 4"
};

/// Finds the nearest change with which a case runs and fits: one flag if one suffices, tried from what leaves
/// training as it is (gradients reduced in every micro-step, recomputation, of which the least that suffices,
/// sharding, FP8 gathers) over BF16 optimizer state and smaller batches with more accumulation to more ranks;
/// else two of these; else as many as it takes, without those that are not needed. Every candidate is
/// predicted. Null if none is found, up to kMostRanks ranks.
std::optional<Change> nearest_change(const Plan& plan, const MemoryLimit& limit);
inline constexpr std::int64_t kMostRanks = 1024;

/// Returns changes with which an unsupported case with FP8 gathers would run: BF16 gathers, and the most
/// ranks, fewer than its own, whose FP8 gathers are supported. Empty if its reason is another one.
std::vector<Change> runnable_changes(const Plan& plan);

/// Explains why a case needs more memory than the same case in BF16: "5.8 GiB more than bf16 at the peak:
/// activations +4.4 (...)". Null if it needs at most 1% or 1 MiB more.
std::optional<std::string> extra_memory(const Prediction& recipe, const Prediction& bf16);

}  // namespace precbench
