// Parts of a predicted step: classes of ops, exposed traffic by axis, the bubble, stragglers.
#pragma once

#include <string>
#include <vector>

#include "bench/predict/layout_estimate.h"

namespace precbench {

struct StepPart {
  std::string name;
  double seconds = 0;
};

/// Returns the parts that take time, the longest first. With pipeline stages these are those of the stage that works longest.
/// `axes`: names of the groups of `estimate.comms` (axes_of_layout()).
std::vector<StepPart> parts_of_step(const LayoutEstimate& estimate, const std::vector<std::string>& axes);

/// Returns which parts make a step faster than another one, the largest saving first, and what it costs instead: "bubble 310 -> 90 ms,
/// exposed tensor 120 -> 0 ms; more: gemm 400 -> 450 ms". Names at most three savings, those of at least a hundredth of the slower
/// step or the largest, and at most one cost.
std::string savings_text(const std::vector<StepPart>& slower, const std::vector<StepPart>& faster);

}  // namespace precbench
