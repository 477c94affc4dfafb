// Setting of a published point as a case, a layout of ranks and a machine that can be predicted. What the source does
// not say is assumed, and each assumption is named.
#pragma once

#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/predict/parallel_trace.h"
#include "bench/predict/published_point.h"

namespace precbench {

struct PublishedSetting {
  Case c;  ///< model, recipe, micro-batch, global sequence length, micro-steps, states
  ModelConfig model;
  Machine machine;
  ParallelLayout layout;
  RecomputeShare recompute;
  std::vector<std::string> assumed;  ///< "recompute: none", ...
};

/// Returns the recipe of this program that a source's precision names; empty if there is none.
std::string recipe_of_precision(const std::string& precision);

/// Throws InvalidInput that says in one line what of the point this program cannot predict.
PublishedSetting published_setting(const PublishedPoint& point);

}  // namespace precbench
