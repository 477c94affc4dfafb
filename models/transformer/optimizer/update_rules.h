// Update rules of the optimizers, which the table of optimizers references, and their common parts.
#pragma once

#include "kernels/device/device.h"
#include "models/transformer/optimizer/optimizer.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

/// Inputs of a step's update.
struct UpdateContext {
  Device& device;
  Parameters& parameters;
  Tensor scalars;       ///< StepScalars
  Tensor norm_squared;  ///< f32 [1]: of all gradients; without clipping, of those updated so far
  const OptimizerOptions& options;

  /// Returns the constants of an update. `in_model`: places of its elements in the unsharded model.
  UpdateOptions constants(bool decay, const ElementMap& in_model) const;
  /// Adds a gradient's squares to the norm if there is no clipping; with clipping the norm is known before
  /// the updates. `decay`: it is a matrix's.
  void add_to_norm(const Tensor& gradient, bool decay = true) const;
  /// Returns norm_squared, or where the squares of a vector go that another tensor rank counts.
  const Tensor& norm_for(bool decay) const;
};

void adamw_update(const UpdateContext& context, int unit);
/// Updates elements whose moments have no scales.
void adamw_update_run(const UpdateContext& context, int unit, const Run& run);
void lion_update(const UpdateContext& context, int unit);
void adafactor_update(const UpdateContext& context, int unit);
void adafactor_scalars(const OptimizerOptions& options, double step, StepScalars& scalars);
/// Updates the matrices of the blocks; AdamW updates the rest.
void muon_update(const UpdateContext& context, int unit);

}  // namespace precbench
