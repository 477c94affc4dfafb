// Runs training steps on one rank as fast as its device allows, and times them on the device's clock. On
// devices with graphs, the first step runs op by op and creates plans and workspaces. The second is captured
// as a graph, which is replayed from then on without work on the host.
#pragma once

#include <memory>

#include "bench/case/case_words.h"
#include "bench/process/step_board.h"
#include "bench/step/rank.h"
#include "kernels/gpu/graph.h"
#include "kernels/gpu/profiler.h"

namespace precbench {

class StepRunner {
 public:
  /// `graph`: captures a graph only if the device can. `board`: where to note the rank's progress, or null.
  StepRunner(Rank& rank, const DataSource& data, GraphMode graph, StepBoard* board = nullptr);

  struct Timed {
    StepResult result;
    double ms = 0;
  };
  /// Runs one step. Steps count from 0; `signal` as in Rank::prepare.
  Timed run(std::int64_t step, double signal);

  /// Runs one more step with a mark around every op, outside every measurement. It is captured too, so that
  /// launch gaps do not appear.
  StepProfiler::Result profile(std::int64_t step);

  /// Returns the number of kernels of the captured step that start early; 0 if none is captured.
  int early_kernels() const { return captured_ ? captured_->early_kernels() : 0; }

 private:
  void note(std::int64_t step, StepBoard::Stage stage);
  /// Returns true if the step that has run may be captured.
  bool captures() const;

  Rank& rank_;
  const DataSource& data_;
  GraphMode graph_;
  StepBoard* board_;
  bool warm_ = false;
  std::unique_ptr<DeviceClock> clock_;
  std::unique_ptr<StepGraph> captured_;
};

}  // namespace precbench
