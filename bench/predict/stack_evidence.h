// Makes results/predicted/stacks.json: comparisons of other training software with our step, the spreads of a factor's
// effects, and how far off factors are without their source or their model (`precbench predict --stacks`).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/predict/published_point.h"
#include "bench/predict/stack_factor.h"

namespace precbench {

/// Returns the comparisons of record files, or folders of them, with the lines of tools/pytorch_baseline
/// (pytorch.ndjson) beside them: one for each record of the same work and day, with PyTorch's fastest line. On several
/// GPUs our FSDP with `--reshard on` counts. Throws InvalidInput for files that cannot be read, or without any
/// comparison.
std::vector<StackEvidence> measured_stacks(const std::vector<std::string>& paths);

/// Returns the comparisons of published points with our predicted step: throughput of points that are judged by it,
/// speed-ups of those that are judged by their ratio, which count as such alone, and throughput of mixtures of experts
/// that fit the memory. A speed-up without a layout is compared in that of the first predicted point of the same stack,
/// model, GPU and precision.
std::vector<StackEvidence> published_stacks(const std::vector<PublishedPoint>& points);

/// Estimates the spreads of the effects by maximum likelihood, which is penalized by the sum of their logarithms so
/// that no spread is estimated as zero for want of evidence (Chung et al., Psychometrika 78, 2013). Spreads are 1%
/// times powers of 1.5 of at most kMostSpread; that of StackEffect::mean is 1. `start` is where the search begins.
StackSpreads fit_spreads(const std::vector<StackEvidence>& evidence, const StackSpreads& start);
inline constexpr double kMostSpread = 0.385;
/// Returns spreads of 8% and of the mean of 1.
StackSpreads first_spreads();

/// Factors of a comparison from others alone, with spreads estimated without it.
struct HeldOutFactor {
  StackFactor without_source, without_model;
};
/// Returns one for each comparison.
std::vector<HeldOutFactor> held_out_factors(const std::vector<StackEvidence>& evidence,
                                            const StackSpreads& spreads);

/// Returns the file.
nlohmann::ordered_json stacks_json(const std::vector<StackEvidence>& evidence, const StackSpreads& spreads,
                                   const std::vector<HeldOutFactor>& held_out);

}  // namespace precbench
