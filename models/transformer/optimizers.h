// Table of optimizers: name, constants, persistent state and update function. To add one, add a row to
// optimizers().
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace precbench {

struct UpdateContext;     // update_rules.h
struct OptimizerOptions;  // optimizer.h
struct StepScalars;

/// State kept per parameter besides its weights.
struct KeptState {
  bool m = false;        ///< elementwise average of gradients
  bool v = false;        ///< elementwise average of squared gradients
  bool factors = false;  ///< row and column averages of squared gradients instead of v
};

/// An optimizer's constants with their defaults; nullopt: it has no such constant.
struct OptimizerConstants {
  std::optional<double> beta1 = {}, beta2 = {}, eps = {}, momentum = {};
};

struct OptimizerSpec {
  const char* name;
  OptimizerConstants constants;
  KeptState block_matrices;  ///< for the matrices of the blocks
  KeptState others;          ///< for embedding, head, gains and biases
  /// Updates this rank's part of a unit whose gradient is complete. A collective if ranks share the unit.
  void (*update)(const UpdateContext& context, int unit);
  /// Overrides the bias corrections of a step, counted from 1; null: the usual ones.
  void (*scalars)(const OptimizerOptions& options, double step, StepScalars& scalars);

  /// Returns true if any parameter has m or v, whose format can be chosen.
  bool has_moments() const { return block_matrices.m || others.m || block_matrices.v || others.v; }
};

/// All optimizers; the first is the default.
const std::vector<OptimizerSpec>& optimizers();
/// Returns the optimizer with this name. Throws std::invalid_argument if there is none.
const OptimizerSpec& optimizer_named(const std::string& name);

}  // namespace precbench
