// Delayed scaling: every linear layer's three operands have a scale that is known before the step, from the amaxes of
// steps before. What a step sees of its operands is staged, reduced over ranks once, and moves into the history at the
// step's end.
//
// A slot is an operand of a linear layer; of stacked experts' weights each expert's is one. Of each the run's state has the
// amax that the present scale comes from ("known") and, oldest first, those of the steps before. Rules of TransformerEngine's update (delayed_scaling.cu):
//   a = the step's amax over micro-steps and ranks; 0 or not finite: nothing changes
//   known = max(a, history), or a alone; the history moves on by a
// kernels/numerics/formats.h makes the scale of `known`.
#pragma once

#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "models/config/config.h"
#include "models/transformer/linear.h"
#include "models/transformer/state.h"

namespace precbench {

class DelayedScaling {
 public:
  /// `recipe`: one with a history, whose formats are those of all slots.
  DelayedScaling(Device& device, Arena& arena, const Recipe& recipe, const ModelConfig& config);

  static std::int64_t slots_of(const ModelConfig& config);
  /// Of a linear layer in a delayed recipe; `layer`: its block, any for the head. Where it is stacked, the weight's are
  /// f32 [1, experts].
  LinearSlots slots(std::int64_t layer, LinearRole role) const;
  /// Without any history, as a run begins.
  void reset();
  /// Says that scales come from the tensor's own amax: in the first History::current_steps() of a recipe. Holds until
  /// update().
  void set_current(bool current) { current_ = current; }
  bool current() const { return current_; }
  /// What is seen now is no part of training: nothing is staged.
  void set_watching(bool watching) { watching_ = watching; }

  /// All slots' amaxes of this step, f32 [1, slots].
  const Tensor& staged() const { return staged_; }
  /// A collective of all ranks, at the end of every step.
  void update(Comm& comm);

  /// Known amaxes and history between two steps, to come back to; the device's copies of them are left as they are.
  struct Snapshot {
    std::vector<float> known, history;
  };
  Snapshot snapshot() const;
  void restore(const Snapshot& snapshot);

  /// "scales/known" and "scales/history", which every rank has.
  std::vector<StateTensor> state() const;

 private:
  Device& device_;
  QuantFormat formats_[3];  // by LinearOperand
  HistoryAlgorithm algorithm_;
  ModelConfig config_;
  Tensor known_, staged_;  // f32 [1, slots]: operand by operand, each for all linear layers; stacked weights
  Tensor history_;         // f32 [slots, length - 1]; empty where the length is 1
  bool current_ = false, watching_ = false;
};

}  // namespace precbench
