// The optimizers that there are, a declaration each: its name, its constants, what it keeps from step to step, and how it
// updates a unit. A further one is a row of optimizers().
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace precbench {

struct UpdateContext;     // update_rules.h
struct OptimizerOptions;  // optimizer.h
struct StepScalars;

/// What is kept of a parameter beside its weights.
struct KeptState {
  bool m = false;        ///< an average of gradients, element by element
  bool v = false;        ///< one of their squares, likewise
  bool factors = false;  ///< the latter by row and column of a matrix alone
};

/// An optimizer's own constants and their defaults; none: it has no such constant.
struct OptimizerConstants {
  std::optional<double> beta1 = {}, beta2 = {}, eps = {}, momentum = {};
};

struct OptimizerSpec {
  const char* name;
  OptimizerConstants constants;
  KeptState block_matrices;  ///< of the matrices of the blocks
  KeptState others;          ///< of embedding, head, gains and biases
  /// Updates this rank's part of a unit whose gradient is complete. A collective where ranks share the unit.
  void (*update)(const UpdateContext& context, int unit);
  /// Where bias corrections are not what this optimizer needs of a step, counted from 1; else null.
  void (*scalars)(const OptimizerOptions& options, double step, StepScalars& scalars);

  /// Whether any parameter has an average of gradients or of their squares by element, whose format can be chosen.
  bool has_moments() const { return block_matrices.m || others.m || block_matrices.v || others.v; }
};

/// The first is the default.
const std::vector<OptimizerSpec>& optimizers();
/// By its name, which exists.
const OptimizerSpec& optimizer_named(const std::string& name);

}  // namespace precbench
