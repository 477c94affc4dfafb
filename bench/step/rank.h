// One rank of a case: its device, its memory and its copy or shard of the model, and the training step on
// them. The same class runs on every device; on the dry one it leaves only the accounts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/data/data.h"
#include "models/transformer/parameters.h"
#include "models/transformer/transformer.h"

namespace precbench {

/// What a step tells the host.
struct StepResult {
  double loss = 0;       ///< mean over all tokens of all ranks, nats
  double grad_norm = 0;  ///< before clipping
  double signal = 0;     ///< sum of what the ranks gave to prepare's `signal`
};

class Rank {
 public:
  /// `block`: `capacity` bytes of the device's memory. The plan must outlive the rank.
  Rank(Device& device, Comm& comm, const Plan& plan, void* block, std::int64_t capacity);
  Rank(const Rank&) = delete;

  Device& device() { return device_; }
  Comm& comm() { return comm_; }
  Arena& arena() { return arena_; }
  Parameters& parameters() { return parameters_; }
  Transformer& transformer() { return transformer_; }

  /// A step in three parts, so that the middle one, which runs without the host, can be timed and captured:
  /// prepare uploads the step's tokens and scalars, enqueue runs the ops, finish waits and reads the result.
  /// `signal`: any number; every rank learns the sum, which is how one rank tells all that it is enough.
  void prepare(const DataSource& data, std::int64_t step, double signal);
  /// Chooses the recipes of this step, as prepare does; whether they are others than before.
  bool use_layers_of(std::int64_t step);
  void enqueue();
  StepResult finish();

  /// Where a run of this plan stands that has done so many steps; parameters().save_state() has the tensors.
  RunPosition position(std::int64_t step) const;
  /// Loads what a run saved there, and returns the step to go on with. Throws InvalidInput where that run's seed or
  /// its place in the data is another.
  std::int64_t continue_from(const RunPosition& saved, const StateReader& read);
  /// Loads another run's weights and moments as the first of this one, which begins at step 0. Of its position only
  /// the optimizer's step count goes on, and of the state all but the amaxes of delayed scaling.
  void fork_from(const RunPosition& saved, const StateReader& read);

  /// What all ranks give, added up; a collective between steps.
  double sum_over_ranks(double value);

  /// Forward alone of sequences of the data, B of them: every token's loss in nats, [B, T]. `transformer`: of this
  /// rank's parameters and the plan's shapes. Every rank calls it, after parameters().begin_step(). Takes the place of
  /// the prepared tokens.
  std::vector<float> token_losses(Transformer& transformer, const DataSource& data,
                                  const std::vector<std::uint64_t>& sequences);

  /// Options of another transformer of this rank's parameters that runs these layers in their recipe. `layers` must outlive
  /// it.
  TransformerOptions transformer_options(const ConvertedLayers& layers) const;

  /// Forward and backward of the prepared tokens, without an update; parameters().complete() is the caller's.
  void forward_backward() { forward_backward(transformer_); }
  /// The same by another transformer of this rank's parameters and the plan's shapes.
  void forward_backward(Transformer& transformer);
  /// Their loss, the mean over all tokens of all ranks; a collective, once after each.
  double loss();

 private:
  /// To the front of tokens_ and targets_; returns how many.
  std::int64_t upload(const DataSource& data, const std::vector<std::uint64_t>& sequences);
  /// The plan's, in the recipes of the present step.
  TransformerOptions transformer_options() const;

  Device& device_;
  Comm& comm_;
  const Plan& plan_;
  const ConvertedLayers* layers_;  // those of the present step
  Arena arena_;
  Parameters parameters_;
  Tensor tokens_, targets_;  // i32 [accumulation, M]
  Tensor report_;            // f32 [2]: sum of losses, signal
  Tensor scalars_, norm_squared_;
  std::int64_t optimizer_steps_before_ = 0;
  Transformer transformer_;
};

}  // namespace precbench
