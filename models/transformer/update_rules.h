// How each optimizer updates a unit: what the table of optimizers points to, and what the rules share.
#pragma once

#include "kernels/device/device.h"
#include "models/transformer/optimizer.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// A step's update, under way.
struct UpdateContext {
  Device& device;
  Parameters& parameters;
  Tensor scalars;       ///< StepScalars
  Tensor norm_squared;  ///< f32 [1]: of all gradients; without clipping, of those that were updated already
  const OptimizerOptions& options;

  /// `in_model`: where the elements are in the unsharded model.
  UpdateOptions constants(bool decay, std::int64_t in_model) const;
  /// Without clipping nobody needs the norm before the step: a rule adds its gradients' squares as it goes.
  void add_to_norm(const Tensor& gradient) const;
};

/// The elements of a flat tensor, or none of one that is not kept.
inline Tensor part(const Tensor& t, std::int64_t first, std::int64_t count) {
  return t.empty() ? Tensor{} : t.elements(first, count);
}

void adamw_update(const UpdateContext& context, int unit);
/// Elements whose moments have no scales.
void adamw_update_run(const UpdateContext& context, int unit, const Run& run);
void lion_update(const UpdateContext& context, int unit);
void adafactor_update(const UpdateContext& context, int unit);
void adafactor_scalars(const OptimizerOptions& options, double step, StepScalars& scalars);
/// The matrices of the blocks; all others by AdamW.
void muon_update(const UpdateContext& context, int unit);

}  // namespace precbench
