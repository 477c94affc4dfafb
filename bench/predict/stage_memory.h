// Memory of the ranks of each pipeline stage, extrapolated from short models of each kind of block.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/predict/block_kinds.h"
#include "bench/predict/parallel_trace.h"
#include "bench/predict/rank_estimate.h"

namespace precbench {

/// Memory of a rank of one pipeline stage at its peak, in bytes.
struct StageMemory {
  std::int64_t layers = 0;
  double micro_batches = 1;      ///< whose activations the stage holds at once, in units of all its layers
  std::int64_t states = 0;       ///< weights, gradients and optimizer state
  std::int64_t buffers = 0;      ///< of collectives and GEMMs, and quantized copies
  std::int64_t activations = 0;  ///< of all these micro-batches

  std::int64_t peak() const { return states + buffers + activations; }
};

/// Linear function of a number of layers.
struct PerLayer {
  double one = 0, rest = 0;
  double at(double layers) const { return rest + one * layers; }
};

/// Bytes of a rank as functions of a stage's layers, by the parts of RankMemory.
struct MemoryPerLayer {
  PerLayer activations, states, buffers, weights, gradients;
};

/// Returns the lines through the memory of ranks with few and with many layers.
MemoryPerLayer line_through(std::int64_t few, const RankMemory& at_few, std::int64_t many,
                            const RankMemory& at_many);

/// Returns the memory of one stage that has the whole model.
StageMemory memory_of_whole(const RankMemory& memory, const ModelConfig& model);

/// Predicts the memory of many layouts of one model whose cases have the same kinds of blocks (block_kinds()). Remembers
/// what layouts share that differ in virtual stages and micro-batches alone.
class LayoutMemory {
 public:
  /// `c`: as in block_kinds(). `model` must outlive it.
  LayoutMemory(const Case& c, const ModelConfig& model) : model_(model), kinds_(block_kinds(c, model)) {}

  /// Returns the memory of each stage, first stage first. Arguments and errors as in estimate_layout().
  std::vector<StageMemory> stages(const Case& c, const ParallelLayout& layout,
                                  const RecomputeShare& recompute = {});

 private:
  std::vector<StageMemory> uniform_stages(const Case& c, const ParallelLayout& layout);
  const std::vector<MemoryPerLayer>& memory_of_kinds(const Case& c, const ParallelLayout& layout);

  const ModelConfig& model_;
  const BlockKinds kinds_;
  std::map<std::string, std::vector<MemoryPerLayer>> known_;  // of each kind, by stage_key()
};

/// Returns the memory of each stage of one layout, without predicting a time. Arguments and errors as in
/// estimate_layout().
std::vector<StageMemory> layout_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                       const RecomputeShare& recompute);

}  // namespace precbench
