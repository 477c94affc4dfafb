// Searches the layout of ranks, the micro-batch and the recomputation with which a step of a given global batch is
// predicted to be fastest on a number of GPUs.
//
// Every candidate has a lower bound of its step time and of its memory (layout_bound()), from the cost of a micro-batch,
// which all candidates with the same tensor, context and expert ranks, micro-batch and recomputation share. Until they are
// looked at, candidates that recompute have the time bound of those that do not. Candidates are predicted in full (estimate_layout()) in the order of their bounds, until the next bound exceeds the time of the slowest
// proposal. So the proposals are the best of all candidates if the bounds hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/layout_estimate.h"

namespace precbench {

/// Values that a search tries, by field of the case. Combinations that cannot be are left out.
struct LayoutSpace {
  std::vector<std::int64_t> tensor, context, pipeline, virtual_stages, batch, ep;
  std::vector<std::string> parallel, shard_optimizer, reshard, grad_sync, recompute, gather;
  std::vector<std::int64_t> shard_group;  ///< of hsdp
};

/// Fields of a case that a search sets (LayoutSpace), but for `accumulation`, `exchange` and `slots`, which follow.
inline constexpr const char* kSearchedFields[] = {
    "batch",  "parallel",        "shard_group", "context",   "tensor",    "pipeline", "virtual_stages",
    "gather", "shard_optimizer", "reshard",     "grad_sync", "recompute", "ep"};
bool is_searched(std::string_view field);

struct LayoutQuestion {
  /// Model, recipe, gpus, seq, overlap, dtypes of states. The search sets kSearchedFields.
  Case c;
  std::int64_t global_batch = 0;  ///< sequences of a step
  std::int64_t memory = 0;        ///< bytes that a rank may need
  std::size_t proposals = 3;
  /// Values that a user gave of searched fields, as stored in a case: the search tries these alone.
  std::map<std::string, std::vector<std::string>> given = {};
};

/// Returns the values tried by default: powers of two, tensor ranks within an NVLink domain, and the numbers of stages and
/// of their groups that divide the layers. The optimizer is sharded wherever a layout that is only predicted has replicas.
LayoutSpace layout_space(const LayoutQuestion& question, const ModelConfig& model, const Machine& machine);

struct LayoutProposal {
  Plan plan;
  LayoutEstimate estimate;
};

struct LayoutSearch {
  /// Fastest first, each with other numbers of tensor, context, pipeline or expert ranks.
  std::vector<LayoutProposal> proposals;
  std::int64_t candidates = 0;  ///< layouts that divide the GPUs, the layers and the batch
  std::int64_t too_large = 0;   ///< found to need more memory than there is, by their bounds or as predicted
  std::int64_t predicted = 0;   ///< in full
  std::int64_t unsupported = 0;
  std::string unsupported_reason = {};           ///< of the first that is
  bool complete = true;                          ///< false if the search ended at kMostPredictions
  std::optional<std::int64_t> least_bytes = {};  ///< that any predicted or bounded candidate needs
};

/// Shares by which bounds may exceed what is predicted. The search takes off as much.
inline constexpr double kTimeTolerance = 0.02, kMemoryTolerance = 0.03;

/// Number of full predictions after which a search ends.
inline constexpr std::int64_t kMostPredictions = 5000;

/// Throws InvalidInput if no layout divides the GPUs and the batch, with the rule that the simplest layout breaks.
LayoutSearch search_layouts(const LayoutQuestion& question, const LayoutSpace& space,
                            const CostModel& cost_model);

/// Answers a question with the default space, restricted to what the user gave: what `precbench plan` proposes and `advise`
/// recommends. Throws InvalidInput if the machine does not multiply the recipe's formats, if the model cannot be planned,
/// or if no layout divides.
LayoutSearch best_layouts(const LayoutQuestion& question, const CostModel& cost_model);

/// Lower bounds of a step, within kTimeTolerance and kMemoryTolerance.
struct LayoutBound {
  double seconds = 0;
  double bytes = 0;  ///< of the first or last stage's rank
};

/// Returns the bounds of a case whose layers have these costs. The case's layout has no layout_failure().
LayoutBound layout_bound(const Case& c, const ModelConfig& model, const std::vector<MicroBatchCost>& layers,
                         const CostModel& cost_model);

}  // namespace precbench
