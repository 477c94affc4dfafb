// Delayed scaling: every linear layer's three operands have a scale that is known before the step, from the amaxes of
// steps before. What a step sees of its operands is staged, reduced over ranks once, and moves into the history at the
// step's end.
//
// A slot is an operand of a linear layer; of stacked experts' weights each expert's is one. Of each the run's state has the
// amax that the present scale comes from ("known") and, oldest first, those of the steps before. Where micro-steps move the
// history (HistoryUpdate::micro), each is such a step: X, W and dY are used with the scale of their own micro-step alone, its
// recomputation included, so all slots move behind its backward. Rules of TransformerEngine's update (delayed_scaling.cu):
//   a = the step's amax over micro-steps and ranks; 0 or not finite: nothing changes
//   known = max(a, history), or a alone; the history moves on by a
// Without History::reduce a rank's amaxes are its own, and so are its scales and its history.
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
  /// `comm`: of all ranks; it must outlive this. `recipe`: one with a history, whose formats are those of all slots.
  DelayedScaling(Device& device, Comm& comm, Arena& arena, const Recipe& recipe, const ModelConfig& config);

  static std::int64_t slots_of(const ModelConfig& config);
  /// Of a linear layer in a delayed recipe; `layer`: its block, any for the head. Where it is stacked, the weight's are
  /// f32 [1, experts].
  LinearSlots slots(std::int64_t layer, LinearRole role) const;
  /// Without any history, as a run begins.
  void reset();
  /// Says that scales come from the tensor's own amax in so many of the step's first micro-steps, of a recipe's first
  /// History::current_updates(). Holds until update().
  void set_current(int micro_steps) { current_micro_steps_ = micro_steps; }
  int current_micro_steps() const { return current_micro_steps_; }
  /// Whether they do now.
  bool current() const { return micro_step_ < current_micro_steps_; }
  /// What is seen now is no part of training: nothing is staged.
  void set_watching(bool watching) { watching_ = watching; }

  /// All slots' amaxes of this step, f32 [1, slots]; of this micro-step where these move the history.
  const Tensor& staged() const { return staged_; }
  /// Makes amaxes, f32, those of all ranks where these have common scales: a collective then.
  void share(const Tensor& amaxes) const;
  /// Before every micro-step, from 0. Where micro-steps move the history, what the one before has left moves into it; as
  /// share() a collective.
  void begin_micro_step(int micro_step);
  /// At the end of every step; as share() a collective.
  void update();

  /// Known amaxes and history between two steps, to come back to; the device's copies of them are left as they are.
  struct Snapshot {
    std::vector<float> known, history;
  };
  Snapshot snapshot() const;
  void restore(const Snapshot& snapshot);

  /// Whether ranks have histories of their own.
  bool apart() const { return !rule_.reduce && comm_.size() > 1; }
  /// "scales/known" and "scales/history", which every rank has; where they are apart [ranks, ...], of which this rank has its
  /// own.
  std::vector<StateTensor> state() const;
  static constexpr const char* kStateKind = "scales/";

 private:
  void move_history() const;

  Device& device_;
  Comm& comm_;
  QuantFormat formats_[3];  // by LinearOperand
  History rule_;
  ModelConfig config_;
  Tensor known_, staged_;  // f32 [1, slots]: operand by operand, each for all linear layers; stacked weights
  Tensor history_;         // f32 [slots, length - 1]; empty where the length is 1
  int current_micro_steps_ = 0, micro_step_ = 0;
  bool watching_ = false;
};

}  // namespace precbench
