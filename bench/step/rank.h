// One rank of a case: its device, its memory, its copy or shard of the model, and the training step on them.
// The same class runs on every device; on the dry device it only accounts for work and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/plan.h"
#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/data/data.h"
#include "models/transformer/parallel/parameters.h"
#include "models/transformer/transformer.h"

namespace precbench {

/// Results of a step that the host reads.
struct StepResult {
  double loss = 0;       ///< mean over all targets of all ranks that have one, nats
  double grad_norm = 0;  ///< before clipping
  double signal = 0;     ///< sum over ranks of prepare()'s `signal`
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

  /// A step has three parts, so that the middle one, which needs no host, can be timed and captured: prepare
  /// uploads the step's tokens and scalars, enqueue launches the ops, finish waits and reads the result.
  /// `signal`: any number, summed over ranks in StepResult; this is how one rank tells all to stop.
  void prepare(const DataSource& data, std::int64_t step, double signal);
  /// Selects the recipes of this step, as prepare does. Returns true if they differ from the previous ones.
  bool use_layers_of(std::int64_t step);
  void enqueue();
  StepResult finish();

  /// Returns the position of a run of this plan after `step` steps; parameters().save_state() has the
  /// tensors.
  RunPosition position(std::int64_t step) const;
  /// Loads a saved state and returns the step to resume with. Throws InvalidInput if the saved run has
  /// another seed or another place in the data.
  std::int64_t continue_from(const RunPosition& saved, const StateReader& read);
  /// Loads another run's weights and moments as the first ones of this run, which begins at step 0. Keeps the
  /// optimizer's step count; drops the rest of the position and the amax history of delayed scaling.
  void fork_from(const RunPosition& saved, const StateReader& read);

  /// Returns the sum of `value` over all ranks; a collective between steps.
  double sum_over_ranks(double value);

  /// Runs the forward pass alone on B sequences of the data. Returns the loss of every token of this rank,
  /// nats; rows() tells whose they are. `transformer` must use this rank's parameters and the plan's shapes.
  /// A collective, after parameters().begin_step(). Overwrites the prepared tokens.
  std::vector<float> token_losses(Transformer& transformer, const DataSource& data,
                                  const std::vector<std::uint64_t>& sequences);

  /// Returns which of this rank's last uploaded rows have a loss: 1 or 0 each.
  const std::vector<std::uint8_t>& counted() const { return counted_; }

  /// Maps this rank's rows of a micro-step to rows of its B whole sequences, [B][T].
  RowMap rows() const { return transformer_options().sequence().rows(plan_.B); }

  /// Uploads B sequences for compare_outputs(), as token_losses() does.
  void prepare_sequences(const DataSource& data, const std::vector<std::uint64_t>& sequences) {
    upload(data, sequences);
  }
  /// Compares next-token distributions of two transformers of this rank's parameters on the first M prepared
  /// tokens (Transformer::compare_outputs). Returns two numbers per token. A collective, after
  /// parameters().begin_step().
  std::vector<float> compare_outputs(Transformer& transformer, Transformer& bf16);
  /// The same in two parts, for several transformers: allocates and computes BF16's features, [M, width], in the
  /// caller's scope of the arena; and compares with them.
  Tensor push_features(Transformer& bf16);
  std::vector<float> compare_outputs(Transformer& transformer, const Tensor& features);

  /// Returns the options for another transformer of this rank's parameters whose layers use the recipes of
  /// `layers`, which must outlive it.
  TransformerOptions transformer_options(const ConvertedLayers& layers) const;

  /// Runs forward and backward on the prepared tokens, without an update; the caller calls
  /// parameters().complete().
  void forward_backward() { forward_backward(transformer_); }
  /// Runs only the micro-steps for which `runs` returns true, in dry runs: the others would be alike.
  void set_micro_step_filter(std::function<bool(int micro)> runs) { runs_micro_step_ = std::move(runs); }
  /// The same with another transformer of this rank's parameters and the plan's shapes.
  void forward_backward(Transformer& transformer);
  /// Returns the loss of that pass, mean over all tokens of all ranks; a collective, call it once after each
  /// pass.
  double loss();

 private:
  /// Uploads this rank's part of the sequences, a multiple of B, to the front of tokens_ and targets_.
  /// Returns the number of tokens.
  std::int64_t upload(const DataSource& data, const std::vector<std::uint64_t>& sequences);
  /// Uploads the weights of the uploaded targets, so that the step's loss is the mean over all targets of all ranks
  /// that have one.
  void weigh(const DataSource& data, std::int64_t step);
  /// Returns uploaded tokens with their documents.
  Tokens inputs(std::int64_t first, std::int64_t rows) const {
    return Tokens(tokens_, first_key_, positions_).slice_rows(first, rows);
  }
  /// Returns the plan's options with the recipes of the current step.
  TransformerOptions transformer_options() const;

  Device& device_;
  Comm& comm_;
  const Plan& plan_;
  const ConvertedLayers* layers_;  // recipes of the current step
  Arena arena_;
  Parameters parameters_;
  Tensor tokens_, targets_;       // i32 [accumulation, M]
  Tensor weights_;                // f32 [accumulation, M] if some targets have no loss, else empty
  Tensor first_key_, positions_;  // i32 [accumulation, M] if documents are packed, else empty
  std::vector<std::uint8_t> counted_;
  Tensor report_;  // f32 [2]: sum of losses, signal
  Tensor scalars_, norm_squared_;
  std::int64_t optimizer_steps_before_ = 0;
  Transformer transformer_;
  std::function<bool(int)> runs_micro_step_;  // empty: all
};

}  // namespace precbench
