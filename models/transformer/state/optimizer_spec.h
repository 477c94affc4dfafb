// Description of an optimizer: name, constants, persistent state and update function. The table of optimizers
// is in optimizer/optimizers.h.
#pragma once

#include <optional>

namespace precbench {

struct UpdateContext;     // optimizer/update_rules.h
struct OptimizerOptions;  // optimizer/optimizer.h
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
  void (*scalars)(const OptimizerOptions& options, double step, StepScalars& scalars) = nullptr;
  /// Its update can record the largest absolute value of each updated weight in the same pass.
  bool records_amaxes = false;

  /// Returns true if any parameter has m or v, whose format can be chosen.
  bool has_moments() const { return block_matrices.m || others.m || block_matrices.v || others.v; }
};

}  // namespace precbench
