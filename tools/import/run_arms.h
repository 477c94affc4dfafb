// Imported runs by recipe: what their losses are compared in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"

namespace precbench {

/// Loss curve of one run.
struct LossCurve {
  std::optional<std::int64_t> seed;
  std::vector<std::int64_t> steps;  ///< ascending
  std::vector<double> loss;         ///< nats, at each of them
  bool diverged = false;
};

/// Runs of one recipe.
struct RunArm {
  std::string recipe;
  std::vector<LossCurve> runs;
};

/// Arms that differ in the recipe alone: one source, model, sequence length, global batch, number of GPUs and window.
struct ArmGroup {
  std::string name;               ///< "torchtitan, llama3.1-8b, seq 8192, global batch 8"
  std::int64_t global_batch = 0;  ///< sequences
  std::vector<RunArm> arms;       ///< the reference first
  bool has_reference = false;
};

/// Returns the groups of imported records with a loss. `reference`: recipe of the first arm.
std::vector<ArmGroup> arm_groups(const RecordSet& records, const std::string& reference);

}  // namespace precbench
