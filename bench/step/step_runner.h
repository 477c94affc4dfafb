// Runs training steps on one rank as fast as its device allows, and times them on the device's clock. Where the device
// has graphs the first step runs op by op (plans and workspaces are made there), the second is captured as a graph, and
// from then on the graph is replayed: the host does nothing while a step runs.
#pragma once

#include <memory>

#include "bench/process/step_board.h"
#include "bench/step/rank.h"
#include "kernels/gpu/graph.h"
#include "kernels/gpu/profiler.h"

namespace precbench {

class StepRunner {
 public:
  /// `graph`: capture, where the device can, and when its kernels start. `board`: where to note how far the rank is; null:
  /// nowhere.
  StepRunner(Rank& rank, const DataSource& data, bool graph, StepBoard* board = nullptr,
             KernelStart start = KernelStart::in_turn);

  struct Timed {
    StepResult result;
    double ms = 0;
  };
  /// Steps count from 0; `signal` as in Rank::prepare.
  Timed run(std::int64_t step, double signal);

  /// One more step with a mark around every op, outside every measurement; captured too, so that launch gaps
  /// are none.
  StepProfiler::Result profile(std::int64_t step);

  /// Kernels of the captured step that start early; 0 where none is captured.
  int early_kernels() const { return captured_ ? captured_->early_kernels() : 0; }

 private:
  void note(std::int64_t step, StepBoard::Stage stage);
  /// What has run may be captured, too.
  bool captures() const;

  Rank& rank_;
  const DataSource& data_;
  bool graph_;
  StepBoard* board_;
  KernelStart start_;
  bool warm_ = false;
  std::unique_ptr<DeviceClock> clock_;
  std::unique_ptr<StepGraph> captured_;
};

}  // namespace precbench
