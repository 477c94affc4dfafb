// The kinds of a model's blocks, and the short models that pipeline stages of them are extrapolated from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/parallel_trace.h"

namespace precbench {

/// Numbers of blocks, by kind.
using KindCounts = std::vector<double>;

/// A model all of whose blocks are of one kind, and the flags that make all of them convert the same linear layers and
/// recompute alike. Null: the case's flag treats all of the model's blocks alike.
struct BlockKind {
  ModelConfig model;
  std::optional<std::string> keep_bf16, recompute;
};

/// The kinds of a model's blocks, which differ in experts, window, converted linear layers or recomputation.
struct BlockKinds {
  std::vector<BlockKind> kinds;
  std::vector<std::size_t> of_layer;

  /// Returns the number of layers [begin, end) of each kind.
  KindCounts counts(std::int64_t begin, std::int64_t end) const;
  /// Returns the kind that most layers have.
  std::size_t most_common() const;
};

/// Returns the kinds of the blocks of `model`. `c`: its recipe, --keep-bf16 and --recompute are read.
BlockKinds block_kinds(const Case& c, const ModelConfig& model);

/// Returns the case and the layout of a model all of whose blocks are of one kind: without experts, no ranks share
/// them.
std::pair<Case, ParallelLayout> case_of_kind(Case c, ParallelLayout layout, const BlockKind& kind);

/// Returns the layers of each group of a stage by kind: [stage][group][kind].
std::vector<std::vector<KindCounts>> kinds_by_group(const BlockKinds& kinds, const ParallelLayout& layout);
/// Returns the layers of all groups of a stage.
KindCounts layers_of_stage(const std::vector<KindCounts>& groups);

/// Micro-steps of a trace that a stage is extrapolated from: the first, one that stands for those between, the last.
inline constexpr std::int64_t kTracedMicroSteps = 3;

/// Returns a model with at least so many blocks, all like its own, for traces that stages are extrapolated from.
ModelConfig deepened(ModelConfig model, std::int64_t layers);

/// Returns a text of everything that decides the times and the memory of a stage's layers, but for a RecomputeShare.
std::string stage_key(Case c, const ParallelLayout& layout);

}  // namespace precbench
