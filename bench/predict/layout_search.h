// Searches the layout of ranks, the micro-batch and the recomputation with which a step of a given global batch is
// predicted to be fastest on a number of GPUs.
//
// Every candidate has a lower bound of its step time and of its memory (layout_bound.h), from the cost of a
// micro-batch, which all candidates with the same tensor, context and expert ranks, micro-batch and recomputation
// share. Until they are looked at, candidates that recompute have the time bound of those that do not. Candidates are
// predicted in full (estimate_layout()) in the order of their bounds, until the next bound exceeds the time of the
// slowest proposal. So the proposals are the best of all candidates if the bounds hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/layout_bound.h"
#include "bench/predict/layout_estimate.h"
#include "bench/predict/layout_space.h"

namespace precbench {

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

/// Number of full predictions after which a search ends.
inline constexpr std::int64_t kMostPredictions = 5000;

/// Throws InvalidInput if no layout divides the GPUs and the batch, with the rule that the simplest layout breaks.
LayoutSearch search_layouts(const LayoutQuestion& question, const LayoutSpace& space,
                            const CostModel& cost_model);

/// Answers a question with the default space, restricted to what the user gave: what `precbench plan` proposes and
/// `advise` recommends. Throws InvalidInput if the machine does not multiply the recipe's formats, if the model cannot
/// be planned, or if no layout divides.
LayoutSearch best_layouts(const LayoutQuestion& question, const CostModel& cost_model);

}  // namespace precbench
