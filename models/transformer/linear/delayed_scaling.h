// Delayed scaling: the three operands of every linear layer have scales known before the step, from the
// amaxes of previous steps. A step's amaxes are staged, reduced over ranks once, and enter the history at the
// end of the step.
//
// A slot is an operand of a linear layer; stacked expert weights have one per expert. The run's state holds
// per slot the amax of the current scale ("known") and, oldest first, those of the steps before. If
// micro-steps update the history (HistoryUpdate::micro), each counts as a step: X, W and dY, recomputation
// included, are only used with the scale of their own micro-step, so all slots are updated after its
// backward. Rules of TransformerEngine's update (delayed_scaling.cu):
//   a = the step's amax over micro-steps and ranks; if it is 0 or not finite, nothing changes
//   known = max(a, history), or a alone; a enters the history
// Without History::reduce every rank has its own amaxes, scales and history. kernels/numerics/formats.h
// computes the scale from `known`.
#pragma once

#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "models/config/config.h"
#include "models/transformer/linear/linear.h"
#include "models/transformer/state/state.h"

namespace precbench {

class DelayedScaling {
 public:
  /// `comm`: all ranks; must outlive this. `recipe`: one with a history; its formats apply to all slots.
  DelayedScaling(Device& device, Comm& comm, Arena& arena, const Recipe& recipe, const ModelConfig& config);

  static std::int64_t slots_of(const ModelConfig& config);
  /// Returns the slots of a linear layer in a delayed recipe. `layer`: the block, any for the head. The slots
  /// of stacked weights are f32 [1, experts].
  LinearSlots slots(std::int64_t layer, LinearRole role) const;
  /// Clears the history, as at the start of a run.
  void reset();
  /// Uses the tensor's own amax in the first `micro_steps` micro-steps, for a recipe's first
  /// History::current_updates() updates. Holds until update().
  void set_current(int micro_steps) { current_micro_steps_ = micro_steps; }
  int current_micro_steps() const { return current_micro_steps_; }
  /// Returns true if the current micro-step is one of them.
  bool current() const { return micro_step_ < current_micro_steps_; }
  /// While watching, nothing is staged: the computation is not part of training.
  void set_watching(bool watching) { watching_ = watching; }

  /// Amaxes of all slots in this step, f32 [1, slots]; of this micro-step if micro-steps update the history.
  const Tensor& staged() const { return staged_; }
  /// Reduces amaxes, f32, over all ranks (max) if ranks have common scales. Then a collective.
  void share(const Tensor& amaxes) const;
  /// Call before every micro-step, from 0. If micro-steps update the history, the previous one's amaxes enter
  /// it; a collective like share().
  void begin_micro_step(int micro_step);
  /// Call at the end of every step. A collective like share().
  void update();

  /// Known amaxes and history between two steps, for restore(). Taking it does not change the device state.
  struct Snapshot {
    std::vector<float> known, history;
  };
  Snapshot snapshot() const;
  void restore(const Snapshot& snapshot);

  /// Returns true if every rank has its own history.
  bool apart() const { return !rule_.reduce && comm_.size() > 1; }
  /// Returns "scales/known" and "scales/history", the same on every rank. If ranks have their own histories,
  /// [ranks, ...] with this rank's part.
  std::vector<StateTensor> state() const;
  static constexpr const char* kStateKind = "scales/";

 private:
  void move_history() const;

  Device& device_;
  Comm& comm_;
  QuantFormat formats_[3];  // by LinearOperand
  History rule_;
  ModelConfig config_;
  Tensor known_, staged_;  // f32 [1, slots]: per operand, all linear layers; then stacked expert weights
  Tensor history_;         // f32 [slots, length - 1]; empty if the length is 1
  int current_micro_steps_ = 0, micro_step_ = 0;
  bool watching_ = false;
};

}  // namespace precbench
